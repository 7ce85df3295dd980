"""Outputs that are sent in pieces, as their topic refuses more at a time: what goes out of the later ones."""

from __future__ import annotations

from collections.abc import Callable
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
    """In confluent-kafka's place: refuses what it is given together."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.given: list[bytes] = []
        self._told: list[Any] = []
        self._meanwhile = meanwhile

    def produce(self, topic: str, value: bytes, key: Any, partition: int, told: Any, *more: Any) -> None:
        self.given.append(value)
        self._told.append(told)

    def flush(self, seconds: float) -> int:
        told, self._told = self._told, []
        error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if len(told) > 1 else None
        for each in told:
            each(error, None)
        self._meanwhile()
        return 0


def output(origin: FakeOrigin, value: bytes) -> Output:
    outgoing = Outgoing("totals", value * 1000, None, None, -1, 0)
    return (Entry(origin, 0, 1, [outgoing], None), outgoing)


@pytest.mark.parametrize(("lost_behind", "again"), [(1, b"ad"), (2, b"ad"), (3, b"abd")])
def test_of_a_partition_that_is_lost_nothing_goes_out_with_a_later_piece(lost_behind: int, again: bytes) -> None:
    lost, kept, waits = FakeOrigin(1), FakeOrigin(2), 0

    def look() -> None:
        nonlocal waits
        waits += 1
        lost.discarded = waits >= lost_behind

    producer: Any = Producer(look)
    channel = Channel(lambda: producer, RequestSizes({}))
    channel.put([output(kept, b"a"), output(lost, b"b"), output(lost, b"c"), output(kept, b"d")])
    assert channel.flush() == []
    assert b"".join(value[:1] for value in producer.given) == b"abcd" + again
