"""Retry topics in the testing kit: the worker's own parts, without a broker and without waiting."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kunicorn import Batch, Record, Retry
from kunicorn.errors import ConfigError
from kunicorn.handler.config import RetryTopic
from kunicorn.handler.dead_letters import cause_of, read, retries
from kunicorn.ipc.clock import wall_ms
from kunicorn.testing import HandlerTest, record

MODES: list[dict[str, Any]] = [{}, {"delivery": "at_least_once"}, {"delivery": "transactions"}]


def through_topics(handle: Any, producing: Any = None, **settings: Any) -> HandlerTest:
    given = {"max_attempts": 1, "on_failure": "dead_letter", "retry_topic_delays_ms": [5000, 600_000], **settings}
    return HandlerTest(handle, settings={"producing": producing or {}}, **given)


@pytest.mark.parametrize("producing", MODES)
def test_a_record_that_fails_everywhere_goes_through_every_topic_and_ends_as_a_dead_letter(producing: Any) -> None:
    seen: list[tuple[str, str, int]] = []

    def handle(record: Record) -> None:
        seen.append((record.topic, record.idempotency_key, record.origin.attempts))
        if record.value == b"bad":
            raise ConnectionError("away")

    test = through_topics(handle, producing)
    first = test.run(record("a"), record("bad", key="k", timestamp=1_000), record("c"))
    assert first.outcomes == ["done", "retry_topic", "done"]
    assert first.committed == {("test", 0): 3}
    began = time.monotonic()
    second = test.run(*first.retries)
    third = test.run(*second.retries)
    assert time.monotonic() - began < 60, "ten minutes take no time here"
    assert (second.outcomes, third.outcomes) == (["retry_topic"], ["dead_letter"])
    assert third.retries == []
    assert seen == [
        ("test", "test-0-0", 0),
        ("test", "test-0-1", 0),
        ("test", "test-0-2", 0),
        ("test.retry.5s", "test-0-1", 1),
        ("test.retry.10m", "test-0-1", 2),
    ]
    (letter,) = third.dead_letters
    told = read(letter.raw_headers)
    assert (letter.key, letter.timestamp) == (b"k", 1_000)
    assert (told.topic, told.offset, told.cause.attempts) == ("test", 1, 3)


def test_tries_in_place_come_first_in_each_topic() -> None:
    def handle(record: Record) -> None:
        raise Retry("locked")

    test = through_topics(handle, max_attempts=2)
    first = test.run(record("a"))
    second = test.run(*first.retries)
    assert [run.records[0].attempts for run in (first, second)] == [2, 2]
    assert second.retries[0].topic == "test.retry.10m"


def test_no_record_of_a_retry_topic_is_handled_before_its_time_and_other_partitions_go_on() -> None:
    handled: list[bytes | None] = []
    letter = retries(RetryTopic("test.retry.10m", 600_000)).letter
    made = Record.of(_message(b"later"))
    waits = letter(made, "test", cause_of(ValueError(), 1), time.time_ns() // 1_000_000)

    test = through_topics(lambda record: handled.append(record.value))
    run = test.run(
        record(waits.value, topic="test.retry.10m", headers=list(waits.headers), timestamp=waits.timestamp),
        *(record(str(number)) for number in range(5)),
    )
    assert run.outcomes == ["done"] * 6
    assert handled == [b"0", b"1", b"2", b"3", b"4", b"later"]


def _message(value: bytes) -> Any:
    from kunicorn.testing.memory import message_of, placed

    return message_of(placed([record(value)], "test")[0])


def test_every_record_of_a_failed_batch_goes_into_the_retry_topic() -> None:
    def handle(batch: Batch) -> None:
        if b"bad" in batch.values():
            raise ValueError("bad")

    test = through_topics(handle, mode="batch", batch_max_records=2, batch_max_ms=50)
    run = test.run(record("a"), record("b"), record("bad"), record("d"))
    assert run.outcomes == ["done", "done", "retry_topic", "retry_topic"]
    assert [each.value for each in run.retries] == [b"bad", b"d"]
    assert test.run(*run.retries).outcomes == ["retry_topic", "retry_topic"]


def test_what_no_other_try_would_change_becomes_a_dead_letter_at_once() -> None:
    def handle(record: Record) -> None:
        raise SystemExit

    assert through_topics(handle).run(record("a")).outcomes == ["dead_letter"]


def test_a_worker_killed_before_its_offset_counts_leaves_the_record_to_its_successor() -> None:
    def handle(record: Record) -> None:
        if record.value == b"bad":
            raise ValueError("bad")

    test = through_topics(handle)
    killed = test.run(record("a"), record("bad"), record("c"), kill_at=2)
    assert [each.value for each in killed.left] == [b"c"]
    assert killed.committed == {("test", 0): 2}


def test_a_handler_that_keeps_its_offsets_itself_has_no_retry_topics() -> None:
    class Keeper:
        def handle(self, record: Record) -> None: ...

        def load_offsets(self, partitions: Any) -> dict[Any, int]:
            return {}

    with pytest.raises(ConfigError, match=r"retry_topic_delays_ms is set, but .* keeps its offsets itself"):
        through_topics(Keeper).run(record("a"))


def test_a_ripe_record_waits_for_no_fuller_batch_while_those_behind_it_wait_for_their_time() -> None:
    handled: list[tuple[bytes | None, int]] = []

    def handle(batch: Batch) -> None:
        handled.extend((value, wall_ms()) for value in batch.values())

    now = wall_ms()
    test = through_topics(handle, mode="batch", batch_max_ms=500)
    run = test.run(
        record("ripe", topic="test.retry.10m", timestamp=now - 700_000),
        record("later", topic="test.retry.10m", timestamp=now),
    )
    assert run.outcomes == ["done", "done"]
    (ripe, at), (later, then) = handled
    assert (ripe, later) == (b"ripe", b"later")
    assert at - now < 60_000
    assert then - now >= 600_000
