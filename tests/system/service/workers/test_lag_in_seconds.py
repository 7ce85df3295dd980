"""Lag in seconds where no worker tells it: behind a handler that hangs, and where a partition has halted."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.system.producing import producer
from tests.system.scene import Scene

pytestmark = pytest.mark.long

MINUTE, HOUR = 60.0, 3600.0


def send(stage: Scene, partition: int, *values: str, age: float) -> None:
    """Append records that were made so many seconds ago."""
    sender = producer(stage.kafka.bootstrap)
    for value in values:
        made_ms = int((time.time() - age) * 1000)
        sender.produce(stage.topic, value=value.encode(), partition=partition, timestamp=made_ms)
    assert sender.flush(60) == 0, "not everything was delivered"


def test_the_oldest_record_has_an_age_though_its_worker_is_busy_elsewhere_or_its_partition_is_halted(
    scene: Callable[..., Scene],
) -> None:
    stage = scene(3, workers=1, handler="moody:handle", settings={"handler": {"max_attempts": 1}})
    send(stage, 2, "ok", "poison", "ok", age=2 * HOUR)
    member = stage.members.start()
    member.wait(lambda: member.partitions("halted"), "a halted partition")
    send(stage, 0, "hang", age=5 * MINUTE)
    member.wait(lambda: member.workers()[0]["in_hand"], "the handler to hang")
    # Written when the only worker had nothing but the other partition's record in hand, and never fetched.
    send(stage, 1, "ok", "ok", age=HOUR)

    def ages() -> dict[int, float | None]:
        return {p["partition"]: p["lag_seconds"] for p in member.partitions()}

    # The worker tells the first one's; the log those of the others, to a tenth.
    expected = {0: 5 * MINUTE, 1: HOUR, 2: 2 * HOUR}

    def dated() -> bool:
        told = ages()
        return None not in told.values() and told == pytest.approx(expected, rel=0.1, abs=60)

    member.wait(dated, f"the ages {expected}")
    (stage.marks / "go on").touch()
    member.wait(lambda: ages()[0] == ages()[1] == 0.0, "what was waiting to be handled")
    assert member.stop() == 0
