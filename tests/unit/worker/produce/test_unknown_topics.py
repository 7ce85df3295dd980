"""Outputs for topics that are not there: the real client and the real sender, on librdkafka's own brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.librdkafka.properties import letter_properties
from kunicorn.worker.produce.letters import LetterSender
from kunicorn.worker.produce.outbox import Entry, GivenUp, Outbox
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import LetterRefused, NotDelivered, Sender
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import outbox, taken
from tests.unit.worker.produce.real_senders import DELIVERY_TIMEOUT_MS, Table, acknowledging, maker

WITHIN = DELIVERY_TIMEOUT_MS / 1000 / 2


@pytest.fixture
def brokers() -> Iterator[str]:
    """A broker with the topic `there`."""
    cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "x:1", "log_level": 0})
    (broker,) = cluster.list_topics(timeout=60).brokers.values()
    cluster.produce("there", b"")
    assert cluster.flush(60) == 0
    yield f"{broker.host}:{broker.port}"
    del cluster


def outputs(brokers: str, box: Outbox, table: Table) -> Sender:
    return acknowledging(brokers, box, table, buffer_memory=1 << 25)


def letters(brokers: str, box: Outbox, table: Table) -> Sender:
    properties = letter_properties(
        bootstrap_servers=[brokers],
        client_id="c",
        security={},
        extra={},
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )
    return LetterSender(maker(properties), RequestSizes(properties), box, table, SendTelemetry(Counters()))


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
