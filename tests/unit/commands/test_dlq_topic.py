"""Which letters are meant, and what a replay remembers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.clients.session import ClusterSession
from kunicorn.commands.dlq import Plan, TooOld, one, summary
from kunicorn.commands.dlq_topic import Found, LettersTopic, Replayed, Selection
from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed
from kunicorn.handler.dead_letters import Cause, Told
from kunicorn.handler.record import Record
from kunicorn.kafka.errors import ConnectionLost
from kunicorn.positions import Edges, Position, TopicPartition
from tests.fakes.complete_settings import settings_of

NOW = 1_700_000_000_000
TOLD = Told("orders", 3, 7, "shop", Cause("shop.errors.Permanent", "no", "", 1), NOW, 0, [])


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(since_ms=NOW, until_ms=NOW + 1), True),
        (Selection(since_ms=NOW + 1), False),
        (Selection(until_ms=NOW), False),
        (Selection(error="Permanent", topic="orders", key=b"k"), True),
        (Selection(error="shop.errors.Permanent"), True),
        (Selection(error="ValueError"), False),
        (Selection(topic="refunds"), False),
        (Selection(key=b"other"), False),
    ],
)
def test_a_letter_is_meant_that_passes_every_filter(selection: Selection, taken: bool) -> None:
    assert selection.takes(TOLD, b"k") is taken


def test_nothing_that_a_letter_says_reaches_the_terminal_as_it_is() -> None:
    bell = "\x1b[2J"
    told = Told(f"orders{bell}", 3, 7, f"shop{bell}", Cause(f"E{bell}", f"no{bell}", f"in{bell}", 1), NOW, 0, [])
    record = Record.of(Message(topic="letters", partition=0, offset=5, key=bell.encode(), value=bell.encode()))
    found = Found(0, 5, record, told)
    plan = Plan(old=[TooOld(told.topic, 1, "handler.max_age_ms", 5)])
    plan.counts[told.topic, told.cause.type] = plan.others[told.group] = 1
    lines = [*found.lines(), *summary("letters", [found], 1).lines(), *plan.lines()]
    assert [line for line in lines if not line.isprintable()] == []
    assert len([line for line in lines if "[2J" in line]) == 10


@pytest.mark.parametrize(("most", "named"), [(2, ["5@7", "0@3"]), (0, []), (9, ["0@1", "0@2", "5@7", "0@3"])])
def test_the_latest_letters_are_those_that_were_given_up_last_whatever_partition_is_read_last(
    most: int, named: list[str]
) -> None:
    """The few of one partition come with its first fetch, and the thousands of another long behind them."""
    given_up = [(5, 7, NOW + 3), (0, 1, NOW), (0, 2, NOW + 1), (0, 3, NOW + 3)]
    record = Record.of(Message(topic="letters", partition=0, offset=0, key=b"k", value=b"v"))
    read = [Found(number, offset, record, replace(TOLD, time_ms=at)) for number, offset, at in given_up]
    found = summary("letters", read, most)
    assert [each["place"] for each in found.as_json()["latest"]] == named
    assert [line.split()[0] for line in found.lines() if line.startswith("  ") and "@" in line.split()[0]] == named


@given(
    letters=st.sets(st.integers(0, 60)),
    first=st.sets(st.integers(0, 60)),
    second=st.sets(st.integers(0, 60)),
)
def test_what_two_replays_delivered_is_remembered_and_nothing_else(
    letters: set[int], first: set[int], second: set[int]
) -> None:
    remembered = Replayed()
    for chosen in (first & letters, second & letters):
        for offset in chosen:
            remembered.add(offset)
        remembered.settle(sorted(letters), 61)
        remembered = Replayed(remembered.upto, remembered.metadata())
    assert {offset for offset in letters if offset in remembered} == (first | second) & letters


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12), st.integers(0, 60))
def test_ranges_that_another_replay_delivered_are_remembered_whatever_they_meet(
    ranges: list[tuple[int, int]], upto: int
) -> None:
    ours, theirs = Replayed(upto), Replayed(0, ",".join(f"{first}-{last}" for first, last in ranges))
    ours.learn(theirs)
    wanted = {offset for first, last in ranges for offset in range(first, last + 1)} | set(range(upto))
    assert {offset for offset in range(70) if offset in ours} == wanted
    ours.settle(sorted(set(range(70)) - wanted), 70)
    again = Replayed(ours.upto, ours.metadata())
    assert {offset for offset in range(70) if offset in again} == wanted


@pytest.mark.parametrize("first_left_out", [False, True])
def test_ten_times_as_many_letters_take_ten_times_as_long(first_left_out: bool) -> None:
    """Not a hundred times: each thousand letters were compared with all that were left."""

    def seconds(count: int) -> float:
        began, replayed, left = time.process_time(), Replayed(), range(count)
        for offset in range(int(first_left_out), count):
            replayed.add(offset)
            if offset % 1_000 == 0:
                replayed.settle(left, count)
                replayed.metadata()
        return time.process_time() - began

    small = min(seconds(10_000) for _ in range(3))
    assert min(seconds(100_000) for _ in range(2)) < 40 * small


def test_metadata_of_others_counts_as_none_and_ours_fits_into_a_commit() -> None:
    assert 7 not in Replayed(5, "somebody's own words")
    scattered = Replayed()
    for offset in range(1, 9_000, 2):
        scattered.add(offset)
    scattered.settle(range(9_000), 9_000)
    assert len(scattered.metadata()) <= 4_000
    assert 1 in Replayed(scattered.upto, scattered.metadata())


LETTERS = "shop.dead-letters"


class PlayedSession:
    """A cluster with a dead-letter topic of one partition, and what the side group has committed for it."""

    settings = settings_of()
    group_id = "shop.dlq-replay"
    cluster = SimpleNamespace(metadata=SimpleNamespace(cluster_id="cluster-1"))

    def __init__(self, end: int, topic_id: str = "one") -> None:
        self.end = end
        self.upto = 0
        self.metadata = ""
        self.ids = {LETTERS: topic_id} if topic_id else {}
        self.lost = 0
        """So many connections turn out to be lost."""
        self.group = self

    async def takes_retention(self) -> bool:
        return True

    async def commit(
        self, offsets: Mapping[TopicPartition, Position], metadata: str, retention: object
    ) -> dict[TopicPartition, int]:
        self._connect()
        (self.upto, _, self.metadata) = offsets[TopicPartition(LETTERS, 0)]
        return dict.fromkeys(offsets, 0)

    def ask(self, question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(question())

    def _connect(self) -> None:
        if self.lost:
            self.lost -= 1
            raise ConnectionLost("the broker has closed the connection")

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return self.ids

    def count(self, topic: str) -> int:
        return 1

    def edges(self, partitions: Iterable[TopicPartition], *_: Any) -> dict[TopicPartition, Edges]:
        return {tp: Edges(0, self.end) for tp in partitions}

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        self._connect()
        return {tp: Committed(0, self.upto, metadata=self.metadata) for tp in partitions}


@pytest.mark.parametrize(("end_now", "upto", "remembered"), [(110, 110, 110), (100, 40, 40), (100, 110, 0)])
def test_what_another_replay_has_sent_of_letters_that_came_meanwhile_counts_and_a_former_topic_does_not(
    end_now: int, upto: int, remembered: int
) -> None:
    """It would be sent a second time, and the commit would go back behind the other's."""
    session = PlayedSession(end=100)
    topic = opened(session)
    session.end, session.upto = end_now, upto
    assert topic.replayed()[0].upto == remembered


def opened(session: PlayedSession) -> LettersTopic:
    return LettersTopic(cast(ClusterSession, session), cast(Consumer, None), LETTERS)


def remembered(topic: LettersTopic) -> set[int]:
    replayed = topic.replayed()[0]
    return {offset for offset in range(100) if offset in replayed}


@pytest.mark.parametrize("topic_id", ["one", ""], ids=["with an id", "of brokers without ids"])
def test_what_is_remembered_is_found_again(topic_id: str) -> None:
    session = PlayedSession(end=100, topic_id=topic_id)
    opened(session).remember({0: Replayed(3, "5-7,9-9")})
    assert remembered(opened(session)) == {0, 1, 2, 5, 6, 7, 9}


def test_of_a_topic_that_was_created_anew_nothing_is_remembered_however_many_letters_it_has() -> None:
    """Letters at the offsets of the former one's would pass for replayed, and never be sent."""
    session = PlayedSession(end=100)
    opened(session).remember({0: Replayed(3, "5-7")})
    session.ids = {LETTERS: "another"}
    assert remembered(opened(session)) == set()


def test_a_commit_carries_the_topic_beside_the_longest_ranges() -> None:
    session = PlayedSession(end=100, topic_id="A" * 22)
    session.cluster = SimpleNamespace(metadata=SimpleNamespace(cluster_id="C" * 22))
    scattered = Replayed(0, ",".join(f"{first}-{first}" for first in range(10**12, 10**12 + 900, 2)))
    opened(session).remember({0: scattered})
    assert 4_000 < len(session.metadata) <= 4_096


def test_a_connection_that_was_idle_for_too_long_costs_no_replay() -> None:
    session = PlayedSession(end=100)
    topic = opened(session)
    session.lost = 1
    topic.remember({0: Replayed(3)})
    session.lost = 1
    assert remembered(topic) == {0, 1, 2}


@pytest.mark.parametrize("place", ["", "0", "@1", "0@x", f"0@{'9' * 5_000}", f"{'9' * 5_000}@1"])
def test_what_is_no_place_of_a_letter_is_told(place: str) -> None:
    with pytest.raises(ConfigError, match="is not the place of a letter"):
        one(opened(PlayedSession(end=100)), place)
