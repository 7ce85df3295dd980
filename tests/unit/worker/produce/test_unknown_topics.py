"""Outputs for topics that are not there: the real client and the real sender, on librdkafka's own brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.librdkafka.properties import Property, letter_properties, producer_properties
from kunicorn.worker.produce.letters import LetterSender
from kunicorn.worker.produce.outbox import Entry, GivenUp, Outbox
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Acknowledging, Channel, LetterRefused, NotDelivered, Sender
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import outbox, taken

DELIVERY_TIMEOUT = 60.0
WITHIN = DELIVERY_TIMEOUT / 4


class Table:
    """What senders tell."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.rewound: list[int] = []

    def delivered(self, reached: Mapping[int, int]) -> None:
        self.done += reached

    def rewind(self, refusals: Mapping[int, int]) -> None:
        self.rewound += refusals


@pytest.fixture
def brokers() -> Iterator[str]:
    """A broker with the topic `there`."""
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "x:1", "log_level": 0})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    cluster.produce("there", b"")
    assert cluster.flush(10) == 0
    yield f"{broker.host}:{broker.port}"
    del cluster


def outputs(brokers: str, box: Outbox, table: Table) -> Sender:
    properties = producer_properties(
        bootstrap_servers=[brokers],
        client_id="c",
        security={},
        consumers_extra={},
        extra={},
        transactional_id=None,
        transaction_timeout_ms=60_000,
        delivery_timeout_ms=int(DELIVERY_TIMEOUT * 1000),
        linger_ms=5,
        compression_type="none",
        acks="all",
        buffer_memory=1 << 25,
    )
    channel = Channel(maker(properties), RequestSizes(properties))
    return Acknowledging(channel, box, table, SendTelemetry(Counters()))


def letters(brokers: str, box: Outbox, table: Table) -> Sender:
    properties = letter_properties(
        bootstrap_servers=[brokers],
        client_id="c",
        security={},
        extra={},
        delivery_timeout_ms=int(DELIVERY_TIMEOUT * 1000),
    )
    return LetterSender(maker(properties), RequestSizes(properties), box, table, SendTelemetry(Counters()))


def maker(properties: Mapping[str, Property]) -> Callable[[], Any]:
    return lambda: Producer({**properties, "log_level": 0})


@pytest.mark.parametrize(("kind", "refused"), [(outputs, NotDelivered), (letters, LetterRefused)])
def test_an_output_for_a_topic_that_is_not_there_is_refused_long_before_it_would_be_late(
    kind: Callable[[str, Outbox, Table], Sender], refused: type[Exception], brokers: str
) -> None:
    given_up = GivenUp(dead_letters("nope"), Cause("ValueError", "no", "", 1)) if kind is letters else None
    box, table = outbox(), Table()
    sender = kind(brokers, box, table)
    origins = [FakeOrigin(1), FakeOrigin(2)]
    for origin, topic in zip(origins, ["there", "nope"], strict=True):
        box.put([Entry(origin, 0, 1, [Outgoing(topic, b"v", None, None, -1, 0)], given_up)], 1, 1)
    sending = threading.Thread(target=sender.deliver, args=[taken(box)], daemon=True)
    sending.start()
    sending.join(WITHIN)
    assert not sending.is_alive()
    assert (table.done, table.rewound) == ([1], [2])
    ((_, _, error),) = origins[1].refusals
    assert isinstance(error, refused)
    assert "create the topic" in str(error)
