"""What a record becomes on its way into a retry topic, and out of the last one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.config import RetryTopic
from kunicorn.handler.dead_letters import Cause, Letter, dead_letters, read, retries
from kunicorn.handler.record import Origin, Record

CAUSE = Cause("shop.Away", "no database", "stack", attempts=2)
SOON, LATE = RetryTopic("shop.retry.5s", 5000), RetryTopic("shop.retry.1m", 60_000)
USERS = [("trace", b"1"), ("trace", b"2"), ("nothing", None)]


def record(topic: str, partition: int, offset: int, letter: Letter) -> Record:
    kind = TIMESTAMP_NOT_AVAILABLE if letter.timestamp is None else TIMESTAMP_CREATE_TIME
    return Record.of(
        Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=letter.key,
            value=letter.value,
            headers=list(letter.headers),
            timestamp=(kind, letter.timestamp or 0),
        )
    )


@pytest.fixture
def first() -> Record:
    return record("orders", 3, 41, Letter(b"customer-7", b"v", USERS, 1_000))


def test_a_record_in_a_retry_topic_has_its_own_time_and_tells_where_it_was(first: Record) -> None:
    letter = retries(SOON).letter(first, "shop", CAUSE, 9_000)
    assert (letter.key, letter.value, letter.timestamp) == (b"customer-7", b"v", 9_000)
    assert list(letter.headers)[:3] == USERS
    again = record(SOON.name, 0, 7, letter)
    assert (again.topic, again.partition, again.offset, again.timestamp) == (SOON.name, 0, 7, 9_000)
    assert again.origin == Origin("orders", 3, 41, 1_000, attempts=2)
    headers = dict(again.headers)
    assert (headers["kunicorn-error-type"], headers["kunicorn-error-message"]) == (b"shop.Away", b"no database")
    assert headers["kunicorn-group"] == b"shop"


def test_every_try_has_the_idempotency_key_of_the_first(first: Record) -> None:
    again = record(SOON.name, 0, 7, retries(SOON).letter(first, "shop", CAUSE, 9_000))
    third = record(LATE.name, 1, 9, retries(LATE).letter(again, "shop", CAUSE, 20_000))
    assert {each.idempotency_key for each in (first, again, third)} == {"orders-3-41"}
    assert third.origin.attempts == 4
    assert [name for name, _ in third.headers].count("kunicorn-retry-topic") == 1


def test_a_dead_letter_after_the_last_topic_names_the_first_place_and_counts_every_try(first: Record) -> None:
    again = record(SOON.name, 0, 7, retries(SOON).letter(first, "shop", CAUSE, 9_000))
    letter = dead_letters("letters").letter(again, "shop", CAUSE, 20_000)
    told = read(letter.headers)
    assert (told.topic, told.partition, told.offset, told.cause.attempts) == ("orders", 3, 41, 4)
    assert told.headers == USERS
    assert letter.timestamp == 1_000
    assert "kunicorn-retry-topic" not in dict(letter.headers)


def test_a_record_without_a_time_has_none_afterwards_either(first: Record) -> None:
    timeless = record("orders", 3, 41, Letter(None, None, [], None))
    again = record(SOON.name, 0, 7, retries(SOON).letter(timeless, "shop", CAUSE, 9_000))
    assert again.origin.timestamp is None
    assert dead_letters("letters").letter(again, "shop", CAUSE, 20_000).timestamp is None


def test_headers_that_a_handler_copied_into_another_topic_make_no_retry_of_it(first: Record) -> None:
    letter = retries(SOON).letter(first, "shop", CAUSE, 9_000)
    output = record("totals", 2, 5, letter)
    assert output.origin == Origin("totals", 2, 5, 9_000)
    assert output.idempotency_key == "totals-2-5"


def test_headers_that_are_no_numbers_make_no_retry(first: Record) -> None:
    headers = [("kunicorn-retry-topic", b"r"), ("kunicorn-topic", b"orders"), ("kunicorn-partition", b"x")]
    assert record("r", 0, 1, Letter(None, None, headers, None)).idempotency_key == "r-0-1"


@pytest.mark.parametrize(
    "damaged",
    [
        {"kunicorn-timestamp": b"99999999999999999999"},
        {"kunicorn-timestamp": b"-5"},
        {"kunicorn-partition": b"99999999999"},
        {"kunicorn-partition": b"-1"},
        {"kunicorn-offset": b"9223372036854775808"},
        {"kunicorn-attempts": b"99999999999"},
        {"kunicorn-attempts": b"many"},
    ],
)
@pytest.mark.parametrize("style", ["kunicorn", "spring", "connect", "karafka"])
def test_a_record_whose_headers_name_what_no_record_can_have_is_at_home_in_the_retry_topic(
    first: Record, damaged: dict[str, bytes], style: str
) -> None:
    letter = retries(SOON).letter(first, "shop", CAUSE, 9_000)
    headers = list((dict(letter.headers) | damaged).items())
    again = record(SOON.name, 0, 7, replace(letter, headers=headers))
    assert again.origin == Origin(SOON.name, 0, 7, 9_000)
    assert dead_letters("letters", style).letter(again, "shop", CAUSE, 20_000).timestamp == 9_000
