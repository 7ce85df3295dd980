"""When records that failed are tried again, with a table of the test's."""

from __future__ import annotations

import re
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.outcome import Wait
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import TopicPartition
from kunicorn.worker.failures import Failures, Observer
from kunicorn.worker.progress import Attempt, InFlight, Lane, OffsetTracker, Slots, Stage

HOUR = 3600 * NANOSECONDS


class Parking:
    """A table where everything that failed is parked."""

    def __init__(self) -> None:
        self.tried: list[InFlight] = []
        self.parked: list[tuple[str, str]] = []
        self.given_up: list[str] = []

    def park(self, attempt: Attempt, waits_for: str, why: str) -> bool:
        self.parked.append((waits_for, why))
        attempt.flight.stage = Stage.WAITING
        return True

    def try_again(self, flight: InFlight) -> None:
        self.tried.append(flight)

    def held(self) -> list[tuple[InFlight, int]]:
        return []

    def give_up(self, attempt: Attempt, error: str) -> None:
        self.given_up.append(error)


def at_offset_5() -> InFlight:
    tracker = OffsetTracker(TopicPartition("t", 0), 1, Slots("partition", 1), 0)
    return InFlight(1, tracker, Lane(tracker, None), 5, 0, 1, (Message(topic="t", partition=0, offset=5),))


def test_a_record_that_was_taken_back_while_it_waited_and_failed_again_waits_from_then_on() -> None:
    table: Any = Parking()
    policies = Policies(RetryPolicy(10, 3_600_000, 3_600_000, None, End.HALT))
    failures = Failures(table, lambda topic: policies, None, Observer())
    flight = at_offset_5()
    for now in (0, HOUR // 2):
        failures.meet(Attempt(flight), ValueError(), now)
    failures.try_again(HOUR * 13 // 10)
    assert table.tried == [], "an hour after its last failure, to within a fifth"
    failures.try_again(2 * HOUR)
    assert table.tried == [flight]


def test_what_the_handler_has_wait_fails_no_try_and_its_time_is_none_of_the_retry_timeouts() -> None:
    table: Any = Parking()
    policies = Policies(RetryPolicy(3, 100, 100, retry_timeout_ms=60_000, on_failure=End.HALT))
    failures = Failures(table, lambda topic: policies, None, Observer())
    flight = at_offset_5()
    failures.meet(Attempt(flight), ValueError("one"), 0)
    for hour in range(5):
        failures.meet(Attempt(flight), Wait(3600, "closed"), hour * HOUR)
        failures.try_again((hour + 1) * HOUR - 1)
        assert len(table.tried) == hour, "not before its time"
        failures.try_again((hour + 1) * HOUR)
        assert len(table.tried) == hour + 1
    assert flight.failures == 1
    failures.meet(Attempt(flight), ValueError("two"), 5 * HOUR)
    assert [waits_for for waits_for, _ in table.parked] == ["retry", *["wait"] * 5, "retry"]
    failures.meet(Attempt(flight), ValueError("three"), 5 * HOUR)
    assert len(table.given_up) == 1, "the third failure is the last one"


def test_what_waits_says_until_when_and_why() -> None:
    table: Any = Parking()
    failures = Failures(table, lambda topic: Policies(RetryPolicy(1, 1, 1)), None, Observer())
    failures.meet(Attempt(at_offset_5()), Wait(30, "the API's limit"), 0)
    ((waits_for, why),) = table.parked
    assert waits_for == "wait"
    assert re.fullmatch(r"offset 5 waits until \d{4}-\d\d-\d\dT[\d:.]+Z: the API's limit", why)
