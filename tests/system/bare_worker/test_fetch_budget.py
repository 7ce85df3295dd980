"""Several handlers in one worker share what it fetches ahead: one that is slow, stuck or fails starves no other."""

from __future__ import annotations

from itertools import product

import pytest
from confluent_kafka import Producer

from kunicorn.ipc.messages import FetcherStart, StartFetcher
from kunicorn.positions import NO_EPOCH
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Rig, handler_of
from tests.waiting import wait_until

HANDLERS = """
import time

from tests.system.bare_worker.noting import HERE


def stuck(record):
    while not (HERE / "go").exists():
        time.sleep(0.01)


def slow(record):
    if not (HERE / "go").exists():
        time.sleep(0.2)


def failing(record):
    if not (HERE / "go").exists():
        raise ValueError("not yet")


def quick(record):
    pass
"""
AHEAD = 1 << 20
"""What the worker fetches ahead; the others' topic has sixteen times as much."""
PARTITIONS, EACH, SIZE = 4, 1000, 4000
QUICK_PARTITIONS, QUICK_EACH = 2, 2000


def fill(kafka: KafkaCluster, topic: str, partitions: int, each: int, size: int) -> None:
    """Records with many keys."""
    kafka.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 10**6})
    for number, partition in product(range(each), range(partitions)):
        producer.produce(topic, b"x" * size, f"k{number}", partition=partition)
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("other", "ordering"),
    [
        ("stuck", "key"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in product(("stuck", "slow", "failing"), ("key", "partition"))
            if each != ("stuck", "key")
        ),
    ],
)
def test_a_handler_that_falls_behind_leaves_the_other_what_it_needs_and_gets_its_own_in_the_end(
    processes: Rig, kafka: KafkaCluster, topic: str, other: str, ordering: str
) -> None:
    processes.module(HANDLERS)
    behind, ahead = f"behind-{topic}", f"ahead-{topic}"
    fill(kafka, behind, PARTITIONS, EACH, SIZE)
    fill(kafka, ahead, QUICK_PARTITIONS, QUICK_EACH, 100)
    # Two hands each; they try for as long as it takes.
    rules = {"max_attempts": 10**6, "ordering": ordering, "concurrency": 2}
    handlers = [handler_of(other, behind, **rules), handler_of("quick", ahead, **rules)]
    worker = processes.worker(other, kafka.bootstrap, [behind, ahead], handlers=handlers, ahead_bytes=AHEAD)
    worker.tell(StartFetcher([FetcherStart(n + 1, n + 1, behind, n, 0, NO_EPOCH) for n in range(PARTITIONS)]))
    wait_until(lambda: worker.ping().in_hand is not None, "it to begin")
    quick = [FetcherStart(n + 11, n + 11, ahead, n, 0, NO_EPOCH) for n in range(QUICK_PARTITIONS)]
    worker.tell(StartFetcher(quick))
    for start in quick:
        worker.consumed(start.grant, QUICK_EACH)
    assert all(worker.slot(grant).consumed.offset < EACH / 2 for grant in range(1, PARTITIONS + 1)), "far behind"
    (processes.directory / "go").touch()
    for grant in range(1, PARTITIONS + 1):
        worker.consumed(grant, EACH)
