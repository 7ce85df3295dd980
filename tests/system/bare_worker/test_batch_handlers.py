"""Batches that wait, fail in part, or hold what cannot be decoded, with a real worker and a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kunicorn.handler.config import Batching
from kunicorn.handler.dead_letters import read
from kunicorn.ipc.messages import FetcherStopped
from tests.fakes.counts import counts
from tests.kafka import KafkaCluster
from tests.system.bare_worker.letters import letter_target, letters, letters_topic
from tests.system.bare_worker.rig import OVER_BOTH_FETCHERS, OWN_AT_LENGTH, Rig, WorkerProcess
from tests.system.bare_worker.traffic import produce, seen
from tests.system.producing import headers_of
from tests.waiting import wait_until

HANDLERS = """
import dataclasses

from kunicorn import Batch, BatchError
from tests.system.bare_worker.noting import HERE, note


@dataclasses.dataclass
class Order:
    id: int


def see(batch):
    note(",".join(map(str, batch.offsets())))


def insert(batch):
    # Every second one at once, then the others, as a database's bulk insert might.
    note(",".join(map(str, batch.offsets())))
    done = [record for record in batch if record.value == b"early"]
    for record in batch:
        if record.value == b"fail" or (record.value == b"once" and not (HERE / "again").exists()):
            (HERE / "again").touch()
            raise BatchError(done=done) from KeyError("who")
        done.append(record)


def take(orders: list[Order], batch: Batch):
    note(",".join(f"{record.offset}={order.id}" for order, record in zip(orders, batch)))
"""

BATCH = {"mode": "batch", "max_attempts": 2, "on_failure": "dead_letter"}
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(processes: Rig, kafka: KafkaCluster, topic: str) -> Start:
    """Starts a worker that has every partition."""
    processes.module(HANDLERS)

    def make(partitions: int, handler: str, **configure: Any) -> WorkerProcess:
        target = letter_target(kafka, topic, delivery_timeout_ms=30_000)
        kafka.create_topic(topic, partitions)
        kafka.create_topic(letters_topic(topic), 1)
        worker = processes.worker(handler, kafka.bootstrap, [topic], dead_letters=target, **{**BATCH, **configure})
        worker.start(topic, dict.fromkeys(range(partitions), 0))
        return worker

    return make


@OVER_BOTH_FETCHERS
def test_of_a_batch_that_failed_in_part_only_the_failed_record_is_tried_again_and_nothing_done_comes_twice(
    start: Start, processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = start(1, "insert", batching=Batching(batch_max_ms=500, memory_bytes=1 << 20), retry_backoff_ms=1)
    produce(kafka.bootstrap, topic, ["a", "b", "once", "c", "early", "fail", "d", "early"])
    worker.consumed(1, 8)
    calls = [[int(offset) for offset in line.split(",")] for line in seen(processes.directory)]
    # The record that failed alone; then the rest, without what was done ahead.
    assert calls[:2] == [[0, 1, 2, 3, 4, 5, 6, 7], [2]]
    assert calls[2] == [3, 5, 6]
    assert calls[3:] == [[5], [6]]
    (letter,) = letters(kafka, topic, 1)
    told = read(headers_of(letter))
    assert (letter.value(), told.offset, told.cause.type, told.cause.attempts) == (b"fail", 5, "KeyError", 2)
    (counted,) = counts(worker.ping())
    assert (counted.records, counted.dead_letters) == (7, {"attempts": 1})
    assert worker.slot(1).handled == 7


@OWN_AT_LENGTH
def test_a_batch_waits_for_more_but_a_stop_does_not_wait_for_it(
    start: Start, processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = start(2, "see", batch_max_records=3, batching=Batching(batch_max_ms=600_000, memory_bytes=1 << 20))
    produce(kafka.bootstrap, topic, ["a", "b"], 0)
    produce(kafka.bootstrap, topic, ["a", "b", "c", "d"], 1)
    worker.consumed(2, 3)
    assert worker.slot(1).consumed.offset == 0
    produce(kafka.bootstrap, topic, ["c"], 0)
    worker.consumed(1, 3)
    produce(kafka.bootstrap, topic, ["d"], 0)
    wait_until(lambda: worker.ping().handled == 6, "six to be handled")
    worker.stop(1, 2)
    stopped = {each.grant: each.offset for each in worker.expect(FetcherStopped).partitions}
    assert stopped == {1: 3, 2: 3}
    assert sorted(seen(processes.directory)) == ["0,1,2", "0,1,2"]


@OVER_BOTH_FETCHERS
def test_what_cannot_be_decoded_becomes_a_dead_letter_at_once_and_the_rest_of_its_batch_is_handled(
    start: Start, processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = start(1, "take", batching=Batching(batch_max_bytes=40, batch_max_ms=300, memory_bytes=1 << 20))
    good = [f'{{"id": {number}}}' for number in range(8)]
    produce(kafka.bootstrap, topic, [*good[:3], "secret", *good[4:]])
    worker.consumed(1, 8)
    assert sorted(",".join(seen(processes.directory)).split(",")) == [f"{n}={n}" for n in range(8) if n != 3]
    (letter,) = letters(kafka, topic, 1)
    told = read(headers_of(letter))
    assert (letter.value(), told.cause.type, told.cause.attempts) == (b"secret", "kunicorn.Undecodable", 1)
    assert told.cause.message.startswith(f"{topic}-0@3: its value is no JSON of Order: ")
    assert "secret" not in told.cause.message
