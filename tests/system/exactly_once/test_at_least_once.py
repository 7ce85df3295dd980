"""Outputs that are acknowledged before their records count, with a real worker and a real broker. What becomes of
refused ones in every way of calling a handler `tests/contract/worker` shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from kunicorn.handler.config import DeadLetterTarget, ProducingTarget
from kunicorn.handler.dead_letters import read
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import Drain, FetcherStopped, StopFetcher
from tests.kafka import KafkaCluster
from tests.producers import of_outputs
from tests.system.bare_worker.rig import Rig, WorkerProcess
from tests.system.outputs import committed_outputs
from tests.system.producing import consumed, headers_of, produce, producer

Start = Callable[..., WorkerProcess]

HANDLERS = """
from kunicorn import Send

def copy(record):
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)

def picky(record):
    if record.value == b"large":
        return Send(value=b"x" * 2_000_000)
    if record.value == b"nowhere":
        return Send("there-is-no-such-topic", b"x")
    return Send(value=f"{record.partition}:{record.offset}")

ODD = {
    b"NUL in the topic": {"topic": "a\\0b"},
    b"half a character in the topic": {"topic": "a\\ud83d"},
    b"NUL in a header": {"headers": {"a\\0b": b"x"}},
    b"half a character in a header": {"headers": {"a\\ud83d": b"x"}},
}

def odd(record):
    return Send(value=f"{record.partition}:{record.offset}", **ODD.get(record.value, {}))

async def copy_async(record):
    yield Send(value=f"{record.partition}:{record.offset}", key=record.key)
"""


@pytest.fixture
def start(processes: Rig, kafka: KafkaCluster, topic: str) -> Start:
    """Starts a worker that has partition 0: `start("copy", on_failure="dead_letter")`."""
    kafka.create_topic(topic, 1)
    kafka.create_topic(f"{topic}.out", 1)
    kafka.create_topic(f"{topic}.letters", 1)
    processes.module(HANDLERS)

    def make(handler: str, **configure: Any) -> WorkerProcess:
        properties = of_outputs(
            bootstrap_servers=[kafka.bootstrap],
            client_id="rig",
            extra={"topic.metadata.propagation.max.ms": 500},
            buffer_memory=1 << 24,
        )
        target = ProducingTarget("at_least_once", f"{topic}.out", "rig", properties, 1000, 1 << 24, 5)
        letters = DeadLetterTarget(f"{topic}.letters", "rig", properties)
        worker = processes.worker(
            handler, kafka.bootstrap, [topic], producing=target, dead_letters=letters, **configure
        )
        worker.start(topic, {0: 0})
        return worker

    return make


def send(kafka: KafkaCluster, topic: str, *values: bytes) -> None:
    """These records, in order."""
    sender = producer(kafka.bootstrap)
    for value in values:
        sender.produce(topic, value)
    assert sender.flush(60) == 0


def test_what_is_consumed_has_its_output_in_the_topic_and_a_stop_waits_for_it(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    worker = start("copy")
    produce(kafka.bootstrap, topic, 3000)
    worker.consumed(1, 1)
    worker.tell(StopFetcher([1], None))
    (stopped,) = worker.expect(FetcherStopped).partitions
    outputs = committed_outputs(kafka.bootstrap, f"{topic}.out", 1)
    assert outputs == {f"0:{offset}": 1 for offset in range(stopped.offset)}
    worker.tell(Drain(0.0))
    assert worker.exit_status() == 0


def test_an_output_that_brokers_refuse_is_its_records_failure_and_all_others_are_sent(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    send(kafka, topic, b"fine", b"fine", b"large", b"fine", b"nowhere", b"fine")
    worker = start("picky", max_attempts=2, on_failure="dead_letter")
    worker.consumed(1, 6)
    letters = [read(headers_of(letter)) for letter in consumed(kafka.bootstrap, f"{topic}.letters", 2)]
    kind = "kunicorn.worker.refusals.NotDelivered"
    assert [(told.offset, told.cause.attempts, told.cause.type) for told in letters] == [(2, 2, kind), (4, 2, kind)]
    outputs = committed_outputs(kafka.bootstrap, f"{topic}.out", 1)
    assert set(outputs) == {f"0:{offset}" for offset in (0, 1, 3, 5)}
    assert (outputs["0:0"], outputs["0:1"]) == (1, 1), "only what came behind it is sent again"


def test_an_output_whose_names_no_client_can_write_is_its_records_failure_and_its_worker_lives(
    start: Start, kafka: KafkaCluster, topic: str
) -> None:
    odd = [
        b"NUL in the topic",
        b"half a character in the topic",
        b"NUL in a header",
        b"half a character in a header",
    ]
    send(kafka, topic, b"fine", *odd, b"fine")
    worker = start("odd", max_attempts=1, on_failure="dead_letter")
    worker.consumed(1, 6)
    letters = [read(headers_of(letter)) for letter in consumed(kafka.bootstrap, f"{topic}.letters", len(odd))]
    assert [(told.offset, told.cause.type) for told in letters] == [(at, "kunicorn.NotToBeSent") for at in (1, 2, 3, 4)]
    assert committed_outputs(kafka.bootstrap, f"{topic}.out", 1) == {"0:0": 1, "0:5": 1}
    assert worker.ping().handled == 2


@pytest.mark.parametrize("handler", ["copy", "copy_async"])
def test_with_several_in_hand_outputs_of_a_key_keep_its_order_and_what_is_consumed_is_there(
    start: Start, kafka: KafkaCluster, topic: str, handler: str
) -> None:
    sender = producer(kafka.bootstrap)
    for number in range(600):
        sender.produce(topic, b"v", f"k{number % 60}")
    assert sender.flush(60) == 0
    worker = start(handler, ordering="key", concurrency=20)
    worker.consumed(1, 300)
    worker.tell(StopFetcher([1], None))
    (stopped,) = worker.expect(FetcherStopped).partitions
    done = {*range(stopped.offset), *bitmap.read(stopped.offset, stopped.done)}
    outputs = consumed(kafka.bootstrap, f"{topic}.out", len(done))
    assert {int((each.value() or b"").split(b":")[1]) for each in outputs} == done
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for each in outputs:
        by_key[each.key() or b""].append(int((each.value() or b"").split(b":")[1]))
    assert all(offsets == sorted(offsets) for offsets in by_key.values())
    worker.tell(Drain(0.0))
    assert worker.exit_status() == 0
