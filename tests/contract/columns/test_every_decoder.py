"""What every decoder of Fetch responses does. The frames are written by kio's classes and by tests/fakes/fetched.py."""

from __future__ import annotations

import ctypes
import gc
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.fetch import v17

from kunicorn.columns.decoding import MOST_UNPACKED, Decoder, Part, Response
from kunicorn.columns.reference import SCHEMA
from tests.fakes import fetched
from tests.fakes.fetched import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VERSIONS,
    batch,
    marker,
    record,
    records,
    signed,
)

ORDERS, SHIPMENTS = bytes(range(16)), bytes(range(16, 32))
MB = 1 << 20
LARGE = MB // 2
FETCH = 17
"""A version, where it does not matter which."""
STRUCTURES: Any = v17.response
ALL_CODECS = ("none", "gzip", "snappy", "raw snappy", "lz4", "zstd")


@pytest.fixture
def decoder(decoder_class: type[Decoder]) -> Decoder:
    """One that stands at offset 0 of orders-3, and leaves out what was aborted."""
    return placed(decoder_class(read_committed=True, max_unpacked=MB))


def placed(decoder: Decoder, offset: int = 0) -> Decoder:
    """It, at that offset of orders-3."""
    decoder.place(ORDERS, 3, "orders", offset)
    return decoder


def answer(*batches: bytes, **fields: Any) -> bytes:
    """A response about orders-3."""
    return fetched.body(FETCH, {ORDERS: [fetched.partition(FETCH, 3, batches, **fields)]})


def told(decoder: Decoder, *batches: bytes, **fields: Any) -> tuple[Part, list[dict[str, Any]]]:
    """What the decoder makes of such a response: the only part and its rows."""
    response = decoder.decode(answer(*batches, **fields), FETCH)
    (part,) = response.partitions
    return part, rows(response)


def rows(response: Response) -> list[dict[str, Any]]:
    """The rows as dictionaries; the columns' types are as promised."""
    table = pa.record_batch(response.rows)
    assert table.schema == SCHEMA
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    assert sum(part.rows for part in response.partitions) == len(found)
    return found


def of_one(response: Response, part: Part) -> Any:
    """The part's rows as messages, as the fetcher cuts them."""
    return response.rows.cut(part.first_row, part.rows, part.last_epoch)


def offsets(found: Sequence[dict[str, Any]]) -> list[int]:
    """Of the rows."""
    return [row["offset"] for row in found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.scenario("testFetchWithTopicId", "testFetchWithNoTopicId")
def test_every_version_is_read(decoder: Decoder, version: int) -> None:
    name = b"orders" if version == 12 else ORDERS
    frame = fetched.partition(version, 3, [batch(records(3), base_offset=7)], preferred_read_replica=2)
    response = decoder.decode(fetched.body(version, {name: [frame]}, session_id=99), version)
    (part,) = response.partitions
    assert (response.error, response.session_id, response.more) == (0, 99, 0)
    assert (part.topic_id, part.topic, part.partition, part.next_offset) == (ORDERS, "orders", 3, 10)
    assert (part.preferred_replica, part.high_watermark, part.last_epoch) == (2, 100, 5)
    assert [(row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows(response)] == [
        ("orders", 3, 7 + n, b"key %d" % n, b"value %d" % n) for n in range(3)
    ]


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.scenario("0017 compression")
def test_every_codec_is_unpacked(decoder: Decoder, codec: str) -> None:
    large = bytes(range(256)) * 1000
    part, found = told(decoder, batch([*records(100), record(100, large)], codec), batch(records(2), base_offset=101))
    assert not part.damage
    assert offsets(found) == list(range(103))
    assert (found[42]["key"], found[100]["value"]) == (b"key 42", large)


@pytest.mark.scenario("testHeaders", "0070 null_empty", "0073 headers")
def test_nulls_empty_values_headers_and_times_come_through(decoder: Decoder) -> None:
    named: fetched.Headers = [(b"a", b"1"), (b"a", None), (b"", b""), (b"caf\xc3\xa9", b"\xff"), (b"\xff!", b"2")]
    spoken = batch([record(0, None, None), record(1, b"", b"", named, 250), record(2, time_delta=-(2**62))])
    untimed = batch([record(0, time_delta=-1)], base_offset=3, base_timestamp=0)
    stamped = batch(
        [record(0, time_delta=99)], base_offset=4, attributes=LOG_APPEND_TIME, max_timestamp=1_600_000_000_123
    )
    part, found = told(decoder, spoken, untimed, stamped)
    times = [None if row["timestamp"] is None else round(row["timestamp"].timestamp() * 1000) for row in found]
    assert times == [1_700_000_000_000, 1_700_000_000_250, None, None, 1_600_000_000_123]
    assert [(row["key"], row["value"]) for row in found[:2]] == [(None, None), (b"", b"")]
    assert [row["headers"] for row in found[:1] + found[2:]] == [None] * 4
    assert [(header["name"], header["value"]) for header in found[1]["headers"]] == [
        ("a", b"1"), ("a", None), ("", b""), ("café", b"\xff"), ("\N{REPLACEMENT CHARACTER}", b"2"),
    ]  # fmt: skip
    # Of the spoilt name only what stands in the column counts.
    assert part.bytes == len("a1aécaf") + 1 + 1 + len("\N{REPLACEMENT CHARACTER}".encode()) + 1 + 3 * len("keyvalue")


def test_rows_before_the_position_are_left_out(decoder_class: type[Decoder]) -> None:
    decoder = placed(decoder_class(read_committed=False, max_unpacked=MB), 12)
    part, found = told(decoder, batch(records(10)), batch(records(10), base_offset=10, codec="lz4"))
    assert (offsets(found), part.first_row, part.next_offset) == (list(range(12, 20)), 0, 20)


@pytest.mark.scenario(
    "testFetchNonContinuousRecords",
    "testUpdatePositionOnEmptyBatch",
    "testUpdatePositionWithLastRecordMissingFromBatch",
)
def test_the_position_follows_what_compaction_has_left(decoder: Decoder) -> None:
    gaps = batch([record(2), record(5)], base_offset=10, last_delta=8)
    emptied = batch([], base_offset=30, last_delta=4)
    part, found = told(decoder, gaps, emptied)
    assert (offsets(found), part.next_offset) == ([12, 15], 35)
    part, found = told(decoder, batch([], base_offset=40, last_delta=1))
    assert (found, part.rows, part.next_offset) == ([], 0, 42)


def transactions() -> list[bytes]:
    """Two producers' transactions through one another: 7's first is aborted, 8's and 7's second are committed."""

    def sent(base_offset: int, producer_id: int) -> bytes:
        return batch(records(2), base_offset=base_offset, producer_id=producer_id, attributes=TRANSACTIONAL)

    plain = batch(records(1), base_offset=9)
    ends = marker(4, 7, commits=False), marker(7, 8, commits=True), marker(8, 7, commits=True)
    return [sent(0, 7), sent(2, 8), ends[0], sent(5, 7), ends[1], ends[2], plain]


@pytest.mark.scenario(
    "testReadCommittedWithCommittedAndAbortedTransactions",
    "testMultipleAbortMarkers",
    "testReturnCommittedTransactions",
)
def test_aborted_records_are_left_out_and_their_producers_next_transaction_is_not(decoder: Decoder) -> None:
    part, found = told(decoder, *transactions(), aborted_transactions=[(7, 0)])
    assert (offsets(found), part.next_offset) == ([2, 3, 5, 6, 9], 10)
    part, found = told(placed(decoder, 1), *transactions()[:3], aborted_transactions=[(7, 0)])
    assert (offsets(found), part.next_offset) == ([2, 3], 5)


@pytest.mark.scenario("testReadCommittedWithCompactedTopic")
def test_aborted_records_of_a_compacted_log_are_left_out(decoder: Decoder) -> None:
    """Compaction has removed the first record of the aborted transaction, and all of a committed batch but its end."""
    left = batch([record(1)], base_offset=0, last_delta=2, producer_id=7, attributes=TRANSACTIONAL)
    emptied = batch([], base_offset=3, last_delta=1, producer_id=8, attributes=TRANSACTIONAL)
    ends = marker(5, 7, commits=False), marker(6, 8, commits=True)
    again = batch(records(2), base_offset=7, producer_id=7, attributes=TRANSACTIONAL)
    part, found = told(decoder, left, emptied, *ends, again, marker(9, 7, commits=True), aborted_transactions=[(7, 0)])
    assert (offsets(found), part.next_offset) == ([7, 8], 10)


@pytest.mark.scenario("testReturnAbortedTransactionsInUncommittedMode", "testFetcherIgnoresControlRecords")
def test_whoever_reads_uncommitted_gets_aborted_records_and_no_marker(decoder_class: type[Decoder]) -> None:
    decoder = placed(decoder_class(read_committed=False, max_unpacked=MB))
    part, found = told(decoder, *transactions(), aborted_transactions=[(7, 0)])
    assert (offsets(found), part.next_offset) == ([0, 1, 2, 3, 5, 6, 9], 10)


@pytest.mark.scenario("testEmptyControlBatch")
def test_the_position_follows_a_response_of_markers_alone(decoder: Decoder) -> None:
    part, found = told(decoder, marker(0, 7, commits=True), marker(1, 8, commits=False))
    assert (found, part.next_offset) == ([], 2)


def at_five(of: Sequence[bytes], codec: str = "none", **fields: Any) -> bytes:
    """A batch behind five records."""
    return batch(of, codec, **{"base_offset": 5, **fields})


def spoilt(whole: bytes, at: int, replacement: bytes) -> bytes:
    """The batch with other bytes there."""
    return whole[:at] + replacement + whole[at + len(replacement) :]


def with_record(body: bytes) -> bytes:
    """A batch of a single record of these bytes, its length in front."""
    return at_five([fetched.varint(len(body)) + body])


WHOLE = at_five(records(3))
PACKED = at_five(records(50), "gzip")
DAMAGES = {
    "wrong checksum": spoilt(WHOLE, len(WHOLE) - 1, b"!"),
    "magic 1": spoilt(WHOLE, 16, b"\1"),
    "magic 0": signed(spoilt(WHOLE, 16, b"\0")),
    "magic 3": spoilt(WHOLE, 16, b"\3"),
    "a length of 13 bytes": spoilt(WHOLE, 8, struct.pack(">i", 13)),
    "a length of 48 bytes": spoilt(WHOLE, 8, struct.pack(">i", 48)),
    "a length of -1 bytes": spoilt(WHOLE, 8, struct.pack(">i", -1)),
    "unknown codec 5": at_five(records(1), attributes=5),
    "unknown codec 7": at_five(records(1), attributes=7),
    "gzip does not unpack": signed(PACKED[:-9]),
    "gzip does not unpack ": signed(PACKED + b"more"),
    "snappy does not unpack": at_five(records(1), attributes=2),
    "lz4 does not unpack": at_five(records(1), attributes=3),
    "zstd does not unpack": at_five(records(1), attributes=4),
    "-1 records announced": at_five(records(1), count=-1),
    "4 records announced": at_five(records(1), count=4),
    "offsets from -1 on": at_five(records(1), base_offset=-1),
    "the last one -1 behind": at_five(records(1), last_delta=-1),
    f"offsets from {2**63 - 1}": at_five(records(1), base_offset=2**63 - 1),
    "offsets that do not ascend": at_five([record(1), record(1)]),
    "offsets that do not ascend ": at_five([record(-1), record(0)]),
    "offsets that do not ascend  ": at_five(records(3), last_delta=1),
    "1 bytes behind the last record": at_five([*records(1), b"\0"], count=1),
    "2 bytes behind a record's end": with_record(b"\0\0\0\1\1\0!!"),
    "a header without a name": with_record(b"\0\0\0\1\1\2\1\1"),
    "9 headers announced": with_record(b"\0\0\0\1\1\x12"),
    "-1 headers announced": with_record(b"\0\0\0\1\1\1"),
    "100 bytes announced where 1": with_record(b"\0\0\0\xc8\1\1"),
    "a variable-length integer of more than 32": with_record(b"\0\0\xff\xff\xff\xff\x7f\1\1\0"),
    "a variable-length integer of more than 32 ": with_record(b"\0\0\x80\x80\x80\x80\x80\0\1\1\0"),
    "a variable-length integer of more than 64": with_record(b"\0" + b"\xff" * 9 + b"\2" + b"\0\1\1\0"),
    "40 bytes announced where 10": at_five([b"\x50" + bytes(10)]),
    f"unpacks to more than {MB} bytes": at_five([record(0, bytes(MB))], "zstd"),
    f"unpacks to more than {MB} bytes ": at_five([record(0, bytes(MB))], "gzip"),
    f"unpacks to more than {MB} bytes  ": at_five([record(0, bytes(MB))], "lz4"),
    f"unpacks to more than {MB} bytes   ": at_five([record(0, bytes(MB))], "snappy"),
    f"unpacks to more than {MB} bytes    ": at_five([record(0, bytes(MB))], "raw snappy"),
    f"unpacks to more than {MB} bytes     ": at_five([record(0, bytes(MB))]),
    "a marker does not parse": at_five([record(0, key=b"\0")], producer_id=4, attributes=TRANSACTIONAL | CONTROL),
}


@pytest.mark.parametrize("reason", DAMAGES)
@pytest.mark.scenario("testParseCorruptedRecord", "testInvalidDefaultRecordBatch")
def test_damage_halts_the_partition_behind_the_rows_before_it(decoder: Decoder, reason: str) -> None:
    part, found = told(decoder, batch(records(5)), DAMAGES[reason], batch(records(1), base_offset=60))
    assert (offsets(found), part.next_offset, part.damage_offset) == (list(range(5)), 5, 5)
    assert reason.strip() in part.damage
    part, found = told(decoder, DAMAGES[reason])
    assert (found, part.next_offset, part.damage_offset, part.incomplete) == ([], 5, 5, False)


def test_a_batch_that_unpacks_to_just_the_limit_is_read(decoder_class: type[Decoder]) -> None:
    content = record(0, bytes(5000))
    for codec in ALL_CODECS:
        decoder = placed(decoder_class(read_committed=True, max_unpacked=len(content)))
        assert told(decoder, batch([content], codec))[0].rows == 1
        decoder = placed(decoder_class(read_committed=True, max_unpacked=len(content) - 1))
        assert told(decoder, batch([content], codec))[0].damage == f"unpacks to more than {len(content) - 1} bytes"


@pytest.mark.scenario("TestDecompressBombBounded")
def test_a_bomb_is_refused_without_unpacking_it(decoder: Decoder) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    packed = b"".join([bomb.compress(bytes(MB)) for _ in range(20)]) + bomb.flush()
    whole = fetched.batch_of(packed, 1, "gzip", fetched.BatchFields())
    assert told(decoder, whole)[0].damage == f"unpacks to more than {MB} bytes"


@pytest.mark.scenario("0036 partial_fetch")
def test_a_batch_that_is_cut_short_is_no_damage_behind_a_whole_one(decoder: Decoder) -> None:
    for length in (1, 11, 12, 16, 17, 60, 61, len(WHOLE) - 1):
        part, found = told(placed(decoder), batch(records(5)), WHOLE[:length])
        assert (offsets(found), part.next_offset, part.damage, part.incomplete) == (list(range(5)), 5, "", False)
        part, found = told(placed(decoder), WHOLE[:length])
        assert (found, part.next_offset, part.damage, part.incomplete) == ([], 0, "", True)


def test_errors_leaders_and_nodes_are_told(decoder: Decoder) -> None:
    part = fetched.partition(
        FETCH, 3, error_code=6, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1,
        current_leader=STRUCTURES.LeaderIdAndEpoch(leader_id=4, leader_epoch=11),
        diverging_epoch=STRUCTURES.EpochEndOffset(epoch=9, end_offset=1234),
    )  # fmt: skip
    nodes = (STRUCTURES.NodeEndpoint(node_id=4, host="kafka-4", port=9092, rack="b"),)
    response = decoder.decode(fetched.body(FETCH, {ORDERS: [part]}, node_endpoints=nodes), FETCH)
    (found,) = response.partitions
    assert (found.error, found.leader_id, found.leader_epoch, found.next_offset) == (6, 4, 11, 0)
    assert (found.diverging_epoch, found.diverging_end, found.rows) == (9, 1234, 0)
    assert list(response.nodes) == [(4, "kafka-4", 9092)]


def test_records_beside_an_error_are_not_read(decoder: Decoder) -> None:
    part, found = told(decoder, batch(records(3)), error_code=3)
    assert (part.error, found, part.next_offset) == (3, [], 0)


def test_a_partition_without_news_is_not_told(decoder: Decoder) -> None:
    assert told(decoder)[0].high_watermark == 100
    assert not decoder.decode(answer(), FETCH).partitions
    assert told(decoder, high_watermark=101)[0].high_watermark == 101
    assert told(decoder, high_watermark=101, log_start_offset=1)[0].log_start == 1


def test_a_partition_that_was_forgotten_is_passed_over(decoder: Decoder) -> None:
    decoder.forget(ORDERS, 3)
    decoder.forget(ORDERS, 4)
    assert not decoder.decode(answer(batch(records(3))), FETCH).partitions
    assert told(placed(decoder, 1), batch(records(3)))[0].rows == 2


@pytest.mark.scenario("testStaleOutOfRangeError")
def test_an_error_about_an_offset_from_before_a_seek_is_passed_over(decoder: Decoder) -> None:
    """The fetcher forgets a partition whose answer it does not wait for any more."""
    decoder.forget(ORDERS, 3)
    assert not decoder.decode(answer(error_code=1), FETCH).partitions
    assert told(placed(decoder, 0), batch(records(1)))[0].rows == 1


def test_several_topics_and_partitions_share_the_columns(decoder: Decoder) -> None:
    for partition in (0, 1):
        decoder.place(SHIPMENTS, partition, "shipments", 0)
    topics = {
        SHIPMENTS: [fetched.partition(FETCH, n, [batch(records(2), base_offset=10 * n)]) for n in (0, 1, 2)],
        ORDERS: [fetched.partition(FETCH, 3, [batch(records(1))])],
    }
    response = decoder.decode(fetched.body(FETCH, topics), FETCH)
    assert [(part.topic, part.partition, part.first_row, part.rows) for part in response.partitions] == [
        ("shipments", 0, 0, 2), ("shipments", 1, 2, 2), ("orders", 3, 4, 1),
    ]  # fmt: skip
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows(response)] == [
        ("shipments", 0, 0), ("shipments", 0, 1), ("shipments", 1, 10), ("shipments", 1, 11), ("orders", 3, 0),
    ]  # fmt: skip


def test_a_topic_made_anew_is_the_one_placed_last_where_topics_have_names(decoder: Decoder) -> None:
    decoder.place(SHIPMENTS, 3, "orders", 0)
    response = decoder.decode(fetched.body(12, {b"orders": [fetched.partition(12, 3, [batch(records(1))])]}), 12)
    assert [part.topic_id for part in response.partitions] == [SHIPMENTS]


def test_a_response_is_cut_where_its_batches_come_to_the_limit_and_gone_on_with(decoder_class: type[Decoder]) -> None:
    content = record(0, bytes(1000))
    decoder = placed(decoder_class(read_committed=True, max_unpacked=3 * len(content)))
    decoder.place(SHIPMENTS, 0, "shipments", 0)
    body = fetched.body(
        FETCH,
        {
            ORDERS: [fetched.partition(FETCH, 3, [batch([content], base_offset=n) for n in range(7)])],
            SHIPMENTS: [fetched.partition(FETCH, 0, [batch(records(1))]), fetched.partition(FETCH, 9)],
        },
    )
    calls = [decoder.decode(body, FETCH)]
    while more := calls[-1].more:
        calls.append(decoder.decode(body, FETCH, more))
    found = [[(row["topic"], row["offset"]) for row in rows(each)] for each in calls]
    assert [len(each) for each in found] == [3, 3, 2]
    assert [row for each in found for row in each] == [*(("orders", n) for n in range(7)), ("shipments", 0)]


def test_aborted_records_are_left_out_behind_a_cut(decoder_class: type[Decoder]) -> None:
    decoder = placed(decoder_class(read_committed=True, max_unpacked=50))
    body = answer(*transactions(), aborted_transactions=[(7, 0)])
    response = decoder.decode(body, FETCH)
    found = rows(response)
    while response.more:
        response = decoder.decode(body, FETCH, response.more)
        found += rows(response)
    assert offsets(found) == [2, 3, 5, 6, 9]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_any_buffer(decoder: Decoder, kind: Any) -> None:
    response = decoder.decode(kind(answer(batch(records(3)))), FETCH)
    assert offsets(rows(response)) == [0, 1, 2]


def test_rows_outlive_the_body_and_are_handed_out_more_than_once(decoder: Decoder) -> None:
    body = bytearray(answer(batch(records(3))))
    response = decoder.decode(body, FETCH)
    body[:] = bytes(len(body))
    assert offsets(rows(response)) == offsets(rows(response)) == [0, 1, 2]


def test_a_frame_that_is_cut_short_is_refused_and_nothing_moves(decoder: Decoder) -> None:
    body = answer(batch(records(3)), batch(records(3), base_offset=3))
    for length in range(len(body)):
        with pytest.raises(ValueError, match="Fetch v17 cannot be read"):
            decoder.decode(body[:length], FETCH)
    assert told(decoder, batch(records(3)))[0].rows == 3


@pytest.mark.parametrize("version", [-1, 0, 11, 19])
def test_other_versions_are_refused(decoder: Decoder, version: int) -> None:
    with pytest.raises(ValueError, match="only v12 to v18"):
        decoder.decode(answer(), version)


@pytest.mark.parametrize("limit", [-1, 0, MOST_UNPACKED + 1, 2**31])
def test_a_limit_that_offsets_of_32_bits_do_not_reach_is_refused(decoder_class: type[Decoder], limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_unpacked = {limit}, where 1 to {MOST_UNPACKED} bytes are possible"):
        decoder_class(read_committed=True, max_unpacked=limit)
    with pytest.raises(ValueError, match=f"cut_at = {limit}, where 1 to {MOST_UNPACKED} bytes are possible"):
        decoder_class(read_committed=True, max_unpacked=MB, cut_at=limit)


@pytest.mark.scenario("testLeaderEpochInConsumerRecord")
def test_a_response_is_cut_where_a_partition_goes_on_in_another_leader_epoch(decoder: Decoder) -> None:
    """KIP-320: the epoch that is kept beside an offset is that of the record before it."""
    batches = [
        batch(records(2), epoch=5),
        batch(records(1), base_offset=2, epoch=5),
        batch(records(1), base_offset=3, epoch=6),
        marker(4, producer_id=7, commits=True, epoch=7),
        batch(records(2), base_offset=5, epoch=8),
    ]
    first, found, moved = 0, [], []
    while True:
        response = decoder.decode(answer(*batches), FETCH, first)
        (part,) = response.partitions
        found += [(message.offset(), message.leader_epoch()) for message in of_one(response, part)]
        moved.append((part.next_offset, part.last_epoch))
        if not (first := response.more):
            break
    assert found == [(0, 5), (1, 5), (2, 5), (3, 6), (5, 8), (6, 8)]
    assert moved == [(3, 5), (4, 6), (7, 8)]


@pytest.mark.parametrize(("cut_at", "pieces"), [(1, 6), (3 * LARGE, 2), (MOST_UNPACKED, 1)])
def test_a_response_is_cut_where_its_batches_come_to_so_much_and_a_larger_batch_comes_whole(
    decoder_class: type[Decoder], cut_at: int, pieces: int
) -> None:
    decoder = placed(decoder_class(read_committed=True, max_unpacked=8 * MB, cut_at=cut_at))
    body = answer(*(batch([record(0, b"0" * LARGE)], "zstd", base_offset=at) for at in range(6)))
    first, found = 0, []
    for piece in range(1, pieces + 1):
        response = decoder.decode(body, FETCH, first)
        found += offsets(rows(response))
        first = response.more
        assert (first > 0) is (piece < pieces)
    assert found == list(range(6))


def test_what_anybody_keeps_of_an_answer_is_counted_until_it_is_gone(decoder: Decoder) -> None:
    """A slice of one column is enough: it keeps the memory of what was decoded with it."""
    before = decoder.held()
    response = decoder.decode(answer(batch([record(0, b"x" * LARGE)])), FETCH)
    assert decoder.held() - before >= LARGE
    value = pa.record_batch(response.rows).column("value")[0:1]
    del response
    assert decoder.held() - before >= LARGE
    del value
    gc.collect()
    assert decoder.held() == before


def test_what_is_gathered_of_several_answers_is_counted_too(decoder: Decoder) -> None:
    if type(decoder).__module__ != "kunicorn_columns":
        pytest.skip("the reference's rows are pyarrow's, which gathers them where nobody counts")
    before = decoder.held()
    several: Any = [
        decoder.decode(answer(batch([record(0, b"x" * LARGE)], base_offset=at)), FETCH).rows for at in (0, 1)
    ]
    gathered = several[0].joined(several[1:]).batch
    assert len(gathered) == 2
    assert decoder.held() - before >= 4 * LARGE
    several.clear()
    gc.collect()
    assert 2 * LARGE <= decoder.held() - before < 4 * LARGE
    del gathered
    assert decoder.held() == before


@pytest.mark.parametrize("headers", [(), ((b"traceparent", b"x" * 55),)])
@pytest.mark.parametrize("as_array", [False, True], ids=["rows", "array"])
def test_an_answer_of_one_record_counts_with_what_it_takes_beside_that(
    decoder: Decoder, headers: Any, as_array: bool
) -> None:
    """A topic to which little is written has thousands of such answers wait for a handler that does not get on."""
    if type(decoder).__module__ != "kunicorn_columns":
        pytest.skip("the reference's memory is Python's and pyarrow's")

    def answers(number: int) -> list[Any]:
        found: list[Any] = [placed(decoder).decode(body, FETCH).rows for _ in range(number)]
        if as_array:
            for each in found:
                each.__arrow_c_array__()
        return found

    body = answer(batch([record(0, b"x" * 100, b"k", headers)]))
    answers(100)
    gc.collect()
    held, taken = decoder.held(), allocated()
    kept = answers(1000)
    gc.collect()
    held, taken = decoder.held() - held, allocated() - taken
    assert 0.9 * taken < held < 1.25 * taken
    if not as_array:
        assert 0.9 * held < sum(rows.nbytes for rows in kept) < 1.1 * held
    del kept


def test_what_an_answer_takes_beside_its_rows_is_shared_out_among_them(decoder: Decoder) -> None:
    """Else an answer about a hundred partitions would count a hundred times."""
    if type(decoder).__module__ != "kunicorn_columns":
        pytest.skip("the reference's rows count what pyarrow says")
    response = decoder.decode(answer(batch(records(100))), FETCH)
    each = sum(response.rows.cut(at, 1, 0).nbytes for at in range(100))
    assert response.rows.nbytes <= each <= response.rows.nbytes * 1.1


@pytest.mark.parametrize("number", [9, 17, 600, 1100])
def test_columns_that_have_grown_keep_little_that_is_spare(decoder_class: type[Decoder], number: int) -> None:
    """What is spare would count as kept by handlers."""
    if decoder_class.__module__ != "kunicorn_columns":
        pytest.skip("the reference's columns are pyarrow's")
    decoder = placed(decoder_class(read_committed=True, max_unpacked=8 * MB))
    before = decoder.held()
    response = decoder.decode(answer(batch(records(number))), FETCH)
    assert decoder.held() - before < response.rows.nbytes * 1.2


def test_the_memory_that_one_large_batch_unpacked_to_is_given_back(decoder_class: type[Decoder]) -> None:
    """It is no memory of columns, which `held` counts: a worker would have it until it ends."""
    if decoder_class.__module__ != "kunicorn_columns":
        pytest.skip("the reference's memory is Python's and pyarrow's, which keep it")
    packed = answer(batch([record(each, b"x" * LARGE) for each in range(200)], "zstd"))
    decoder = placed(decoder_class(read_committed=False, max_unpacked=256 * MB, cut_at=MB))
    gc.collect()
    before = resident()
    response = decoder.decode(packed, FETCH)
    assert response.partitions[0].rows == 200
    del response
    gc.collect()
    assert resident() - before < 50 * MB


def resident() -> int:
    """Bytes of memory that this process has."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def test_a_topic_leaves_nothing_behind_with_its_last_place(decoder: Decoder) -> None:
    def come_and_go(first: int) -> None:
        for number in range(first, first + 1000):
            topic_id, name = number.to_bytes(16), f"{number:01000}"
            for partition in range(2):
                decoder.place(topic_id, partition, name, 0)
            for partition in range(2):
                decoder.forget(topic_id, partition)

    come_and_go(0)
    before = allocated()
    come_and_go(1000)
    assert allocated() - before < 200_000, "of their names alone there is a megabyte"


def test_a_topic_that_was_created_anew_is_known_by_its_name_when_the_old_one_is_forgotten(decoder: Decoder) -> None:
    decoder.place(SHIPMENTS, 3, "orders", 0)
    for partition in (3, 4):
        decoder.forget(ORDERS, partition)
    frame = fetched.partition(12, 3, [batch(records(3))])
    (part,) = decoder.decode(fetched.body(12, {b"orders": [frame]}), 12).partitions
    assert (part.topic_id, part.next_offset) == (SHIPMENTS, 3)


class _Allocator(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]


_MAPPED, _IN_USE = 4, 7
"""Places of `hblkhd` and `uordblks`."""


def allocated() -> int:
    """Bytes that the C library's allocator has given out, and were not given back: a count of its own, by the byte."""
    ask: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        pytest.skip("this C library does not tell what it has given out")
    ask.restype = _Allocator
    counts = ask().counts
    return int(counts[_MAPPED] + counts[_IN_USE])
