"""The real client and the real sender, for brokers that a test has, or that are nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Producer

from kunicorn.librdkafka.properties import Property
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Acknowledging, Channel, Sender
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.producers import of_outputs

DELIVERY_TIMEOUT_MS = 60_000


class Table:
    """What senders tell."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.rewound: list[int] = []

    def delivered(self, reached: Mapping[int, int]) -> None:
        self.done += reached

    def rewind(self, refusals: Mapping[int, int]) -> None:
        self.rewound += refusals


def maker(properties: Mapping[str, Property]) -> Callable[[], Any]:
    return lambda: Producer({**properties, "log_level": 0})


def acknowledging(brokers: str, box: Outbox, table: Table, *, buffer_memory: int) -> Sender:
    """Of outputs, at least once."""
    properties = of_outputs(
        bootstrap_servers=[brokers],
        client_id="c",
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        buffer_memory=buffer_memory,
    )
    channel = Channel(maker(properties), RequestSizes(properties))
    return Acknowledging(channel, box, table, SendTelemetry(Counters()))
