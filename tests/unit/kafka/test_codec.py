"""Reading answers: what is readable is read, and everything else is one kind of error."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import pytest

from kunicorn.kafka.codec import MAX_FRAME_BYTES, correlation_id, decode_response, frame_length
from kunicorn.kafka.errors import ProtocolError
from kunicorn.kafka.versions import RESPONSES, Api
from tests.fakes.messages import blank_response, response_frame, sample


@pytest.mark.parametrize(("api", "version"), RESPONSES, ids=lambda value: getattr(value, "title", value))
def test_every_answer_reads_back_in_every_version(api: Api, version: int) -> None:
    rng = Random(f"{api} {version}")
    for _ in range(20):
        message = sample(RESPONSES[api, version], rng)
        frame = response_frame(5, message)
        assert correlation_id(frame) == 5
        assert decode_response(api, version, frame) == message


def test_bytes_left_over_are_mentioned_and_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    frame = response_frame(1, blank_response(Api.HEARTBEAT, 4)) + b"more"
    with caplog.at_level(logging.DEBUG):
        decode_response(Api.HEARTBEAT, 4, frame)
    assert "Heartbeat v4 answer: 4 bytes left over" in caplog.text


def test_an_unreadable_answer_names_the_api_and_the_version() -> None:
    frame = response_frame(1, blank_response(Api.JOIN_GROUP, 9))
    with pytest.raises(ProtocolError, match=r"JoinGroup v9 \(9 bytes\) cannot be read: BufferUnderflow"):
        decode_response(Api.JOIN_GROUP, 9, frame[:9])


def test_a_truncated_answer_is_unreadable_wherever_it_ends() -> None:
    rng = Random(11)
    frame = response_frame(1, sample(RESPONSES[Api.METADATA, 12], rng))
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_response(Api.METADATA, 12, frame[:end])


def test_error_codes_compare_as_integers_known_or_not() -> None:
    known = response_frame(1, blank_response(Api.HEARTBEAT, 3))
    unknown = known[:-2] + (999).to_bytes(2, "big")
    assert decode_response(Api.HEARTBEAT, 3, known).error_code == 0
    assert decode_response(Api.HEARTBEAT, 3, unknown).error_code == 999


@pytest.mark.parametrize("announced", [MAX_FRAME_BYTES + 1, 3, 0, -1])
def test_a_length_that_no_frame_has_is_refused(announced: int) -> None:
    with pytest.raises(ProtocolError, match=f"announce {announced} bytes"):
        frame_length(announced.to_bytes(4, "big", signed=True))


def test_a_tls_alert_is_no_frame() -> None:
    with pytest.raises(ProtocolError, match=r"speaks TLS: set kafka.security_protocol"):
        frame_length(b"\x15\x03\x03\x00")


def test_the_largest_frame_is_still_read() -> None:
    assert frame_length(MAX_FRAME_BYTES.to_bytes(4, "big")) == MAX_FRAME_BYTES


def test_a_null_array_is_handed_on_as_none() -> None:
    message = replace(blank_response(Api.OFFSET_COMMIT, 8), topics=None)
    assert decode_response(Api.OFFSET_COMMIT, 8, response_frame(1, message)).topics is None


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        (b"\x15\x03\x03\x00", "its listener speaks TLS"),
        (b"\x16\x03\x01\x02", "its listener speaks TLS"),
        (b"HTTP", "an HTTP server"),
    ],
)
def test_what_answers_in_a_brokers_place_is_named_where_it_can_be_told(prefix: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        frame_length(prefix)
