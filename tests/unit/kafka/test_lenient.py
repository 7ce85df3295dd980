"""The forgiving reader: the strict one's equal on all it reads, and a reader where that gives up."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from kio.schema.describe_topic_partitions.v0.response import Cursor, DescribeTopicPartitionsResponse
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.serial import entity_reader
from kio.serial.errors import BufferUnderflow

from kunicorn.kafka.codec import decode, encode
from kunicorn.kafka.tolerant_reader import lenient_reader
from kunicorn.kafka.versions import RESPONSES, Api
from tests.fakes.messages import blank, nested, sample

KNOWN = b"\x00\x00\x00\x64\x00\x1b"
"""Heartbeat v4 up to its tags: throttled for 100 ms, error 27."""


@pytest.mark.parametrize(("api", "version"), RESPONSES, ids=lambda value: getattr(value, "title", value))
def test_it_reads_what_the_strict_reader_reads(api: Api, version: int) -> None:
    schema = RESPONSES[api, version]
    rng = Random(f"lenient {api} {version}")
    for _ in range(30):
        data = b"\xaa\xbb" + encode(sample(schema, rng))
        assert lenient_reader(schema)(data, 2) == entity_reader(schema)(data, 2)


def test_it_steps_over_tags_it_does_not_know() -> None:
    data = KNOWN + b"\x02" + b"\x05\x03abc" + b"\x90\x4e\x00" + b"rest"
    with pytest.raises(KeyError):
        entity_reader(HeartbeatResponse)(data, 0)
    message, size = decode(HeartbeatResponse, data, 0)
    assert (message.error_code, message.throttle_time) == (27, timedelta(milliseconds=100))
    assert data[size:] == b"rest"


def test_it_reads_the_tags_it_knows_among_others() -> None:
    schema = RESPONSES[Api.API_VERSIONS, 3]
    plain = encode(blank(schema, finalized_features_epoch=7))
    assert plain[-11:-9] == b"\x01\x01"
    data = plain[:-11] + b"\x02" + plain[-10:] + b"\x63\x02zz"
    message, size = decode(schema, data, 0)
    assert (message.finalized_features_epoch, size) == (7, len(data))


def test_a_tag_longer_than_the_frame_is_an_underflow() -> None:
    with pytest.raises(BufferUnderflow, match="tagged field 5 ends 97 bytes behind the frame"):
        lenient_reader(HeartbeatResponse)(KNOWN + b"\x01\x05\x64abc", 0)


def test_it_keeps_an_error_code_that_nobody_knows() -> None:
    message, _ = decode(HeartbeatResponse, b"\x00\x00\x00\x00\x03\xe7\x00", 0)
    assert message.error_code == 999


def test_it_takes_null_for_a_string_that_must_not_be_null() -> None:
    schema = RESPONSES[Api.FIND_COORDINATOR, 3]
    data = encode(blank(schema, host="h"))
    assert data.count(b"\x02h") == 1
    message, _ = decode(schema, data.replace(b"\x02h", b"\x00"), 0)
    assert message.host is None


def test_a_time_that_no_timedelta_holds_is_clamped() -> None:
    data = b"\x00\x00\xff\xff\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"
    message, size = decode(SaslAuthenticateResponse, data, 0)
    assert message.session_lifetime > timedelta(days=365_000)
    assert size == len(data)


@pytest.mark.parametrize("cursor", [None, blank(Cursor, topic_name="t", partition_index=4)])
def test_a_nullable_structure_is_read_either_way(cursor: Cursor | None) -> None:
    schema = DescribeTopicPartitionsResponse
    data = encode(blank(schema, next_cursor=cursor))
    assert lenient_reader(schema)(data, 0) == entity_reader(schema)(data, 0)
    assert lenient_reader(schema)(data, 0)[0].next_cursor == cursor


def test_any_byte_but_zero_is_true() -> None:
    schema = RESPONSES[Api.METADATA, 7]
    data = encode(blank(nested(schema, "topics"), name="t", is_internal=True))
    assert data[5:6] == b"\x01"
    message, _ = decode(nested(schema, "topics"), data[:5] + b"\x07" + data[6:], 0)
    assert message.is_internal is True
