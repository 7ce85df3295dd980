"""A whole worker with several records in hand, in this process: its runner, crews and sender are the real ones, the
brokers are in memory."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.pipes import clock
from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import Configure, FetcherStart, FetcherStopped, FromWorker
from kunicorn.pipes.orders import DeadLetterTarget, HandlerOrder, ProducingTarget
from kunicorn.testing import record
from kunicorn.testing.consumer import MemoryConsumer, MemoryLog
from kunicorn.testing.producer import MemoryProducer, SentRecord
from kunicorn.testing.records import GivenRecord, message_of, placed
from kunicorn.topics import NO_EPOCH
from kunicorn.worker.main import Makers, assemble
from tests.unit.worker import crowded_handlers
from tests.unit.worker.crowded_handlers import LARGE
from tests.waiting import wait_until


class PickyProducer(MemoryProducer):
    """Refuses what is marked as too large, as brokers do."""

    def produce(self, topic: str, *values: Any) -> None:
        """See `MemoryProducer`; by position, as workers do."""
        *_, told, _, _, headers = values
        if topic == "out" and dict(headers or ())["large"] == LARGE:
            told(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), Message(topic=topic, partition=0, offset=0))
            return
        super().produce(topic, *values)


class Worker:
    """Handles records of one partition for each topic, until all are done and it is drained."""

    producer = PickyProducer

    def __init__(self, *handlers: HandlerOrder, sends: bool = False) -> None:
        self.ledger = Ledger.create(8)
        self.ledger.lease_ns = clock.now_ns() + 10**12
        self.sent: list[SentRecord] = []
        self.reports: list[FromWorker] = []
        self._configure = Configure(
            worker=0,
            group="g",
            handlers=list(handlers),
            client={},
            topics=[],
            log_level="info",
            log_format="text",
            producing=ProducingTarget("at_least_once", "out", "g", {}, 1000, 1 << 24, 2) if sends else None,
            dead_letters=DeadLetterTarget("letters", "g", {}),
        )

    def handle(self, records: Iterable[GivenRecord], **first: Any) -> None:
        """Returns when every record is consumed, by the ledger, and everything is reported. `first`: what the first
        topic's `FetcherStart` says."""
        given = placed(list(records), "t")
        log = MemoryLog(map(message_of, given))
        makers = Makers(
            consumer=lambda properties, logger: MemoryConsumer(log, time.sleep),  # type: ignore[arg-type, return-value]
            producer=lambda properties, logger: self.producer(self.sent),  # type: ignore[arg-type, return-value]
        )
        made = assemble(self._configure, self.ledger, self.reports.append, makers)
        topics = list(dict.fromkeys(each.tp.topic for each in given))
        starts = [FetcherStart(n, n, topic, 0, 0, NO_EPOCH) for n, topic in enumerate(topics, 1)]
        made.lifecycle.start([msgspec.structs.replace(starts[0], **first), *starts[1:]])

        def drain_when_done() -> None:
            try:
                ends = {n: log.end((topic, 0)) for n, topic in enumerate(topics, 1)}
                wait_until(lambda: all(self.ledger.read(n, n).consumed.offset == end for n, end in ends.items()), "all")
            finally:
                made.lifecycle.drain()

        watching = threading.Thread(target=drain_when_done)
        watching.start()
        made.runner.run()
        watching.join()
        for handling in made.handlings.every:
            handling.tear_down()
        stopped = [each for report in self.reports if isinstance(report, FetcherStopped) for each in report.partitions]
        assert {each.grant: each.offset for each in stopped} == {
            n: log.end((topic, 0)) for n, topic in enumerate(topics, 1)
        }


def order(handler: str, ordering: str, concurrency: int | None, *topics: str, **more: Any) -> HandlerOrder:
    place = f"{crowded_handlers.__name__}:{handler}"
    return HandlerOrder(
        place, "record", {}, 100, 2, 1, 10, ordering=ordering, concurrency=concurrency, topics=list(topics), **more
    )


@pytest.fixture(autouse=True)
def notes() -> None:
    crowded_handlers.forget()


@pytest.mark.parametrize("handler", ["copy", "copy_async"])
@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_every_record_has_its_output_once_and_outputs_of_a_key_are_in_its_order(handler: str, ordering: str) -> None:
    worker = Worker(order(handler, ordering, 10), sends=True)
    count = 60 if ordering == "partition" else 400
    worker.handle(record("v", key=f"k{number % 20}") for number in range(count))
    assert sorted(int(each.value or b"") for each in worker.sent) == list(range(count))
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for each in worker.sent:
        by_key[each.key].append(int(each.value or b""))
    if ordering != "none":
        assert all(offsets == sorted(offsets) for offsets in by_key.values())
    assert crowded_handlers.most["t"] == 1 if ordering == "partition" else 1 < crowded_handlers.most["t"] <= 10


def test_a_record_whose_output_is_refused_is_tried_again_alone_and_becomes_a_dead_letter() -> None:
    worker = Worker(order("copy", "key", 5, on_failure="dead_letter"), sends=True)
    worker.handle(record(LARGE if number == 7 else "v", key=f"k{number % 4}") for number in range(40))
    (letter,) = [each for each in worker.sent if each.is_letter]
    assert letter.error_type == "kunicorn.worker.refusals.NotDelivered"
    outputs = [int(each.value or b"") for each in worker.sent if not each.is_letter]
    assert sorted(outputs) == [number for number in range(40) if number != 7]
    tries = [offset for _, offset in crowded_handlers.begun]
    assert (tries.count(7), len(tries)) == (2, 41), "what came behind it is not handled again"
    of_its_key = [offset for offset in dict.fromkeys(tries) if offset % 4 == 3]
    assert of_its_key == sorted(of_its_key)


def test_each_of_several_handlers_has_as_many_in_hand_as_it_asks_for_and_waits_for_no_other() -> None:
    worker = Worker(
        order("wait", "none", 4, "threads"),
        order("wait_async", "key", 3, "tasks"),
        order("wait", "partition", None, "one"),
    )
    topics = ("threads", "tasks", "one")
    worker.handle(record("v", key=f"k{number}", topic=topic) for number in range(20) for topic in topics)
    assert crowded_handlers.most == {"threads": 4, "tasks": 3, "one": 1}
    assert len(crowded_handlers.begun) == 60
