"""Our own fetcher as the client: assigned, moved back, paused, and what was queued before that is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import pytest
from confluent_kafka import Message

from kunicorn.columns.reference import Decoder
from kunicorn.errors import ConfigError
from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.table import Fault, Fetching, News
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.rows import Rows
from kunicorn.ipc.messages import FailureKind, Password
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.positions import Position, TopicPartition
from kunicorn.text import topic_id_text
from kunicorn.worker.fetching.assignment import ClientAssignment
from kunicorn.worker.fetching.client import Login
from kunicorn.worker.fetching.fetched import Taken
from kunicorn.worker.fetching.own_fetcher import OwnFetcher, _security, own_fetcher
from kunicorn.worker.progress import Grant, OffsetTracker, Slots

TP = TopicPartition("t", 0)


class Played:
    """The fetcher without its thread: the table changes at once, and a test says what was fetched."""

    def __init__(self) -> None:
        self.table = Fetching(1000, lambda: 0.5)
        self.queue = FetchQueue(1_000_000)
        fetcher: Any = self
        self.client = OwnFetcher(fetcher, self.queue, Login(None))

    def call(self, change: Callable[[Fetching], object]) -> None:
        change(self.table)

    def placed(self) -> tuple[int, int] | None:
        """Number and offset of what is fetched now."""
        place = self.table.get(TP)
        return None if place is None else (place.number, place.offset)

    def fetched(self, number: int, first: int, end: int, fault: Fault | None = None) -> None:
        """Rows of that placing, from one offset up to another."""
        rows = Rows(rows_of([Message(topic="t", partition=0, offset=at) for at in range(first, end)])) if end else None
        self.queue.put(Fetched(News(TP, number, 0, end - first, end, 3, fault), rows, 1))

    def taken(self, most: int = 100) -> list[int]:
        """Offsets that are given out."""
        taken = self.take(most)
        return [] if taken is None else [m.offset() or 0 for run in taken.runs for m in run.messages]

    def take(self, most: int = 100) -> Taken | None:
        return self.client.take(most, 0, gathers=False, several_topics=False)

    def position(self) -> int | None:
        (position,) = self.client.positions([TP])
        return None if position is None else position.offset


def assigned(offset: int = 5) -> Played:
    played = Played()
    played.client.assign({TP: Position(offset, 2)})
    return played


def test_the_position_is_unknown_until_something_was_given_out() -> None:
    played = assigned()
    assert played.placed() == (1, 5)
    assert played.position() is None
    played.fetched(1, 5, 8)
    assert played.position() is None
    assert played.taken() == [5, 6, 7]
    assert played.position() == 8


@pytest.mark.scenario("testFetchAfterPartitionWithFetchedRecordsIsUnassigned", "0122 buffer_cleaning_after_rebalance")
def test_what_was_queued_before_it_was_assigned_anew_is_dropped() -> None:
    played = assigned()
    played.fetched(1, 5, 8)
    played.client.unassign([TP])
    assert played.placed() is None
    played.client.assign({TP: Position(2)})
    assert played.placed() == (2, 2)
    assert played.taken() == []
    assert played.position() is None
    played.fetched(2, 2, 3)
    assert played.taken() == [2]


@pytest.mark.scenario(
    "testFetchOnPausedPartition",
    "testInFlightFetchOnPausedPartition",
    "testFetchOnCompletedFetchesForPausedAndResumedPartitions",
    "0026 consume_pause",
)
def test_a_paused_partition_goes_on_behind_what_was_given_out() -> None:
    played = assigned()
    played.fetched(1, 5, 8)
    assert played.taken() == [5, 6, 7]
    played.fetched(1, 8, 10)
    played.client.pause([TP])
    assert played.placed() is None
    assert played.taken() == []
    assert played.position() == 8
    played.client.resume([TP])
    assert played.placed() == (3, 8)


@pytest.mark.scenario("testFetchMaxPollRecords")
def test_no_more_than_is_asked_for_is_given_out_and_the_rest_follows() -> None:
    played = assigned()
    played.fetched(1, 5, 8)
    played.fetched(1, 8, 12)
    assert played.taken(5) == [5, 6, 7, 8, 9]
    assert played.position() == 10
    assert played.taken(1) == [10]
    assert played.taken(5) == [11]
    assert played.take() is None


@pytest.mark.scenario("TestPauseIssueOct2023")
def test_a_pause_drops_the_rest_of_what_was_cut_and_it_is_fetched_again() -> None:
    played = assigned()
    played.fetched(1, 5, 9)
    assert played.taken(2) == [5, 6]
    played.client.pause([TP])
    assert played.taken() == []
    assert played.position() == 7
    played.client.resume([TP])
    assert played.placed() == (3, 7)
    played.fetched(3, 7, 9)
    assert played.taken() == [7, 8]


@pytest.mark.scenario("testFetchDiscardedAfterPausedPartitionResumedAndSeekedToNewOffset")
def test_what_was_queued_before_a_pause_and_a_seek_is_dropped_after_both() -> None:
    played = assigned()
    played.fetched(1, 5, 8)
    played.client.pause([TP])
    played.client.assign({TP: Position(3)})
    played.client.resume([TP])
    number, offset = played.placed() or (0, 0)
    assert offset == 3
    played.fetched(number, 3, 5)
    assert played.taken() == [3, 4]


def test_what_is_dropped_takes_no_room_from_what_counts() -> None:
    played = assigned()
    played.fetched(1, 5, 105)
    played.client.unassign([TP])
    played.client.assign({TP: Position(2)})
    played.fetched(2, 2, 4)
    assert played.taken(2) == [2, 3]


def test_the_fetcher_is_told_of_which_topic_a_grants_offset_is_also_after_a_pause() -> None:
    topic_id, mirror = uuid4(), cast("Any", None)
    played = Played()
    tracker = OffsetTracker(TP, 1, Slots("partition", 1, runs=True), 5, 2)
    tracker.topic_id = topic_id_text(topic_id)
    ClientAssignment(played.client).assign([Grant(1, TP, tracker, mirror)], 0)
    assert [place.topic_id for place in played.table] == [topic_id.bytes]
    played.client.pause([TP])
    played.client.resume([TP])
    assert [place.topic_id for place in played.table] == [topic_id.bytes]


def test_a_partition_that_was_paused_before_anything_came_begins_where_it_was_assigned() -> None:
    played = assigned()
    played.client.pause([TP])
    played.client.resume([TP])
    assert played.placed() == (3, 5)


def test_a_fault_comes_with_its_kind_and_text() -> None:
    played = assigned()
    played.fetched(1, 5, 0, Fault(FailureKind.TRUNCATED, "why"))
    taken = played.take()
    assert taken is not None
    assert (list(taken.runs), list(taken.faults)) == ([], [(TP, FailureKind.TRUNCATED, "why")])


def test_each_log_in_asks_for_the_password_of_then() -> None:
    login = Login(None)
    properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "first"}
    sasl = _security(properties, login).sasl
    assert sasl is not None
    assert sasl.password() == "first"
    login.renew(Password("me", "second"))
    assert sasl.password() == "second"
    with pytest.raises(AuthenticationFailed, match="no OAUTHBEARER token"):
        sasl.token()


def test_without_a_decoder_no_thread_is_begun() -> None:
    def missing() -> type[Decoder]:
        raise ConfigError("install it")

    with pytest.raises(ConfigError, match="install it"):
        own_fetcher({}, Login(None), missing)
