"""What a handler gets."""

from __future__ import annotations

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.records import Record


def test_a_record_tells_what_kafka_knows() -> None:
    record = Record.of(
        Message(
            topic="orders",
            partition=3,
            offset=7,
            key=b"k",
            value=b"v",
            headers=[("a", b"1"), ("a", None)],
            timestamp=(TIMESTAMP_CREATE_TIME, 1234),
            leader_epoch=5,
        )
    )
    assert (record.topic, record.partition, record.offset, record.key, record.value) == ("orders", 3, 7, b"k", b"v")
    assert (record.timestamp, record.headers, record.leader_epoch) == (1234, [("a", b"1"), ("a", None)], 5)


def test_what_is_missing_is_none_or_empty() -> None:
    record = Record.of(Message(topic="orders", partition=0, offset=0, timestamp=(TIMESTAMP_NOT_AVAILABLE, -1)))
    assert (record.key, record.value, record.timestamp, record.leader_epoch, record.headers) == (None,) * 4 + ([],)


def test_a_record_shows_where_it_is_from_and_never_its_value() -> None:
    assert repr(Record.of(Message(topic="orders", partition=3, offset=7, value=b"secret"))) == "<Record orders-3@7>"


def test_a_record_cannot_be_changed() -> None:
    record = Record.of(Message(topic="orders", partition=3, offset=7, value=b"v"))
    with pytest.raises(AttributeError):
        record.value = b"w"  # type: ignore[misc]
