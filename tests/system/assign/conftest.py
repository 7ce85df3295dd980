"""Services without a group, on the common broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members


@pytest.fixture
def assigned(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Callable[..., Members]]:
    """`assigned(["orders:0-3"], stop="end", workers=1, settings={...}, env={...})`."""
    with ExitStack() as started:

        def make(
            partitions: list[str],
            *,
            workers: int = 2,
            settings: Mapping[str, Mapping[str, Any]] | None = None,
            env: Mapping[str, str] | None = None,
            **assign: Any,
        ) -> Members:
            own: dict[str, dict[str, Any]] = {
                "kafka": {"bootstrap_servers": [kafka.bootstrap]},
                "assign": {"partitions": partitions, **assign},
                "handler": {"entrypoint": "kunicorn.commands.demo.audit:handle"},
                "workers": {"count": workers},
            }
            for section, values in (settings or {}).items():
                own.setdefault(section, {}).update(values)
            members = Members(tmp_path, own, env or {})
            started.callback(members.close)
            return members

        yield make
