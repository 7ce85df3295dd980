"""A worker that is busy with a backlog looks after whoever else is due within a moment, though its client has fetched a
lot of that backlog before: on a real broker.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kunicorn.handler.config import Batching, ProducingTarget, RetryTopic
from kunicorn.ipc.messages import FetcherStopped
from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.bare_worker.rig import Rig, WorkerProcess
from tests.system.bare_worker.traffic import produce, seen
from tests.waiting import wait_until

BACKLOG = 20_000
MANY = 1000
"""So many records of the backlog take five seconds at least, and all of it a hundred: whoever waits for fewer does not
wait for what the client has of it."""
ENOUGH = 100
"""While so many are handled, for half a second at least, a client fetches all that it has room for."""
SLOW = """
import asyncio
import time

from tests.system.bare_worker import noting
from tests.system.bare_worker.noting import HERE


def note(record):
    noting.note(f"{record.partition}@{record.offset}")
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
    "tasks by partition": {"handler": "slow_async"},
    "batches": {"handler": "slow_batch", "mode": "batch", "batch_max_records": 5},
    "fuller batches": {
        "handler": "slow_batch",
        "mode": "batch",
        "batch_max_records": 5,
        "batching": Batching(batch_max_ms=50, memory_bytes=10**7),
    },
    "threads": {"handler": "slow", "ordering": "key", "concurrency": 2},
    "tasks": {"handler": "slow_async", "ordering": "none", "concurrency": 2},
    "outputs": {"handler": "slow", "producing": ProducingTarget("at_least_once", "out", "rig", {}, 100, 1 << 20, 50)},
}


LITTLE, ALL = 200_000, 16 << 20
"""Bytes that the worker keeps of what was fetched and is not begun: of a little of the backlog, or of all of it."""
Cell = tuple[str, str, int]
CORE: list[Cell] = [
    ("one record", "librdkafka", LITTLE),
    ("one record", "own", LITTLE),
    ("threads", "librdkafka", LITTLE),
    ("threads", "own", LITTLE),
    ("outputs", "librdkafka", ALL),
    ("fuller batches", "own", ALL),
]
"""A call keeps the loop, or does not, or has outputs on their way; each client does what it is asked; there is room or
there is not. `test_lateness` has every way of calling."""
CORE_OF_RETRIES: list[Cell] = [
    ("one record", "librdkafka", ALL),
    ("threads", "own", ALL),
    ("outputs", "librdkafka", ALL),
]


def cells(core: list[Cell], *rooms: int) -> pytest.MarkDecorator:
    """Each form over each fetcher with each room, those beyond the core at length."""
    every = product(FORMS, ("librdkafka", "own"), rooms)
    return pytest.mark.parametrize(("form", "processes", "room"), rest_long(every, core), indirect=["processes"])


def worker_of(processes: Rig, kafka: KafkaCluster, form: str, room: int, *topics: str, **more: Any) -> WorkerProcess:
    """One that calls a handler of that form."""
    given = dict(FORMS[form])
    processes.module(SLOW)
    return processes.worker(given.pop("handler"), kafka.bootstrap, [*topics], ahead_bytes=room, **given, **more)


def backlog_before(directory: Path, line: str, *, behind: str = "") -> int:
    """Records of the backlog that came before the last line like that, and after the first like the other."""
    lines = seen(directory)
    last = len(lines) - 1 - lines[::-1].index(line)
    first = lines.index(behind) if behind else 0
    return sum(each.startswith("0@") for each in lines[first:last])


@cells(CORE, LITTLE, ALL)
@pytest.mark.scenario("0093 holb")
def test_a_partition_that_comes_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: str, room: int
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    produce(kafka.bootstrap, topic, ["new"], 1)
    worker = worker_of(processes, kafka, form, room, topic)
    worker.start(topic, {0: 0})
    wait_until(lambda: len(seen(processes.directory)) > ENOUGH, "the client to have fetched the backlog")
    worker.start(topic, {1: 0}, grant=2)
    wait_until(lambda: "1@0" in seen(processes.directory), "the new partition's record")
    assert backlog_before(processes.directory, "1@0") < MANY
    # Nor does a revocation: what was fetched and not begun is let go of.
    worker.stop(1)
    stopped = worker.expect(FetcherStopped)
    assert [each.grant for each in stopped.partitions] == [1]
    assert stopped.partitions[0].offset < BACKLOG
    # The backlog goes on where it was, each record once, whatever the client threw away of it.
    worker.start(topic, {0: stopped.partitions[0].offset}, grant=3)
    worker.consumed(3, stopped.partitions[0].offset + ENOUGH)
    lines = [line for line in seen(processes.directory) if line.startswith("0@")]
    assert len(lines) == len(set(lines))
    assert {f"0@{offset}" for offset in range(worker.slot(3).consumed.offset)} <= {*seen(processes.directory)}


@cells(CORE_OF_RETRIES, ALL)
def test_a_retry_whose_wait_is_over_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: str, room: int
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, ["once"], 1)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    worker = worker_of(processes, kafka, form, room, topic)
    worker.start(topic, {0: 0, 1: 0})
    wait_until(lambda: seen(processes.directory).count("1@0") == 2, "the second try")
    assert backlog_before(processes.directory, "1@0", behind="1@0") < MANY


@cells(CORE, LITTLE, ALL)
def test_a_retry_topics_record_whose_time_has_come_waits_for_no_backlog(
    processes: Rig, kafka: KafkaCluster, topic: str, form: str, room: int
) -> None:
    later = RetryTopic(f"{topic}.later", 1000)
    kafka.create_topic(topic, 1)
    kafka.create_topic(later.name, 2)
    produce(kafka.bootstrap, topic, map(str, range(BACKLOG)), 0)
    worker = worker_of(processes, kafka, form, room, topic, later.name, retry_topics=[later])
    worker.start(topic, {0: 0})
    worker.start(later.name, {1: 0}, grant=2)
    wait_until(lambda: len(seen(processes.directory)) > ENOUGH, "the client to have fetched the backlog")
    produce(kafka.bootstrap, later.name, ["late"], 1)
    before = sum(each.startswith("0@") for each in seen(processes.directory))
    wait_until(lambda: "1@0" in seen(processes.directory), "the record of the retry topic")
    assert backlog_before(processes.directory, "1@0") - before < MANY
