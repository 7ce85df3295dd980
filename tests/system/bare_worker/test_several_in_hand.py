"""A real worker has several of a real broker's records in hand: threads of a function, tasks of an async one."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kunicorn.ipc.bitmap import written
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.messages import (
    DrainOver,
    FetcherStart,
    FetcherStopped,
    StartFetcher,
    TimedOut,
)
from tests.fakes.counts import counts
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import (
    OVER_BOTH_FETCHERS,
    OWN_AT_LENGTH,
    Rig,
    WorkerProcess,
)
from tests.system.bare_worker.traffic import seen
from tests.waiting import wait_until

HANDLERS = '''
import asyncio
import os
import random
import time

from tests.system.bare_worker import noting
from tests.system.bare_worker.noting import HERE


def note(word, record):
    noting.note(f"{word} {record.offset} {(record.key or b'').decode()}")


def obey(record):
    """`wait`: until the file "go" exists. `die`: end the process."""
    note("begin", record)
    if record.value == b"die":
        os._exit(9)
    if record.value == b"wait":
        while not (HERE / "go").exists():
            time.sleep(0.005)
    else:
        time.sleep(random.random() * 0.003)
    note("end", record)


async def obey_async(record):
    note("begin", record)
    try:
        if record.value == b"wait":
            while not (HERE / "go").exists():
                await asyncio.sleep(0.005)
        else:
            await asyncio.sleep(random.random() * 0.003)
    finally:
        note("end" if record.value != b"wait" or (HERE / "go").exists() else "left", record)
'''
BOTH = pytest.mark.parametrize("handler", ["obey", "obey_async"])


def worker_of(processes: Rig, kafka: KafkaCluster, topic: str, handler: str, **configured: object) -> WorkerProcess:
    kafka.create_topic(topic, 1)
    processes.module(HANDLERS)
    settings: dict[str, object] = {"ordering": "key", "concurrency": 20, **configured}
    return processes.worker(handler, kafka.bootstrap, [topic], **settings)


def send(kafka: KafkaCluster, topic: str, *records: tuple[str | None, str]) -> None:
    """Key and value of each, to partition 0."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for key, value in records:
        producer.produce(topic, value.encode(), key, partition=0)
    assert producer.flush(60) == 0


def told(directory: Path, word: str) -> list[int]:
    """Offsets of which the handlers noted the word, in order."""
    return [int(line.split()[1]) for line in seen(directory) if line.startswith(f"{word} ")]


@BOTH
@OVER_BOTH_FETCHERS
def test_records_of_a_key_are_handled_in_order_and_those_of_others_beside_them(
    processes: Rig, kafka: KafkaCluster, topic: str, handler: str
) -> None:
    worker = worker_of(processes, kafka, topic, handler)
    send(kafka, topic, *((f"k{number % 7}", "v") for number in range(1500)))
    worker.start(topic, {0: 0})
    worker.consumed(1, 1500)
    assert sorted(told(processes.directory, "end")) == list(range(1500))
    by_key: dict[str, list[str]] = defaultdict(list)
    most, running = 0, 0
    for line in seen(processes.directory):
        word, offset, key = line.split()
        by_key[key].append(f"{word} {offset}")
        running += 1 if word == "begin" else -1
        most = max(most, running)
    assert most == 7
    for key, lines in by_key.items():
        mine = range(int(key[1:]), 1500, 7)
        assert lines == [f"{word} {offset}" for offset in mine for word in ("begin", "end")]
    pong = worker.ping()
    assert (pong.handled, pong.in_flight, worker.slot(1).handled) == (1500, 0, 1500)


@OVER_BOTH_FETCHERS
def test_a_killed_worker_repeats_only_what_was_in_hand(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    worker = worker_of(processes, kafka, topic, "obey")
    slow = [5, 40, 77]
    send(kafka, topic, *((f"k{n}", "wait" if n in slow else "v") for n in range(200)))
    worker.start(topic, {0: 0})
    wait_until(lambda: len(told(processes.directory, "end")) == 197, "all but three")

    def those_three() -> bool:
        hand = worker.ping().in_hand
        return hand is not None and (hand.offset, hand.count) == (5, 3)

    wait_until(those_three, "the three alone to be in hand")
    worker.kill()
    reading = worker.slot(1)
    done = worker.ledger.done(1).from_offset(reading.consumed.offset)
    assert reading.consumed.offset == 5
    assert worker.ledger.in_hand(1).from_offset(5) - done == set(slow)
    (processes.directory / "go").touch()
    successor = processes.worker("obey", kafka.bootstrap, [topic], ordering="key", concurrency=20)
    successor.tell(StartFetcher([FetcherStart(1, 1, topic, 0, 5, -1, done=written(5, done))]))
    successor.consumed(1, 200)
    assert sorted(told(processes.directory, "begin")) == sorted([*range(200), *slow])


@OWN_AT_LENGTH
def test_the_drain_deadline_interrupts_every_call(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    worker = worker_of(processes, kafka, topic, "obey_async")
    send(kafka, topic, *((f"k{n}", "wait") for n in range(4)))
    worker.start(topic, {0: 0})
    wait_until(lambda: len(told(processes.directory, "begin")) == 4, "all in hand")
    worker.stop(1)
    worker.ping()
    worker.tell(DrainOver([1]))
    worker.signal(signal.SIGUSR1)
    assert [stopped.offset for stopped in worker.expect(FetcherStopped).partitions] == [0]
    assert sorted(told(processes.directory, "left")) == [0, 1, 2, 3]


@BOTH
@OWN_AT_LENGTH
def test_a_call_that_takes_too_long_is_interrupted_alone_and_tried_again(
    processes: Rig, kafka: KafkaCluster, topic: str, handler: str
) -> None:
    worker = worker_of(processes, kafka, topic, handler)
    send(kafka, topic, ("a", "wait"), ("b", "wait"))
    worker.start(topic, {0: 0})
    wait_until(lambda: len(told(processes.directory, "begin")) == 2, "both in hand")
    worker.tell(TimedOut(1, 1))
    wait_until(lambda: told(processes.directory, "begin").count(1) == 2, "the next try")
    assert told(processes.directory, "begin").count(0) == 1
    (processes.directory / "go").touch()
    worker.consumed(1, 2)


@BOTH
@OWN_AT_LENGTH
def test_all_calls_that_take_too_long_are_interrupted_together_and_tried_again(
    processes: Rig, kafka: KafkaCluster, topic: str, handler: str
) -> None:
    worker = worker_of(processes, kafka, topic, handler)
    send(kafka, topic, ("a", "wait"), ("b", "wait"))
    worker.start(topic, {0: 0})
    wait_until(lambda: len(told(processes.directory, "begin")) == 2, "both in hand")
    worker.tell(TimedOut(1, 0, now_ns()))
    wait_until(lambda: sorted(told(processes.directory, "begin")) == [0, 0, 1, 1], "the next try of both")
    (processes.directory / "go").touch()
    worker.consumed(1, 2)
    (counted,) = counts(worker.ping())
    assert counted.timed_out == 1, "the supervisor counts the other one, which it named"


@OWN_AT_LENGTH
def test_a_suspect_is_tried_alone_and_poison_is_kept_from_the_handler_wherever_it_is(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = worker_of(processes, kafka, topic, "obey", on_failure="skip")
    send(kafka, topic, *((f"k{n}", "die" if n == 30 else "v") for n in range(60)))
    worker.tell(StartFetcher([FetcherStart(1, 1, topic, 0, 0, -1, suspects=[30])]))
    assert worker.exit_status() == 9
    first = worker.slot(1).consumed.offset
    done = worker.ledger.done(1).from_offset(first)
    assert worker.ledger.in_hand(1).from_offset(first) - done == {30}
    successor = processes.worker("obey", kafka.bootstrap, [topic], ordering="key", concurrency=20, on_failure="skip")
    start = FetcherStart(
        1, 1, topic, 0, first, -1, done=written(first, done), poison="2 died", poison_deaths=2, poison_offset=30
    )
    successor.tell(StartFetcher([start]))
    successor.consumed(1, 60)
    assert sorted(told(processes.directory, "begin")) == list(range(60))


@OVER_BOTH_FETCHERS
def test_what_is_kept_ahead_is_bounded_and_a_slow_key_holds_up_no_other_partition(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    processes.module(HANDLERS)
    worker = processes.worker("obey", kafka.bootstrap, [topic], ordering="key", concurrency=4, ahead_bytes=100 * 700)
    send(kafka, topic, ("slow", "wait"), *(("slow", "v") for _ in range(300)))
    worker.start(topic, {0: 0, 1: 0})
    wait_until(lambda: told(processes.directory, "begin") == [0], "the slow one")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(300):
        producer.produce(topic, b"v", f"k{n}", partition=1)
    assert producer.flush(60) == 0
    worker.consumed(2, 300)
    (processes.directory / "go").touch()
    worker.consumed(1, 301)
    assert len(told(processes.directory, "begin")) == 601


@OWN_AT_LENGTH
def test_a_worker_with_one_record_in_hand_passes_over_what_one_with_several_had_done(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    worker = worker_of(processes, kafka, topic, "obey", ordering="partition", concurrency=None)
    send(kafka, topic, *((f"k{n}", "v") for n in range(6)))
    worker.tell(StartFetcher([FetcherStart(1, 1, topic, 0, 0, -1, done=written(0, {1, 2, 5}))]))
    worker.consumed(1, 6)
    assert told(processes.directory, "begin") == [0, 3, 4]
