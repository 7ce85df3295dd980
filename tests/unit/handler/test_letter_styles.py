"""Headers of dead letters as Spring Kafka, Kafka Connect and Karafka write and read them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.errors import ConfigError
from kunicorn.handler.dead_letters import STYLE, Cause, Unreadable, letter_of, read, replayed
from kunicorn.handler.record import Record
from kunicorn.testing import HandlerTest, record

CAUSE = Cause("shop.NoStock", "no stock", "in pack", 3)
USERS: list[tuple[str, bytes | None]] = [("trace", b"1"), ("trace", None)]
SPRING: dict[str, bytes] = {
    "kafka_dlt-original-topic": b"orders",
    "kafka_dlt-original-partition": b"\x00\x00\x00\x03",
    "kafka_dlt-original-offset": b"\x00\x00\x00\x00\x00\x00\x01\x07",
    "kafka_dlt-original-timestamp": b"\x00\x00\x01\x8b\xcf\xe5\x68\x00",
    "kafka_dlt-original-consumer-group": b"shop",
    "kafka_dlt-exception-fqcn": b"shop.NoStock",
    "kafka_dlt-exception-message": b"no stock",
    "kafka_dlt-exception-stacktrace": b"in pack",
}
CONNECT: dict[str, bytes] = {
    "__connect.errors.topic": b"orders",
    "__connect.errors.partition": b"3",
    "__connect.errors.offset": b"263",
    "__connect.errors.connector.name": b"shop",
    "__connect.errors.stage": b"TASK_PUT",
    "__connect.errors.exception.class.name": b"shop.NoStock",
    "__connect.errors.exception.message": b"no stock",
    "__connect.errors.exception.stacktrace": b"in pack",
}
KARAFKA: dict[str, bytes] = {
    "source_topic": b"orders",
    "source_partition": b"3",
    "source_offset": b"263",
    "source_consumer_group": b"shop",
    "source_attempts": b"3",
}
STYLES = {"spring": SPRING, "connect": CONNECT, "karafka": KARAFKA}


def failed(headers: list[tuple[str, bytes | None]]) -> Record:
    place: dict[str, Any] = {"topic": "orders", "partition": 3, "offset": 263, "headers": headers}
    return Record.of(Message(**place, key=b"k", value=b"v", timestamp=(1, 1_700_000_000_000)))


@pytest.mark.parametrize("style", STYLES)
def test_names_and_encodings_are_those_that_others_read(style: str) -> None:
    letter = letter_of(failed(USERS), "shop", CAUSE, 1_700, style)
    theirs = {name: value for name, value in letter.headers if name in STYLES[style]}
    assert theirs == STYLES[style]
    others = [name for each, names in STYLES.items() if each != style for name in names]
    assert not [name for name, _ in letter.headers if name in others]


@pytest.mark.parametrize("style", STYLES)
def test_our_own_headers_stay_and_a_replay_takes_theirs_away(style: str) -> None:
    told = read(letter_of(failed(USERS), "shop", CAUSE, 1_700, style).headers)
    assert (told.topic, told.partition, told.offset, told.time_ms, told.cause) == ("orders", 3, 263, 1_700, CAUSE)
    assert told.headers == USERS
    again = letter_of(failed(list(replayed(told))), "shop", CAUSE, 1_800, style)
    names = [name for name, _ in again.headers if name != "trace"]
    assert len(names) == len(set(names)), "a record that fails again has one set of them"


@pytest.mark.parametrize("style", STYLES)
def test_letters_that_they_have_written_are_read_and_replayed(style: str) -> None:
    told = read([*USERS, *STYLES[style].items()], 42)
    assert (told.topic, told.partition, told.offset, told.group, told.time_ms) == ("orders", 3, 263, "shop", 42)
    if style != "karafka":  # It tells no exception.
        assert (told.cause.type, told.cause.message, told.cause.stack) == ("shop.NoStock", "no stock", "in pack")
    assert replayed(told) == [*USERS, ("kunicorn-replays", b"1")]


def test_of_springs_wrapped_exceptions_the_cause_is_told() -> None:
    told = read([*SPRING.items(), ("kafka_dlt-exception-cause-fqcn", b"shop.Inner")])
    assert told.cause.type == "shop.Inner"


def test_without_a_style_a_records_own_headers_of_such_names_stay() -> None:
    own: list[tuple[str, bytes | None]] = [("source_topic", b"mine")]
    letter = letter_of(failed(own), "shop", CAUSE, 1)
    assert read(letter.headers).headers == own
    assert STYLE not in dict(letter.headers)


@pytest.mark.parametrize(
    "broken",
    [
        {"kafka_dlt-original-partition": b"3"},
        {"kafka_dlt-original-offset": b"7"},
        {"kafka_dlt-original-timestamp": b"no long"},
    ],
)
def test_headers_that_are_no_numbers_of_springs_are_no_letter(broken: dict[str, bytes]) -> None:
    with pytest.raises(Unreadable, match="no header kunicorn-topic"):
        read({**SPRING, **broken}.items())


def fail(record: Record) -> None:
    raise ValueError("no")


@pytest.mark.parametrize("style", STYLES)
def test_workers_write_them_where_the_settings_say(style: str) -> None:
    settings = {"dead_letters": {"headers": style}}
    test = HandlerTest(fail, on_failure="dead_letter", max_attempts=1, settings=settings)
    (letter,) = test.run(record("a")).dead_letters
    assert set(STYLES[style]) <= set(letter.headers)
    assert letter.error_type == "ValueError"


def test_another_style_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dead_letters.headers"):
        HandlerTest(fail, settings={"dead_letters": {"headers": "flink"}}).run(record("a"))
