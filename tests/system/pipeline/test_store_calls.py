"""Requests that a job sends to an object store: each costs money and time, and the store allows so many a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.object_store import bucket_served
from tests.system.pipeline.desk import Desk
from tests.system.pipeline.store_calls import ROUND, RUN, TASK, StoreLog, by_kind, counted
from tests.system.producing import produce

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS, ROUNDS, OF_ONE = 4, 3, 100


def test_a_task_puts_its_file_and_asks_nothing_and_a_round_has_a_fixed_number_of_requests(
    desk_of: Callable[..., Desk], topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, log = "s3://runs", tmp_path / "moto.log"
    own = {"directory": f"{bucket}/{topic}-runs", "max_offsets_per_trigger": PARTITIONS * OF_ONE}
    desk = desk_of(PARTITIONS, {"http": {"enabled": False}, "pipeline": own})
    produce(desk.kafka.bootstrap, desk.topic, PARTITIONS * ROUNDS * OF_ONE)
    with bucket_served(log, "runs") as served:
        for name, value in served.items():
            monkeypatch.setenv(name, value)
        export, backfill, reconcile = counted(desk, StoreLog(log, served), bucket)
    found = json.dumps({each.job: {about: each.each(about) for about in (TASK, ROUND, RUN)} for each in (
        export, backfill, reconcile)})  # fmt: skip
    assert export.tasks <= PARTITIONS * export.rounds
    assert by_kind(export.calls, TASK) == {"PUT": export.tasks}, found
    assert sum(export.each(ROUND).values()) <= 16, found
    assert by_kind(backfill.calls, TASK) == {}, "a range without a failure has no file"
    assert sum(backfill.each(ROUND).values()) <= 16, found
    assert sum(reconcile.each(TASK).values()) <= 12, found
    for each in (export, backfill, reconcile):
        assert sum(each.each(RUN).values()) <= 60, found
