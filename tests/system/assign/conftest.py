"""Services without a group, on the common broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members


@pytest.fixture
def assigned(kafka: KafkaCluster, members_with: Callable[..., Members]) -> Callable[..., Members]:
    """`assigned(["orders:0-3"], stop="end", workers=1, settings={...}, env={...})`."""

    def make(
        partitions: list[str],
        *,
        workers: int = 2,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        **assign: Any,
    ) -> Members:
        own = {
            "kafka": {"bootstrap_servers": [kafka.bootstrap]},
            "assign": {"partitions": partitions, **assign},
            "handler": {"entrypoint": "kunicorn.commands.demo.audit:handle"},
            "workers": {"count": workers},
        }
        return members_with(own, settings, env=env)

    return make
