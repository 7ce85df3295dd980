"""When records that failed are tried again, with a table of the test's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.handler.config import CircuitBreaking, Decoding, FilterRule, HandlerConfig
from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.encode import NotEncodableYet
from kunicorn.handler.outcome import Wait
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.observe import catalogue as c
from kunicorn.positions import TopicPartition
from kunicorn.testing import record as given
from kunicorn.worker.failures import Failures, LetterBox, Observer
from kunicorn.worker.limits.gate import Gate, gate_of
from kunicorn.worker.produce.outbox import GivenUp
from kunicorn.worker.produce.sender import LetterRefused, NotDelivered
from kunicorn.worker.progress import Attempt, InFlight, Lane, OffsetTracker, Slots, Stage
from kunicorn.worker.stats import Counters
from tests.fakes.counts import counts_of
from tests.fakes.whole_worker import TOPIC, WholeWorker, record
from tests.unit.worker import failing_handlers, long_handlers
from tests.unit.worker.tables import P0, P1, Table, nothing_stays_in_memory
from tests.unit.worker.whole import Worker, order_of
from tests.waiting import wait_until

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


def at_offset_5(gate: Gate | None = None) -> InFlight:
    tracker = OffsetTracker(TopicPartition("t", 0), 1, Slots("partition", 1, gate=gate), 0)
    return InFlight(1, tracker, Lane(tracker, None), 5, 0, 1, (Message(topic="t", partition=0, offset=5),))


def failures_of(table: Any, policy: RetryPolicy, letters: LetterBox | None = None) -> Failures:
    return Failures(table, lambda topic: Policies(policy), letters, Observer())


def test_a_record_that_was_taken_back_while_it_waited_and_failed_again_waits_from_then_on() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(10, 3_600_000, 3_600_000, None, End.HALT))
    flight = at_offset_5()
    for now in (0, HOUR // 2):
        failures.meet(Attempt(flight), ValueError(), now)
    failures.try_again(HOUR * 13 // 10)
    assert table.tried == [], "an hour after its last failure, to within a fifth"
    failures.try_again(2 * HOUR)
    assert table.tried == [flight]


@pytest.mark.parametrize("error", [Wait(3600), ValueError("no")], ids=["it is to wait", "it is tried again"])
def test_a_wait_begins_when_the_call_has_failed_however_late_the_loop_comes_to_that(error: Exception) -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(10, 3_600_000, 3_600_000, None, End.HALT))
    late = HOUR * 9 // 10
    failures.meet(Attempt(at_offset_5(), met_after_ns=late), error, late)
    failures.try_again(HOUR * 7 // 10 + late)
    assert len(table.tried) == 1, "an hour after its failure, to within a fifth"


def test_a_record_that_waits_for_something_else_by_now_gets_no_letter_that_was_refused_before() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(10, 3_600_000, 3_600_000, None, End.HALT), LetterBox("dead", "g"))
    flight = at_offset_5()
    given_up = GivenUp(dead_letters("dead"), Cause("ValueError", "no", "", 1))
    failures.meet(Attempt(flight, calls=0), LetterRefused("there is no such topic", given_up), 0)
    failures.meet(Attempt(flight), Wait(2 * 3600), 0)
    failures.try_again(3 * HOUR)
    assert table.tried == [flight], "it comes to the handler again"


def test_what_the_handler_has_wait_fails_no_try_and_its_time_is_none_of_the_retry_timeouts() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(3, 100, 100, retry_timeout_ms=60_000, on_failure=End.HALT))
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


def test_the_time_of_a_call_that_says_wait_is_none_of_the_retry_timeouts() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(9, 1000, 1000, retry_timeout_ms=60_000, on_failure=End.HALT))
    flight, now = at_offset_5(), 0
    failures.meet(Attempt(flight), ValueError("one"), now)
    for _ in range(6):
        now += 11 * NANOSECONDS
        failures.meet(Attempt(flight, nanoseconds=11 * NANOSECONDS), Wait(1, "it did not answer"), now)
        now += NANOSECONDS
    failures.meet(Attempt(flight), ValueError("two"), now)
    assert table.given_up == [], "of the minute, no second is over"
    failures.meet(Attempt(flight), ValueError("three"), now + 60 * NANOSECONDS)
    assert len(table.given_up) == 1


def was_open_for_an_hour() -> Gate:
    """A handler's gate whose circuit breaker opened at 0, and is closed again."""
    breaking = CircuitBreaking(
        ["builtins.OSError"], failure_share=0.1, window_ms=10_000, min_calls=1, open_ms=3_600_000, probes=1
    )
    made = gate_of(HandlerConfig("shop:handle", "record", {}, 1, 1, 0, 0, circuit_breaker=breaking), Counters())
    assert made is not None
    probe = at_offset_5(made)
    assert made.failed(probe, OSError("away"), 0) == HOUR
    assert made.room(HOUR) == 1
    made.took(probe, HOUR)
    made.succeeded(probe, 1, HOUR)
    assert not made.broken
    return made


@pytest.mark.parametrize(
    "calls", [(1, 1), (1, 0), (0, 1), (0, 0)], ids=["calls", "output refused later", "row decided first", "no calls"]
)
def test_an_outage_that_is_over_counts_for_no_retry_timeout_whatever_the_failures_are_met_by(
    calls: tuple[int, int],
) -> None:
    """Refused outputs, and rows that their batch's call has decided, are failures without a call of their own."""
    errors = [ValueError("raised") if each else NotDelivered("refused") for each in calls]
    for seconds, tries in ((59, 2), (61, 1)):
        table: Any = Parking()
        failures = failures_of(table, RetryPolicy(10, 100, 100, retry_timeout_ms=60_000, on_failure=End.HALT))
        flight = at_offset_5(was_open_for_an_hour())
        for error, each, now in zip(errors, calls, (2 * HOUR, 2 * HOUR + seconds * NANOSECONDS), strict=True):
            failures.meet(Attempt(flight, calls=each), error, now)
        assert len(table.parked) == tries, f"{seconds} s after the first failure"


@pytest.mark.parametrize("away", [NotDecodableYet("the registry is away"), NotEncodableYet("the registry is away")])
def test_while_the_registry_is_away_no_try_is_counted_and_its_time_is_none_of_the_retry_timeouts(
    away: NotDecodableYet,
) -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(3, 1000, 1000, retry_timeout_ms=60_000, on_failure=End.HALT))
    flight, now = at_offset_5(), 0
    failures.meet(Attempt(flight), ValueError("one"), now)
    for _ in range(200):
        now += NANOSECONDS // 2
        failures.meet(Attempt(flight, nanoseconds=NANOSECONDS // 2), away, now)
        now += round(failures.patience(now, 3600) * NANOSECONDS)
        failures.try_again(now)
    assert flight.failures == 1
    failures.meet(Attempt(flight), ValueError("two"), now)
    assert table.given_up == [], "of the minute, no second is over"
    failures.meet(Attempt(flight), ValueError("three"), now)
    assert len(table.given_up) == 1, "the third failure is the last one"


def test_while_the_registry_is_away_each_wait_is_longer_than_the_last_one_and_the_next_outage_begins_anew() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(9, 1000, 64_000))
    flight = at_offset_5()

    def waits_after(error: Exception) -> float:
        failures.meet(Attempt(flight), error, 0)
        wait = failures.patience(0, 3600)
        failures.try_again(HOUR)
        return wait

    waits = [waits_after(NotDecodableYet("away")) for _ in range(6)]
    assert waits == sorted(waits)
    assert waits[-1] > 10 * waits[0]
    waits_after(ValueError("it was decoded"))
    assert waits_after(NotDecodableYet("away again")) < waits[1]


def test_what_waits_says_until_when_and_why() -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(1, 1, 1))
    failures.meet(Attempt(at_offset_5()), Wait(30, "the API's limit"), 0)
    ((waits_for, why),) = table.parked
    assert waits_for == "wait"
    assert re.fullmatch(r"offset 5 waits until \d{4}-\d\d-\d\dT[\d:.]+Z: the API's limit", why)


class _Untellable:
    def __str__(self) -> str:
        raise KeyError("x")


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (_Untellable(), "(its __str__ raised KeyError)"),
        ("x" * 1_500_000, "x" * 300),
        ("half of \ud83d", "half of \\ud83d"),
    ],
)
def test_whatever_a_wait_says_is_told_as_a_short_text(why: Any, told: str) -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(1, 1, 1))
    failures.meet(Attempt(at_offset_5()), Wait(30, why), 0)
    ((_, said),) = table.parked
    assert said.partition("Z: ")[2] == told


class _Forgetful(Wait):
    def __init__(self, response: object) -> None:
        self.response = response


class _Endless(Wait):
    def __init__(self) -> None:
        super().__init__(1)
        self.seconds = float("nan")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (_Forgetful("429"), "_Forgetful says no time: let its __init__ call that of kunicorn.Wait"),
        (_Endless(), "give 0 to 86400 seconds"),
    ],
)
def test_a_wait_without_a_time_has_failed_its_try(said: Wait, why: str) -> None:
    table: Any = Parking()
    failures = failures_of(table, RetryPolicy(2, 1, 1))
    flight = at_offset_5()
    for _ in range(2):
        failures.meet(Attempt(flight), said, 0)
    assert [waits_for for waits_for, _ in table.parked] == ["retry"]
    assert why in table.given_up[0]


# -- what waits of partitions that end ---------------------------------------------------------------------------------

DAY = 24 * HOUR
LETTER = LetterRefused("there is no such topic", GivenUp(dead_letters("dead"), Cause("ValueError", "no", "", 1)))


@pytest.mark.parametrize(
    "error", [Wait(86_400), ValueError("no"), LETTER], ids=["it is to wait", "it is tried again", "its letter is"]
)
@pytest.mark.parametrize("ordering", ["partition", "none"])
def test_nothing_stays_in_memory_of_what_waits_for_a_day_in_partitions_that_end_however_often_they_come(
    ordering: str, error: Exception
) -> None:
    table = Table(Slots(ordering, 10))
    failures = failures_of(table.table, RetryPolicy(9, 86_400_000, 86_400_000), LetterBox("dead", "g"))
    with nothing_stays_in_memory():
        for number in (1, 2, 3):
            table.start(P0, number)
            table.table.begin_turn(0)
            table.fetch(P0, 0, 1, 2)
            for flight in table.started():
                failures.meet(Attempt(flight), error, 0)
            assert failures.patience(0, DAY / NANOSECONDS) > HOUR / NANOSECONDS
            table.table.stop([number])
            table.table.begin_turn(0)
            failures.forget_ended()
            assert failures.patience(0, 7 * DAY) == 7 * DAY, "it waits for nothing"
            del flight
    assert failures._refused == {}


def test_what_waits_in_partitions_that_stay_is_tried_again_at_its_time_whatever_else_has_ended() -> None:
    table = Table(Slots("none", 10))
    failures = failures_of(table.table, RetryPolicy(9, 1, 1))
    for tp in (P0, P1):
        table.begin(tp, 0, 1)
    for hours, flight in enumerate(table.started(), 1):
        failures.meet(Attempt(flight), Wait(hours * 3600), 0)
    table.table.stop([1])
    failures.forget_ended()
    tried = []
    for hours in range(1, 5):
        failures.try_again(hours * HOUR)
        tried += [(hours, flight.tp) for flight in table.started()]
    assert [tp for _, tp in tried] == [P1, P1]


def test_the_loop_has_nothing_wait_of_partitions_that_have_ended() -> None:
    handler = HandlerConfig(f"{long_handlers.__name__}:for_a_day", "record", {}, 100, 3, 1, 1, topics=[TOPIC])
    with WholeWorker(handler, [record(0)], None) as worker:
        failures = worker.made.runner._failures
        for _ in range(3):
            worker.hand_out()
            wait_until(lambda: failures._parked, "the record to wait")
            worker.made.hooks.stop([worker._grant])
            wait_until(lambda: not failures._parked, "nothing to wait")


FAILING = failing_handlers.__name__
TRIES = failing_handlers.FAILURES
FAILED_CALLS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "it raises": ("record", {"max_attempts": 100}, TRIES, TRIES),
    "it says an outcome": ("passing", {}, 1, 0),
    "it has the record wait": ("waiting", {}, 0, 0),
    "the value cannot be decoded": ("takes_all", {"decoding": Decoding(value="json")}, 1, 0),
    "the value cannot be decoded yet": (
        "takes_all",
        {"decoding": Decoding(value=f"{FAILING}:decoder_that_waits")},
        TRIES,
        TRIES,
    ),
    "a filter fails": ("takes_all", {"filters": [FilterRule(function=f"{FAILING}:filter_that_fails")]}, 1, 0),
    "the record is too old": ("takes_all", {"max_age_ms": 1, "on_expired": "dead_letter"}, 1, 0),
    "a filter drops it": ("takes_all", {"filters": [FilterRule(function=f"{FAILING}:keeps_none_that_is_first")]}, 0, 0),
}


@pytest.mark.parametrize(("handler", "settings", "failed", "again"), FAILED_CALLS.values(), ids=FAILED_CALLS.keys())
def test_a_call_counts_as_failed_as_the_catalogue_says_also_where_the_handler_did_not_get_the_record(
    handler: str, settings: dict[str, Any], failed: int, again: int
) -> None:
    failing_handlers.forget()
    worker = Worker(order_of(f"{FAILING}:{handler}", on_failure="skip", **settings))
    worker.handle([given("0" if "json" not in str(settings) else "{", timestamp=1000)])
    (counted,) = counts_of(*worker.made.counters.take())
    assert (counted.failures, counted.retries) == (failed, again)
    for words in ("raised", "an outcome other than Done and Wait", "be decoded", "max_age_ms", "filter failed"):
        assert words in c.FAILURES.meaning
    assert "could not be decoded yet" in c.RETRIES.meaning
    assert "are not the handler's" in c.PROCESS_SECONDS.meaning
