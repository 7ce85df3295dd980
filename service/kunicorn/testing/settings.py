"""The settings that a handler is tested with: those of its service, without the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunicorn.settings import Settings
from kunicorn.settings.loading import load_tables
from kunicorn.settings.sources import read_file

Tables = Mapping[str, Mapping[str, Any]]

_LEAST: Tables = {"group": {"id": "test", "topics": ["test"]}, "dead_letters": {"topic": "dead-letters"}}
"""Without a file."""
_MEMORY: Tables = {"kafka": {"bootstrap_servers": ["memory:9092"], "isolation_level": "read_committed"}}
"""Nothing is aborted there that would not be read."""
_NOT_OURS = frozenset({"kafka", "http", "log"})
"""Sections of the file that mean brokers and machines which a test does not have, or secrets that it must not need."""


def settings_for(entrypoint: str | None, config: Path | None, handler: Mapping[str, Any], sections: Tables) -> Settings:
    """`sections` over `handler` ([handler]) over the file; no environment, so that a test means the same everywhere.

    Raises `ConfigError`. Blocks on the disk.
    """
    file = {name: table for name, table in read_file(config).items() if name not in _NOT_OURS} if config else _LEAST
    own = {"handler": {**handler, **({"entrypoint": entrypoint} if entrypoint is not None else {})}}
    return load_tables(config or Path("the test"), sections, own, _MEMORY, file)


def first_topic(settings: Settings) -> str | None:
    """The first that is named; None where all are patterns."""
    topics = settings.assign.wanted.topics or settings.group.topics
    return next((topic for topic in topics if not topic.startswith("^")), None)
