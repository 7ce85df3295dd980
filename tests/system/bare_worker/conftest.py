"""What tests of real workers ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Rig, rig
from tests.system.bare_worker.traffic import HANDLERS


@pytest.fixture
def bootstrap(kafka: KafkaCluster) -> str:
    """The broker's address."""
    return kafka.bootstrap


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Rig]:
    """Templates and workers that import `traffic.HANDLERS` from the test's own directory."""
    with rig(tmp_path) as started:
        started.module(HANDLERS)
        yield started
