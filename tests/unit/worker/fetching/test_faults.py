"""What the client gives out in place of records."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message

from kunicorn.librdkafka.errors import parted
from kunicorn.worker.fetching.fetched import ends_grant


def record(partition: int, offset: int) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"v")


def fault(partition: int, code: int) -> Message:
    return Message(topic="orders", partition=partition, error=KafkaError(code))


def places(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    return [(message.partition(), message.offset()) for message in messages]


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._AUTO_OFFSET_RESET])
def test_behind_an_error_that_ends_its_partition_only_others_go_on(code: int) -> None:
    bad = fault(0, code)
    records, errors = parted([record(0, 1), record(1, 1), bad, record(0, 9), record(1, 2)], ends_grant)
    assert places(records) == [(0, 1), (1, 1), (1, 2)]
    assert errors == [bad]


def test_what_passes_by_itself_leaves_nothing_out() -> None:
    passing = fault(0, KafkaError._TRANSPORT)
    records, errors = parted([record(0, 1), passing, record(0, 2)], ends_grant)
    assert places(records) == [(0, 1), (0, 2)]
    assert errors == [passing]
