"""A producer that has waited in vain is not asked again: its client may have lost all brokers for good."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from kunicorn.handler.outputs import Outgoing
from kunicorn.worker.produce.outbox import Entry
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import Channel
from kunicorn.worker.produce.telemetry import Output
from tests.fakes.origins import FakeOrigin


class Producer:
    """In confluent-kafka's place: answers everything with that error."""

    def __init__(self, error: KafkaError | None) -> None:
        self._error = error
        self._told: list[Any] = []

    def produce(self, topic: str, value: bytes, key: Any, partition: int, told: Any, *more: Any) -> None:
        self._told.append(told)

    def flush(self, seconds: float) -> int:
        told, self._told = self._told, []
        for each in told:
            each(self._error, None)
        return 0


def output() -> Output:
    """One."""
    outgoing = Outgoing("totals", b"x", None, None, -1, 0)
    return (Entry(FakeOrigin(1), 0, 1, [outgoing], None), outgoing)


@pytest.mark.parametrize(
    ("code", "producers"),
    [(KafkaError._MSG_TIMED_OUT, 2), (KafkaError._FATAL, 2), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)],
)
def test_outputs_are_sent_again_by_another_producer_where_the_first_one_is_worn_out(code: int, producers: int) -> None:
    made: list[Producer] = []

    def make() -> Any:
        made.append(Producer(None if made else KafkaError(code)))
        return made[-1]

    channel = Channel(make, RequestSizes({}))
    channel.put([output()])
    assert [error.code() for _, error in channel.flush()] == [code]
    channel.put([output()])
    channel.flush()
    assert len(made) == producers
