"""What a handler gets."""

from __future__ import annotations

import sys

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.arrow import rows_of
from kunicorn.handler.record import Batch, Record
from tests.fakes.half_read import HALF_READ, HalfRead


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


def test_a_timestamp_of_minus_one_in_a_log_of_create_time_is_none() -> None:
    record = Record.of(Message(topic="orders", partition=0, offset=0, timestamp=(TIMESTAMP_CREATE_TIME, -1)))
    assert (record.timestamp, Batch([record.message]).timestamps()) == (None, [None])
    assert Batch([record.message]).to_arrow().column("timestamp").to_pylist() == [None]


def test_a_record_shows_where_it_is_from_and_never_its_value() -> None:
    assert repr(Record.of(Message(topic="orders", partition=3, offset=7, value=b"secret"))) == "<Record orders-3@7>"


def test_a_record_cannot_be_changed() -> None:
    record = Record.of(Message(topic="orders", partition=3, offset=7, value=b"v"))
    with pytest.raises(AttributeError):
        record.value = b"w"  # type: ignore[misc]


def batch_of(*offsets: int) -> Batch:
    return Batch([Message(topic="orders", partition=3, offset=o, key=b"k%d" % o, value=b"v%d" % o) for o in offsets])


def test_a_batch_is_a_sequence_of_records() -> None:
    batch = batch_of(4, 5, 9)
    assert len(batch) == 3
    assert [record.offset for record in batch] == [4, 5, 9]
    assert (batch[0].value, batch[-1].value) == (b"v4", b"v9")
    assert (batch.topic, batch.partition) == ("orders", 3)
    assert [record.offset for record in reversed(batch)] == [9, 5, 4]


def test_a_slice_of_a_batch_is_a_batch() -> None:
    rest = batch_of(4, 5, 9)[1:]
    assert isinstance(rest, Batch)
    assert rest.offsets() == [5, 9]


def test_a_batchs_columns_say_what_its_records_say() -> None:
    batch = batch_of(4, 5, 9)
    assert batch.values() == [record.value for record in batch]
    assert batch.keys() == [record.key for record in batch]
    assert batch.offsets() == [record.offset for record in batch]
    assert batch.timestamps() == [record.timestamp for record in batch]


def test_a_batch_shows_where_it_is_from_and_no_payload() -> None:
    assert repr(batch_of(4, 5, 9)) == "<Batch orders-3@4-9, 3 records>"
    assert repr(batch_of(4)[1:]) == "<Batch of nothing>"


def test_a_record_outside_a_batch_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        batch_of(4)[1]


def test_a_batchs_columns_need_no_records() -> None:
    first = Message(
        topic="t", partition=0, offset=1, value=b"v", headers=[("a", b"1")], timestamp=(TIMESTAMP_CREATE_TIME, 9)
    )
    batch = Batch([first, Message(topic="t", partition=0, offset=2, key=b"k", timestamp=(TIMESTAMP_NOT_AVAILABLE, -1))])
    assert (batch.values(), batch.keys(), batch.offsets()) == ([b"v", None], [None, b"k"], [1, 2])
    assert (batch.timestamps(), batch.headers()) == ([9, None], [[("a", b"1")], []])
    assert (batch.data(), batch.key_data()) == (batch.values(), batch.keys())


def test_a_batch_is_a_table_of_arrow_with_the_columns_of_the_pipelines_source() -> None:
    table = batch_of(4, 5).to_arrow()
    assert table.schema.names == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    assert table.column("offset").to_pylist() == [4, 5]
    assert table.column("value").to_pylist() == [b"v4", b"v5"]


def test_without_pyarrow_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kunicorn.handler.columns", None)
    with pytest.raises(ImportError, match=r".*\.whl\[arrow\]'"):
        batch_of(4).to_arrow()


def test_a_header_whose_name_is_not_utf_8_has_the_replacement_character_for_it() -> None:
    record = Record.of(HalfRead())
    assert record.headers == record.headers == HALF_READ


def test_a_batch_as_columns_has_such_a_header_too() -> None:
    messages = [Message(topic="orders", partition=3, offset=4), HalfRead(5), HalfRead(6)]
    headers = Batch(messages).to_arrow().column("headers").to_pylist()
    assert headers == [None, *[[{"key": name, "value": value} for name, value in HALF_READ]] * 2]
    for_handlers = rows_of([*messages[:2], HalfRead(6)]).column("headers").to_pylist()
    assert for_handlers == [None, *[[{"name": name, "value": value} for name, value in HALF_READ]] * 2]
