"""Records of retry topics that wait for their time, step by step."""

from __future__ import annotations

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.config import HandlerConfig, RetryTopic
from kunicorn.ipc.clock import wall_ms
from kunicorn.ipc.messages import FetcherStopped, Stopped
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import _MOST_FOUND, Delays, TopicDelays, Wait, delays_of, ripe
from kunicorn.worker.progress import Attempt, Slots
from tests.unit.worker.tables import LATER, P0, Table, nothing_stays_in_memory

RETRY = TopicPartition("shop.retry.5s", 0)
NS_PER_MS = 1_000_000
DAY_MS = 86_400_000


def sent(*times_ms: int | None) -> list[Message]:
    return [
        Message(
            topic=RETRY.topic,
            partition=0,
            offset=offset,
            value=b"v",
            timestamp=(TIMESTAMP_NOT_AVAILABLE, 0) if at is None else (TIMESTAMP_CREATE_TIME, at),
        )
        for offset, at in enumerate(times_ms)
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 4_000, 5_000], (3, None)),
        ([0, 5_001], (1, Wait(1, 10_001, 500))),
        ([9_000, 0], (0, Wait(0, 14_000, 4_000))),
        # No time at all: nothing to wait for.
        ([None, 9_000], (1, Wait(1, 14_000, 4_000))),
        # A host whose clock is ahead.
        ([99_000], (0, Wait(0, 15_000, 5_000, 89_000))),
        ([], (0, None)),
    ],
)
def test_records_are_ripe_up_to_the_first_that_has_not_waited_for_its_delay(
    times: list[int | None], expected: tuple[int, Wait | None]
) -> None:
    assert ripe(sent(*times), 5_000, 10_000) == expected


def test_a_partition_is_fetched_again_after_a_tenth_of_the_delay_at_least_and_a_second_at_most() -> None:
    waits = [ripe(sent(0), delay, delay - 1)[1] for delay in (300, 3_600_000)]
    assert [wait.milliseconds for wait in waits if wait is not None] == [30, 1000]


DELAYS = {RETRY.topic: 5_000}


@pytest.fixture(params=["runs", "records"])
def table(request: pytest.FixtureRequest) -> Table:
    return Table(Slots("none", 4) if request.param == "records" else None, delays=DELAYS)


def fetched(table: Table, delays: Delays, *given: Message) -> None:
    """As the loop does with what the client gives out."""
    ready, wait = delays.split(RETRY, list(given))
    table.table.feed(RETRY, 0, ready, 0)
    if wait is not None:
        delays.delay(RETRY, wait, 0)


def test_only_its_own_partition_is_put_off_and_fetched_again_from_that_record_on(table: Table) -> None:
    delays = Delays(table.table, DELAYS)
    table.start(P0, 1)
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    now = wall_ms()
    assert delays.split(P0, sent(now))[1] is None, "an ordinary topic's record waits for nothing"
    fetched(table, delays, *sent(now - 9_000, now))
    assert table.table.fetching(RETRY) is None
    (parked,), count = table.table.parked()
    assert (parked.grant, parked.waits_for, count) == (2, "delay", {"delay": 1})
    assert parked.why.startswith("offset 1 waits for its time, ")
    table.table.begin_turn(1)
    assert set(table.client.assigned) == {P0}
    delays.end_due(4_000 * NS_PER_MS)
    table.table.begin_turn(4_000 * NS_PER_MS)
    assert set(table.client.assigned) == {P0}, "too early"
    delays.end_due(6_000 * NS_PER_MS)
    table.table.begin_turn(6_000 * NS_PER_MS)
    assert table.client.assigned == {P0: (0, None), RETRY: (1, 0)}
    assert table.table.fetching(RETRY) is not None


def test_a_partition_that_is_stopped_while_it_waits_is_reported_at_once(table: Table) -> None:
    delays = Delays(table.table, DELAYS)
    table.start(RETRY, 2, 40)
    table.table.begin_turn(0)
    delays.delay(RETRY, Wait(40, wall_ms() + 5_000, 5_000), 0)
    table.table.stop([2])
    assert len(table.reports) == 1
    delays.end_due(LATER)
    table.table.begin_turn(LATER)
    assert table.client.assigned == {}


def test_nothing_stays_in_memory_of_partitions_that_end_while_they_wait_however_often_they_come(table: Table) -> None:
    delays = Delays(table.table, DELAYS)
    with nothing_stays_in_memory():
        for number in (2, 3, 4):
            table.start(RETRY, number, 40)
            table.table.begin_turn(0)
            delays.delay(RETRY, Wait(40, wall_ms() + DAY_MS, DAY_MS), 0)
            table.table.stop([number])
            table.table.begin_turn(0)
            delays.forget_ended()
    assert delays._waiting == []


def test_partitions_that_stay_are_fetched_again_at_their_time_whatever_else_has_ended(table: Table) -> None:
    delays = Delays(table.table, {RETRY.topic: 5_000, P0.topic: 5_000})
    table.start(P0, 1)
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    for tp in (P0, RETRY):
        delays.delay(tp, Wait(0, wall_ms() + 5_000, 5_000), 0)
    table.table.stop([1])
    delays.forget_ended()
    delays.end_due(LATER)
    table.table.begin_turn(LATER)
    assert set(table.client.assigned) == {RETRY}


def test_a_partition_that_is_stopped_with_a_record_in_hand_is_reported_also_where_its_delay_ends_before(
    table: Table,
) -> None:
    delays, now = Delays(table.table, DELAYS), wall_ms()
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    fetched(table, delays, *sent(now - 9_000, now))
    flight = table.take()
    table.table.stop([2])
    delays.end_due(LATER)
    table.table.begin_turn(LATER)
    assert (table.client.assigned, table.reports) == ({}, [])
    table.handle(flight)
    assert table.reports == [FetcherStopped([Stopped(2, 1, 0)])]


def test_what_is_ripe_is_handled_while_the_rest_waits_for_its_time_and_comes_once(table: Table) -> None:
    delays, now = Delays(table.table, DELAYS), wall_ms()
    table.slots.pace.size = 1
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    given = sent(now - 9_000, now - 9_000, now)
    fetched(table, delays, *given)
    handled = []
    while (flight := table.table.start_next(table.slots)) is not None:
        handled.append(flight.offset)
        table.handle(flight)
    assert handled == [0, 1], "the third one waits for its time"
    delays.end_due(LATER)
    table.table.begin_turn(LATER)
    fetched(table, delays, *given)
    assert table.table.start_next(table.slots) is None, "what is done is not handled again"
    assert table.consumed(2) == 2


def test_a_stop_waits_for_what_is_in_hand_and_not_for_what_waits_for_its_time(table: Table) -> None:
    delays, now = Delays(table.table, DELAYS), wall_ms()
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    fetched(table, delays, *sent(now - 9_000, now))
    flight = table.take()
    table.table.stop([2])
    assert table.reports == []
    table.handle(flight)
    (stopped,) = table.reports
    assert isinstance(stopped, FetcherStopped)
    assert stopped.partitions[0].offset == 1


def test_a_record_that_failed_meanwhile_is_told_as_waiting_for_its_next_try(table: Table) -> None:
    delays, now = Delays(table.table, DELAYS), wall_ms()
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    fetched(table, delays, *sent(now - 9_000, now))
    table.table.park(Attempt(table.take()), "retry", "it failed")
    (parked,), _ = table.table.parked()
    assert parked.waits_for == "retry"


YEARS = 10**11
"""Milliseconds."""


def test_timestamps_years_ahead_hold_a_partition_for_one_delay_and_no_longer(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("kunicorn.worker.buffering.wall_ms", lambda: clock[0])
    delays = Delays(table.table, DELAYS)
    table.start(RETRY, 2)
    table.table.begin_turn(0)
    given = sent(clock[0] + YEARS, clock[0] + 2 * YEARS, clock[0] + YEARS)
    fetched(table, delays, *given)
    (parked,), _ = table.table.parked()
    assert "its timestamp is 100000000 s ahead of this clock" in parked.why
    assert "waits for the topic's delay from now on" in caplog.text
    clock[0] += 2_000
    ready, wait = delays.split(RETRY, given)
    assert (list(ready), wait) == ([], Wait(0, 1_005_000, 3_000, YEARS - 2_000)), "the wait does not begin anew"
    clock[0] += 3_000
    ready, wait = delays.split(RETRY, given)
    assert (len(ready), wait) == (3, None), "all that were there have waited"
    later = sent(None, None, None, clock[0] + YEARS)[3:]
    assert delays.split(RETRY, later)[1] == Wait(3, 1_010_000, 5_000, YEARS), "who came later waits as long"


def test_records_of_a_topic_that_was_deleted_and_created_anew_wait_for_their_own_delay(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("kunicorn.worker.buffering.wall_ms", lambda: clock[0])
    delays = Delays(table.table, DELAYS)
    for grant, topic_id in ((2, "first"), (3, "second")):
        table.start(RETRY, grant, topic_id=topic_id)
        table.table.begin_turn(0)
        for passed_ms in (0, 1_000):
            clock[0] += passed_ms
            given = sent(clock[0] + 1 - passed_ms, clock[0])
            ready, wait = delays.split(RETRY, given)
            assert (list(ready), wait and wait.milliseconds) == ([], 5_000 - passed_ms)
        table.table.stop([grant])
        clock[0] += 60_000


@pytest.mark.parametrize("ahead_ms", [1, 3_000, 4_999, 5_001])
def test_a_record_waits_for_one_delay_also_where_the_clock_has_caught_up_with_its_timestamp(
    table: Table, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("kunicorn.worker.buffering.wall_ms", lambda: clock[0])
    delays = Delays(table.table, DELAYS)
    given = sent(clock[0] + ahead_ms, clock[0] - 1_000)
    ready, wait = delays.split(RETRY, given)
    assert (list(ready), wait) == ([], Wait(0, 1_005_000, 5_000, ahead_ms))
    clock[0] += 4_000
    ready, wait = delays.split(RETRY, given)
    assert (list(ready), wait) == ([], Wait(0, 1_005_000, 1_000, max(0, ahead_ms - 4_000))), "fetched again meanwhile"
    clock[0] += 1_000
    ready, wait = delays.split(RETRY, given)
    assert (len(ready), wait) == (2, None)
    ready, wait = delays.split(RETRY, given[1:])
    assert (len(ready), wait) == (1, None), "what was ripe once stays so, where it is fetched again"


def config(*topics: str, delay_ms: int | None = None, retries: tuple[RetryTopic, ...] = ()) -> HandlerConfig:
    return HandlerConfig(
        "a:b", "record", {}, 1, 1, 0, 0, topics=list(topics), delay_ms=delay_ms, retry_topics=list(retries)
    )


def test_a_handlers_topics_have_its_delay_and_its_retry_topics_their_own() -> None:
    retries = (RetryTopic("shop.retry.5s", 5_000),)
    slow = config("orders", "^slow-.*", "shop.retry.5s", delay_ms=60_000, retries=retries)
    delays = delays_of([config("quick"), slow])
    found = {topic: delays.get(topic) for topic in ("orders", "slow-1", "quick", "shop.retry.5s", "unknown")}
    assert found == {"orders": 60_000, "slow-1": 60_000, "quick": None, "shop.retry.5s": 5_000, "unknown": None}
    assert list(delays) == ["shop.retry.5s"]
    assert delays_of([config(delay_ms=7)]).get("any") == 7
    assert type(delays_of([config("quick")])) is dict, "nothing is looked up where no handler has a delay"


def test_topics_that_come_and_go_leave_no_delays_behind() -> None:
    delays = delays_of([config("^day-.*", delay_ms=60_000)])
    assert isinstance(delays, TopicDelays)
    assert [delays.get(f"day-{day}") for day in range(_MOST_FOUND + 1)] == [60_000] * (_MOST_FOUND + 1)
    assert delays._find.cache_info().currsize == _MOST_FOUND
