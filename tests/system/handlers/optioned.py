"""A handler that is set up with options, as one that connects to a database is."""

from __future__ import annotations

from typing import Any

from kunicorn import Record
from tests.system.handlers import audited

_options: dict[str, Any] = {}


def handle(record: Record) -> None:
    """Handle one record; only after `setup`."""
    assert _options, "not set up"
    audited.handle(record)


def setup(options: dict[str, Any]) -> None:
    """Caller: the worker, once, before the first record."""
    _options.update(options)


handle.setup = setup  # type: ignore[attr-defined]
