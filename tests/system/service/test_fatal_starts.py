"""A start that cannot work ends by itself, with its reason: a member that handles nothing holds its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka import KafkaCluster
from tests.system.service.fatal_starts import WAYS, broker, starts

RUNS, AT_ONCE = 3, 3
"""A few; `make starts` makes two hundred."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with broker() as cluster:
        yield cluster


@pytest.mark.parametrize("what", WAYS)
def test_a_start_that_cannot_work_ends_with_its_reason_and_leaves_nothing_running(
    cluster: KafkaCluster, tmp_path: Path, what: str
) -> None:
    assert [each.wrong for each in starts(WAYS[what], cluster.bootstrap, tmp_path, RUNS, AT_ONCE)] == [""] * RUNS
