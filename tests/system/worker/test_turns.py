"""A worker that is busy with one batch looks after whoever else is due within a moment: on a real broker.

Of what the client has fetched ahead beyond that batch nothing is said here: it gives records out in the order in which
it got them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kunicorn.pipes.messages import FetcherStopped
from kunicorn.pipes.orders import Batching, ProducingTarget
from kunicorn.retry_topics import RetryTopic
from tests.kafka import KafkaCluster
from tests.system.worker.rig import Rig
from tests.system.worker.traffic import produce, seen
from tests.waiting import wait_until

BACKLOG = 1000
MANY = BACKLOG // 2
"""So many records of the backlog take five seconds at least: whoever waits for fewer does not wait for all of it."""
SLOW = """
import asyncio
import os
import pathlib
import time

HERE = pathlib.Path(__file__).parent
SEEN = os.open(HERE / "seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(record):
    os.write(SEEN, f"{record.partition}@{record.offset}\\n".encode())
    if record.value == b"once" and not (HERE / "failed").exists():
        (HERE / "failed").touch()
        raise ValueError("not yet")


def slow(record):
    time.sleep(0.01)
    note(record)


async def slow_async(record):
    await asyncio.sleep(0.01)
    note(record)


def slow_batch(records):
    for record in records:
        slow(record)
"""
FORMS: dict[str, dict[str, Any]] = {
    "one record": {"handler": "slow"},
    "one record, async": {"handler": "slow_async"},
    "batches": {"handler": "slow_batch", "mode": "batch", "batch_max_records": 5},
    "fuller batches": {
        "handler": "slow_batch",
        "mode": "batch",
        "batch_max_records": 5,
        "batching": Batching(max_ms=50, memory=10**7),
    },
    "threads": {"handler": "slow", "ordering": "key", "concurrency": 2},
    "tasks": {"handler": "slow_async", "ordering": "none", "concurrency": 2},
    "outputs": {"handler": "slow", "producing": ProducingTarget("at_least_once", "out", "rig", {}, 100, 1 << 20, 50)},
}


@pytest.fixture(params=FORMS.values(), ids=list(FORMS))
def form(request: pytest.FixtureRequest, processes: Rig) -> dict[str, Any]:
    processes.module(SLOW)
    given: dict[str, Any] = dict(request.param)
    return given


def backlog_before(directory: Path, line: str, *, behind: str = "") -> int:
    """Records of the backlog that came before the last line like that, and after the first like the other."""
    lines = seen(directory)
    last = len(lines) - 1 - lines[::-1].index(line)
    first = lines.index(behind) if behind else 0
    return sum(each.startswith("0@") for each in lines[first:last])


def test_a_partition_that_comes_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: dict[str, Any]
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    produce(kafka.bootstrap, topic, ["new"], 1)
    worker = processes.worker(form.pop("handler"), kafka.bootstrap, [topic], **form)
    worker.start(topic, {0: 0})
    wait_until(lambda: seen(processes.directory), "the backlog to be begun")
    worker.start(topic, {1: 0}, grant=2)
    wait_until(lambda: "1@0" in seen(processes.directory), "the new partition's record", 60)
    assert backlog_before(processes.directory, "1@0") < MANY
    # Nor does a revocation: what was fetched and not begun is let go of.
    worker.stop(1)
    stopped = worker.expect(FetcherStopped, 60)
    assert [each.grant for each in stopped.partitions] == [1]
    assert stopped.partitions[0].offset < BACKLOG


def test_a_retry_whose_wait_is_over_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: dict[str, Any]
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["once"], 1)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    worker = processes.worker(form.pop("handler"), kafka.bootstrap, [topic], **form)
    worker.start(topic, {0: 0, 1: 0})
    wait_until(lambda: seen(processes.directory).count("1@0") == 2, "the second try", 60)
    assert backlog_before(processes.directory, "1@0", behind="1@0") < MANY


def test_a_retry_topics_record_whose_time_has_come_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: dict[str, Any]
) -> None:
    later = RetryTopic(f"{topic}.later", 300)
    kafka.create_topic(topic, 1)
    kafka.create_topic(later.name, 2)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    topics = [topic, later.name]
    worker = processes.worker(form.pop("handler"), kafka.bootstrap, topics, retry_topics=[later], **form)
    worker.start(topic, {0: 0})
    wait_until(lambda: seen(processes.directory), "the backlog to be begun")
    produce(kafka.bootstrap, later.name, ["late"], 1)
    worker.start(later.name, {1: 0}, grant=2)
    wait_until(lambda: "1@0" in seen(processes.directory), "the record of the retry topic", 60)
    assert backlog_before(processes.directory, "1@0") < MANY
