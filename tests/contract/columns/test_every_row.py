"""Rows of a decoder are to handlers, and to the table of partitions, what librdkafka's messages are: each is asked the
same, of rows and of a list of messages that say the same.
"""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from kunicorn.columns import reference
from kunicorn.columns.decoding import Decoder, Rows
from kunicorn.handler.arrow import SCHEMA, rows_of
from kunicorn.handler.messages import Run, asked, keys, values
from kunicorn.handler.record import Batch, DecodedBatch, DecodedRecord, Record
from kunicorn.handler.rows import (
    apart,
    before,
    beginning_at,
    between_times,
    ends,
    first_timestamp,
    fitting,
    following_offsets,
    joined,
    value_bytes,
    without,
)
from kunicorn.pipeline.tasks.in_hand_file import Suspects
from kunicorn.pipeline.tasks.in_hand_notes import Hand
from kunicorn.positions import NO_EPOCH
from kunicorn.worker.fetching.fetched import headers_bytes, kept_bytes
from kunicorn.worker.progress import record_bytes
from tests.fakes import fetched
from tests.fakes.fetched import LOG_APPEND_TIME, batch, record

ORDERS = bytes(range(16))
VERSION = 17
FIRST_TIME, BROKERS_TIME = 1_700_000_000_000, 1_700_000_000_999
GIVEN: Sequence[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = (
    (3, b"k0", b"", [], FIRST_TIME),
    (4, None, b"v", [], FIRST_TIME + 7),
    (7, b"k2", None, [("h", b"1"), ("h", None), ("", b"")], FIRST_TIME),
    (8, b"", b"vvv", [], BROKERS_TIME),
    (9, b"k4", b"vvvv", [("é", b"\xff")], BROKERS_TIME),
)
"""Offset, key, value, headers, and time; there is a gap, and the last two have the broker's time."""


def messages() -> list[Message]:
    """As librdkafka has them."""
    return [
        Message(
            topic="orders",
            partition=3,
            offset=offset,
            key=key,
            value=value,
            headers=[*headers] or None,
            timestamp=(1 if time != BROKERS_TIME else 2, time),
            leader_epoch=5,
        )
        for offset, key, value, headers, time in GIVEN
    ]


def answered(decoder_class: type[Decoder]) -> Rows:
    """The same out of a response with two batches: the producer's time, and the broker's."""

    def written(of: Sequence[Any], base: int) -> list[bytes]:
        return [
            record(
                offset - base,
                value,
                key,
                [(name.encode(), content) for name, content in headers],
                time_delta=time - FIRST_TIME,
            )
            for offset, key, value, headers, time in of
        ]

    first = batch(written(GIVEN[:3], 3), base_offset=3, last_delta=4)
    stamped: Any = {"attributes": LOG_APPEND_TIME, "max_timestamp": BROKERS_TIME}
    second = batch(written(GIVEN[3:], 8), base_offset=8, **stamped)
    body = fetched.body(VERSION, {ORDERS: [fetched.partition(VERSION, 3, [first, second])]})
    decoder = decoder_class(read_committed=True, max_unpacked=1 << 20)
    decoder.place(ORDERS, 3, "orders", 0)
    response = decoder.decode(body, VERSION)
    (part,) = response.partitions
    return response.rows.cut(part.first_row, part.rows, part.last_epoch)


@pytest.fixture
def rows(decoder_class: type[Decoder]) -> Rows:
    return answered(decoder_class)


def told(run: Run) -> list[tuple[object, ...]]:
    """All that a handler of records can see."""
    records = map(Record.of, run)
    return [
        (r.topic, r.partition, r.offset, r.key, r.value, r.headers, r.timestamp, r.leader_epoch, repr(r), r.origin)
        for r in records
    ]


def of(rows: Rows) -> Any:
    """As the worker has it."""
    return rows


def pickled(anything: object) -> Any:
    """As another process of a pool has it."""
    return pickle.loads(pickle.dumps(anything))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_a_record_is_pickled_and_copied_as_one_of_the_clients_messages(
    rows: Rows, copied: Callable[[Any], Any]
) -> None:
    every = [copied(Record.of(message)) for message in of(rows)]
    assert told([each.message for each in every]) == told(messages())
    assert {type(each.message) for each in every} == {Message}
    decoded = copied(DecodedRecord(b"v", of(rows)[0], {"total": 3}, "k"))
    assert (type(decoded), decoded.offset, decoded.value) == (DecodedRecord, 3, b"v")
    assert (decoded.data, decoded.key_data) == ({"total": 3}, "k")


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_a_batch_is_pickled_and_copied_with_messages_of_the_clients(rows: Rows, copied: Callable[[Any], Any]) -> None:
    batch = copied(Batch(of(rows)))
    assert told([each.message for each in batch]) == told(messages())
    assert (batch.offsets(), batch.headers()) == (Batch(messages()).offsets(), Batch(messages()).headers())
    numbers = list(range(len(GIVEN)))
    decoded = copied(DecodedBatch(of(rows), numbers, numbers))
    assert (type(decoded), decoded.data(), decoded[-1].data, len(decoded)) == (DecodedBatch, numbers, 4, 5)


@pytest.mark.parametrize("part", [slice(None, None, -1), slice(None, None, 2), slice(-1, 0, -2)], ids=str)
def test_a_batch_is_cut_with_a_step(rows: Rows, part: slice) -> None:
    assert told([each.message for each in Batch(of(rows))[part]]) == told(messages()[part])
    assert Batch(of(rows))[part].offsets() == Batch(messages())[part].offsets()
    numbers = list(range(len(GIVEN)))
    decoded = DecodedBatch(of(rows), numbers, numbers)[part]
    assert [each.data for each in decoded] == numbers[part]


def test_each_row_says_what_a_message_says(rows: Rows) -> None:
    assert told(of(rows)) == told(messages())
    assert told([of(rows)[at] for at in (0, -1, 2)]) == told([messages()[at] for at in (0, -1, 2)])
    for message in of(rows):
        assert message.error() is None
    assert list(map(len, of(rows))) == list(map(len, messages()))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy, lambda record: Record.of(*apart((record.message,)))])
def test_a_record_of_which_no_leader_epoch_is_known_is_copied_too(rows: Rows, copied: Callable[[Any], Any]) -> None:
    """As brokers before 2.1 have written it."""
    (unknown,) = of(rows).cut(0, 1, NO_EPOCH)
    assert copied(Record.of(unknown)).message.leader_epoch() is None


def test_rows_say_the_same_apart_from_those_that_they_came_with(rows: Rows) -> None:
    assert told(apart(of(rows))) == told(messages())
    for at in range(len(GIVEN)):
        assert told(apart(of(rows)[at : at + 1])) == told(messages()[at : at + 1])
        assert told(apart((of(rows)[at],))) == told(messages()[at : at + 1])
    assert told(apart(without(of(rows), {4, 8}))) == told(without(messages(), {4, 8}))
    assert told(apart(of(rows)[:0])) == []
    assert apart(listed := messages()) is listed


def test_a_record_apart_is_one_of_the_clients_messages_and_takes_no_more_than_it_counts_as(rows: Rows) -> None:
    """Thousands of them wait where what a handler calls is away."""
    of_rows = list(of(rows)) * 1000
    assert {type(message) for message in apart(of_rows)} == {Message}
    tracemalloc.start()
    try:
        kept = apart(of_rows)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sizes = (record_bytes(each.key(), len(each), headers_bytes(each)) for each in kept)
    assert taken < sum(sizes)


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: list(values(run)),
        lambda run: list(keys(run)),
        lambda run: list(asked(run, "offset")),
        lambda run: headers_bytes(run[2]),
        lambda run: Batch(run).values() + Batch(run).keys(),
        lambda run: [Batch(run).offsets(), Batch(run).timestamps(), Batch(run).headers()],
        lambda run: [told([each.message for each in Batch(run)]), repr(Batch(run)[1:3])],
        lambda run: [(told(each.messages), each.deaths) for each in Suspects([Hand(7, 8)] * 2).pieces(run, 0, 1)],
        lambda run: [(told(each.messages), each.deaths) for each in Suspects([Hand(4, 8)] * 2).pieces(run, 0, None)],
    ],
)
def test_runs_are_asked_the_same(rows: Rows, ask: Callable[[Run], object]) -> None:
    assert ask(of(rows)) == ask(messages())


def test_where_runs_begin_and_end_and_how_large_they_are(rows: Rows) -> None:
    for run in (of(rows), messages()):
        assert list(following_offsets(run)) == [4, 5, 8, 9, 10], "there is a gap"
        assert following_offsets(run[2:]) == range(8, 11)
        assert (ends(run), ends(run[1:4])) == ((3, 9), (4, 8))
        parts = before(run, 7), beginning_at(run, 5), without(run, {4, 8})
        assert [[each.offset() for each in part] for part in parts] == [[3, 4], [7, 8, 9], [3, 7, 9]]
        assert value_bytes([run, run[1:]]) == 2 * (0 + 1 + 0 + 3 + 4)
        assert [fitting(run, most) for most in (0, 1, 3, 4, 7, 8, None)] == [1, 3, 3, 4, 4, 5, 5]
        assert [first_timestamp(run[first:]) for first in (0, 1, 3)] == [FIRST_TIME, FIRST_TIME + 7, BROKERS_TIME]


@pytest.mark.parametrize(
    "part",
    [
        lambda run: run[1:3],
        lambda run: run[2:][1:],
        lambda run: run[5:],
        lambda run: before(run, 7),
        lambda run: beginning_at(run, 5),
        lambda run: without(run, {4, 8}),
        lambda run: without(run, {3, 9}),
        lambda run: without(run, {3, 4, 7, 8, 9}),
        lambda run: joined([run[:2], run[2:4], run[4:]]),
        lambda run: joined([run[4:], run[:1]]),
        lambda run: joined([run[:2], run[3:]])[1:3],
        lambda run: without(joined([run[:2], run[3:]]), {4}),
        lambda run: joined([run[:1], without(run[1:], {7})]),
        lambda run: between_times(run, 0, FIRST_TIME + 8),
        lambda run: between_times(run, FIRST_TIME + 7, BROKERS_TIME),
        lambda run: between_times(run, FIRST_TIME, BROKERS_TIME + 1),
        lambda run: between_times(run, BROKERS_TIME + 1, BROKERS_TIME + 2),
    ],
)
def test_runs_are_cut_and_joined_the_same(rows: Rows, part: Callable[[Run], Run]) -> None:
    found, expected = part(of(rows)), part(messages())
    assert told(found) == told(expected)
    assert len(found) == len(expected)
    assert list(values(found)) == list(values(expected))
    columns: Any = found
    assert columns.batch.drop_columns("topic").equals(rows_of(expected).drop_columns("topic"))
    assert columns.batch.column("topic").to_pylist() == ["orders"] * len(expected)


def test_rows_of_two_responses_are_joined(decoder_class: type[Decoder]) -> None:
    both: Any = joined([of(answered(decoder_class))[:2], of(answered(decoder_class))[2:]])
    assert told(both) == told(messages())
    assert both.batch.column("topic").to_pylist() == ["orders"] * len(GIVEN)


def test_columns_of_messages_have_the_types_that_are_promised() -> None:
    untimed = Message(topic="orders", partition=3, offset=10, timestamp=(0, 0))
    batch = rows_of([*messages(), untimed])
    assert batch.schema.equals(SCHEMA)
    assert SCHEMA.equals(reference.SCHEMA), "handlers get the same from both fetchers"
    assert batch.column("value").to_pylist() == [b"", b"v", None, b"vvv", b"vvvv", None]
    assert batch.column("timestamp").cast("int64").to_pylist() == [*(time for *_, time in GIVEN), None]


@pytest.mark.parametrize("dropped", [{150}, {0, 120, 299}, set(range(0, 300, 2)), set(range(100, 300, 3))])
def test_pieces_of_any_length_are_one_batch(decoder_class: type[Decoder], dropped: set[int]) -> None:
    sent = [record(at, b"v%d" % at, b"k", [(b"n", b"%d" % at)] if at % 7 else []) for at in range(300)]
    decoder = decoder_class(read_committed=True, max_unpacked=1 << 20)
    decoder.place(ORDERS, 3, "orders", 0)
    answer = [fetched.partition(VERSION, 3, [batch(sent, last_delta=299)])]
    rows = decoder.decode(fetched.body(VERSION, {ORDERS: answer}), VERSION).rows
    left = [at for at in range(300) if at not in dropped]
    found: Any = rows.without(dropped)
    assert found.batch.column("offset").to_pylist() == left
    assert found.batch.column("value").to_pylist() == [b"v%d" % at for at in left]
    assert found.batch.column("topic").to_pylist() == ["orders"] * len(left)
    expected = [[{"name": "n", "value": b"%d" % at}] if at % 7 else None for at in left]
    assert found.batch.column("headers").to_pylist() == expected


def test_rows_are_a_sequence_of_consecutive_ones(rows: Rows) -> None:
    assert isinstance(rows, Sequence)
    with pytest.raises(IndexError):
        of(rows)[5]
    with pytest.raises(ValueError, match="consecutive"):
        of(rows)[::2]


def test_a_part_counts_its_own_bytes(rows: Rows) -> None:
    run = of(rows)
    assert kept_bytes(run) >= sum(len(key or b"") + len(value or b"") for _, key, value, _, _ in GIVEN)
    assert kept_bytes(run[:1]) < kept_bytes(run[:3]) < kept_bytes(run)


@pytest.mark.scenario("0052 msg_timestamps")
def test_whether_the_producer_or_the_broker_has_set_a_time_is_kept(rows: Rows) -> None:
    if type(rows).__module__ != "kunicorn_columns":
        pytest.skip("columns do not say it, and the reference has nothing else")
    assert [message.timestamp() for message in of(rows)] == [message.timestamp() for message in messages()]
    assert Batch(of(rows)).to_arrow().equals(Batch(messages()).to_arrow())


def test_rows_outlive_the_response_and_the_decoder(rows: Rows) -> None:
    last, batch_of_all = of(rows)[4], pa.record_batch(rows)
    del rows
    assert (last.offset(), last.value()) == (9, b"vvvv")
    assert batch_of_all.column("offset").to_pylist() == [3, 4, 7, 8, 9]
