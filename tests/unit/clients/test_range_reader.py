"""What the client tells beside a range's records."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.positions import OffsetRange

WANTED = OffsetRange("orders", 0, 10, 13)
NOBODY_ASKED_FOR = 8680820740569200761
"""What librdkafka 2.16.1 made of the bytes behind a damaged batch."""


class Scripted:
    """Of a client: what it gives out at once, and the log's first and last offset."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = list(batches)

    def consume(self, count: int, timeout: float) -> list[Message]:
        return self._batches.pop(0)

    def list_topics(self, topic: str, timeout: float) -> None: ...
    def assign(self, partitions: list[Any]) -> None: ...
    def unassign(self) -> None: ...
    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return 11, 13


def record(offset: int) -> Message:
    return Message(topic="orders", partition=0, offset=offset, value=b"v")


def gone(offset: int) -> Message:
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    return Message(topic="orders", partition=0, offset=offset, error=error)


def read(*batches: list[Message]) -> list[int | None]:
    client: Any = Scripted(*batches)
    return [message.offset() for batch in RangeReader(client).read(WANTED) for message in batch]


@pytest.mark.parametrize("offset", [NOBODY_ASKED_FOR, 9, 14])
def test_a_gone_offset_of_the_range_before_neither_ends_this_one_nor_hides_its_records(offset: int) -> None:
    assert read([gone(offset), record(10), record(11)], [record(12)]) == [10, 11, 12]
    assert read([record(10), record(11)], [gone(offset)], [record(12)]) == [10, 11, 12]


def test_a_gone_offset_of_this_range_ends_it() -> None:
    with pytest.raises(RangeUnreadable, match="orders-0: offsets 10 to 11 are gone, the log has 11 to 13 now"):
        read([gone(10)])
