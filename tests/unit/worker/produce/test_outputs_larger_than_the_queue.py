"""Outputs for which the client's own queue has no room, however empty it is: the real client and the real sender."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from confluent_kafka import Producer

from kunicorn.handler.outputs import Outgoing
from kunicorn.librdkafka.properties import producer_properties
from kunicorn.worker.produce.outbox import Entry
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Acknowledging, Channel, NotDelivered
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.fakes.origins import FakeOrigin
from tests.unit.worker.produce.output_batches import outbox, taken

WITHIN = 30.0
SMALLEST_QUEUE = 1024 * 1024
NOWHERE = "127.0.0.1:1"


class Table:
    """What the sender tells."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.rewound: list[int] = []

    def delivered(self, reached: Mapping[int, int]) -> None:
        self.done += reached

    def rewind(self, refusals: Mapping[int, int]) -> None:
        self.rewound += refusals


def test_an_output_that_is_larger_than_the_clients_queue_is_refused_as_too_large() -> None:
    properties = producer_properties(
        bootstrap_servers=[NOWHERE],
        client_id="c",
        security={},
        consumers_extra={},
        extra={},
        transactional_id=None,
        transaction_timeout_ms=60_000,
        delivery_timeout_ms=600_000,
        linger_ms=5,
        compression_type="none",
        acks="all",
        buffer_memory=1,
    )
    channel = Channel(lambda: Producer({**properties, "log_level": 0}), RequestSizes(properties))
    box, table, origin = outbox(nbytes=10 * SMALLEST_QUEUE), Table(), FakeOrigin(1)
    sender = Acknowledging(channel, box, table, SendTelemetry(Counters()))
    box.put([Entry(origin, 0, 1, [Outgoing("out", bytes(2 * SMALLEST_QUEUE), None, None, -1, 0)])], 1, 1)
    sending = threading.Thread(target=sender.deliver, args=[taken(box)], daemon=True)
    sending.start()
    sending.join(WITHIN)
    assert not sending.is_alive()
    assert (table.done, table.rewound) == ([], [1])
    ((_, _, error),) = origin.refusals
    assert isinstance(error, NotDelivered)
    assert "raise producing.buffer_memory, of which this is more than twice" in str(error)
