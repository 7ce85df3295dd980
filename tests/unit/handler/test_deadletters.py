"""A dead letter's headers, written and read back."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.dead_letters import Cause, Unreadable, cause_of, letter_of, read, replayed, retry_of
from kunicorn.handler.record import Record

CAUSE = Cause("ValueError", "no such customer", "in charge", 3)
USERS = [("trace", b"1"), ("trace", None), ("kunicornish", b"\xff")]


def record(headers: list[tuple[str, bytes | None]]) -> Record:
    return Record.of(
        Message(topic="orders", partition=3, offset=7, key=b"k", value=b"v", headers=headers, timestamp=(1, 1_500))  # type: ignore[arg-type]
    )


@given(
    error=st.text(min_size=1).filter(lambda text: text.isprintable()), message=st.text(), attempts=st.integers(0, 99)
)
def test_what_is_written_is_read_back(error: str, message: str, attempts: int) -> None:
    letter = letter_of(record(USERS), "shop", Cause(error, message, "", attempts), 1_700)
    assert (letter.key, letter.value, letter.timestamp) == (b"k", b"v", 1_500)
    told = read(letter.headers)
    assert (told.topic, told.partition, told.offset, told.group, told.time_ms) == ("orders", 3, 7, "shop", 1_700)
    assert told.headers == USERS
    assert (told.cause.type, told.cause.attempts) == (error, attempts)


def test_a_record_that_fails_again_after_its_replay_has_one_set_of_headers_and_the_count() -> None:
    once = read(letter_of(record(USERS), "shop", CAUSE, 1).headers)
    letter = letter_of(record(list(replayed(once))), "shop", CAUSE, 2)
    again = read(letter.headers)
    assert (again.replays, again.time_ms, again.headers) == (1, 2, USERS)
    names = [name for name, _ in letter.headers if name.startswith("kunicorn-")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([], "no header kunicorn-topic"),
        ([("kunicorn-topic", b"orders"), ("kunicorn-partition", b"0")], "no header kunicorn-offset"),
        ([*letter_of(record([]), "shop", CAUSE, 1).headers, ("kunicorn-offset", b"seven")], "no number"),
    ],
)
def test_what_is_no_letter_of_ours_is_refused_with_what_is_missing(
    headers: list[tuple[str, bytes | None]], why: str
) -> None:
    with pytest.raises(Unreadable, match=why):
        read(headers)


def test_a_damaged_count_of_replays_makes_no_letter_of_others_either() -> None:
    springs = [
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 3)),
    ]
    assert read(springs, 1).offset == 3
    with pytest.raises(Unreadable, match="a header that is no number"):
        read([*springs, ("kunicorn-replays", b"abc")], 1)


def test_an_endless_message_and_stack_are_bounded() -> None:
    def fall(depth: int) -> None:
        if depth:
            fall(depth - 1)
        raise ValueError("x" * 10_000)

    with pytest.raises(ValueError, match="x") as caught:
        fall(500)
    cause = cause_of(caught.value, 1)
    assert len(cause.message) == 1_000
    assert "in fall" in cause.stack
    assert len(cause.stack) <= 8_000


def test_headers_of_the_producers_own_that_begin_as_ours_do_stay_with_the_record() -> None:
    own: list[tuple[str, bytes | None]] = [("kunicorn-tenant", b"shop"), ("kunicorn-topic", b"not ours")]
    retried = retry_of(record(own), "shop", CAUSE, 1, "shop.retry-5s")
    letter = letter_of(record(list(retried.headers)), "shop", CAUSE, 2)
    told = read(letter.headers)
    assert told.headers == [("kunicorn-tenant", b"shop")]
    assert replayed(told)[0] == ("kunicorn-tenant", b"shop")
    names = [name for name, _ in letter.headers]
    assert sorted(names) == sorted(set(names))
