"""Which record may start next, and how far a partition is done: for every order in which records can end."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.ipc.bitmap import WINDOW, written
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.progress import Flight, Hands, Stage, Track, done_ahead, place_with
from kunicorn.worker.scheduler import Lanes

TP = TopicPartition("t", 0)
NS = iter(range(1, 1 << 60))


def track(hands: Hands, start: int = 0, number: int = 0, **more: Any) -> Track:
    return Track(TopicPartition("t", number), number, hands, start, **more)


def arrive(lanes: Lanes, to: Track, *keys: str | None, first: int = 0) -> None:
    for offset, key in enumerate(keys, first):
        lanes.arrive(to, offset, 0, None if key is None else key.encode(), f"record {offset}", 1)


def started(lanes: Lanes, of: Track) -> list[Flight]:
    """What starts for the hands that handle this one."""
    found = []
    while (flight := lanes.start(of.hands, next(NS))) is not None:
        found.append(flight)
    return found


def offsets(flights: list[Flight]) -> list[int]:
    return [flight.offset for flight in flights]


@pytest.mark.parametrize(
    ("ordering", "expected"), [("partition", [0]), ("key", [0, 1, 3, 4]), ("none", [0, 1, 2, 3, 4])]
)
def test_what_starts_at_once_is_the_first_of_each_lane_and_no_key_is_no_order(
    ordering: str, expected: list[int]
) -> None:
    lanes, one = Lanes(), track(Hands(ordering, 100))
    arrive(lanes, one, "a", "b", "a", None, None)
    assert offsets(started(lanes, one)) == expected


def test_no_more_start_than_hands_are_free() -> None:
    lanes, one = Lanes(), track(Hands("none", 2))
    arrive(lanes, one, *"abcd")
    first, second = started(lanes, one)
    lanes.finish(second)
    assert offsets(started(lanes, one)) == [2]
    lanes.finish(first)
    assert one.consumed == 2


def test_a_record_that_waits_holds_up_its_key_and_nothing_else() -> None:
    lanes, one = Lanes(), track(Hands("key", 100))
    arrive(lanes, one, "a", "b", "a", "b")
    a, b = started(lanes, one)
    lanes.wait(a, "retry", "why")
    lanes.finish(b)
    (b,) = started(lanes, one)
    lanes.finish(b)
    assert (one.consumed, sorted(done_ahead(one))) == (0, [1, 3])
    lanes.queue_again(a)
    (again,) = started(lanes, one)
    assert again is a
    lanes.finish(a)
    assert one.consumed == 2


def test_nothing_starts_a_window_beyond_the_lowest_unfinished_record() -> None:
    lanes, one = Lanes(), track(Hands("none", 2))
    for offset in (0, WINDOW - 1, WINDOW):
        lanes.arrive(one, offset, 0, None, "", 1)
    first, last = started(lanes, one)
    lanes.finish(last)
    assert started(lanes, one) == []
    lanes.finish(first)
    assert offsets(started(lanes, one)) == [WINDOW]


def test_where_all_keys_wait_for_the_window_each_record_that_ends_lets_one_start_and_touches_no_other() -> None:
    lanes, one = Lanes(), track(Hands("none", 2))
    arrive(lanes, one, *[None] * (3 * WINDOW))
    first = lanes.start(one.hands, next(NS))
    assert first is not None
    while (flight := lanes.start(one.hands, next(NS))) is not None:
        lanes.finish(flight)
    assert len(one.beyond) == 2 * WINDOW
    lanes.finish(first)
    (next_one, _) = started(lanes, one)
    lanes.finish(next_one)
    assert len(one.hands.ready) == WINDOW - 1, "what may start by that, and nothing beyond"


def test_each_handlers_hands_take_their_own_records_in_their_own_order() -> None:
    lanes, one, other = Lanes(), track(Hands("partition", 5)), track(Hands("none", 2), number=1)
    arrive(lanes, one, *"aab")
    arrive(lanes, other, *"aab")
    assert offsets(started(lanes, one)) == [0]
    assert offsets(started(lanes, other)) == [0, 1]
    assert lanes.in_flight == 3


def test_a_suspect_has_nothing_beside_it_from_any_handler() -> None:
    lanes, one, other = Lanes(), track(Hands("none", 2), suspects=frozenset({0})), track(Hands("none", 2), number=1)
    arrive(lanes, one, "a")
    arrive(lanes, other, "a", "b", "c")
    first, second = started(lanes, other)
    assert started(lanes, one) == []
    lanes.finish(first)
    assert started(lanes, other) == [], "nothing new before the suspect had its turn"
    lanes.finish(second)
    assert started(lanes, other) == []
    (suspect,) = started(lanes, one)
    assert started(lanes, other) == []
    lanes.finish(suspect)
    assert offsets(started(lanes, other)) == [2]


def test_a_gap_larger_than_the_window_is_nothing_unfinished() -> None:
    lanes, one = Lanes(), track(Hands("key", 2))
    lanes.arrive(one, 10 * WINDOW, 0, b"a", "", 1)
    assert one.consumed == 10 * WINDOW
    assert offsets(started(lanes, one)) == [10 * WINDOW]


def test_a_suspect_has_nothing_on_its_way_beside_it_and_nothing_starts_before_it_is_delivered() -> None:
    lanes, one = Lanes(), track(Hands("none", 10), suspects=frozenset({1}))
    arrive(lanes, one, *"abc")
    (first,) = started(lanes, one)
    lanes.send(first, lane_waits=True)
    assert started(lanes, one) == [], "what the first one has left may kill, too"
    assert lanes.holds_back
    lanes.finish(first)
    (suspect,) = started(lanes, one)
    assert suspect.offset == 1
    lanes.send(suspect, lane_waits=True)
    assert started(lanes, one) == []
    lanes.finish(suspect)
    assert offsets(started(lanes, one)) == [2]
    assert not lanes.holds_back


def test_a_suspect_whose_outputs_are_refused_is_dealt_with_and_the_others_go_on() -> None:
    lanes, one = Lanes(), track(Hands("none", 10), suspects=frozenset({0}))
    arrive(lanes, one, *"ab")
    (suspect,) = started(lanes, one)
    lanes.send(suspect, lane_waits=True)
    lanes.take_up(suspect, next(NS))
    lanes.finish(suspect)
    assert offsets(started(lanes, one)) == [1]


def test_a_suspect_is_handled_with_nothing_beside_it() -> None:
    lanes, one = Lanes(), track(Hands("none", 10), suspects=frozenset({1}))
    arrive(lanes, one, *"abcd")
    (first,) = started(lanes, one)
    lanes.finish(first)
    (suspect,) = started(lanes, one)
    assert suspect.offset == 1
    lanes.finish(suspect)
    assert offsets(started(lanes, one)) == [2, 3]


def test_what_was_done_before_is_passed_over() -> None:
    lanes, one = Lanes(), track(Hands("key", 10), done_before={1, 2, 5})
    arrive(lanes, one, *"aaaa")
    (first,) = started(lanes, one)
    lanes.finish(first)
    assert one.consumed == 3
    assert offsets(started(lanes, one)) == [3]
    assert sorted(done_ahead(one)) == [5], "told to the successor, though it was never fetched here"


def test_dropped_records_are_unfinished_until_they_are_fetched_again_or_gone() -> None:
    lanes, one = Lanes(), track(Hands("partition", 10))
    arrive(lanes, one, *"abcdef")
    (first,) = started(lanes, one)
    again = lanes.shed(one, 2)
    assert again is not None
    assert again.offset == 3
    lanes.finish(first)
    for _ in range(2):
        (flight,) = started(lanes, one)
        lanes.finish(flight)
    assert one.consumed == 3
    assert started(lanes, one) == []
    # 3 comes again, 4 was compacted away meanwhile, 5 comes again.
    assert lanes.arrive(one, 3, 0, b"d", "", 1) is not None
    assert lanes.arrive(one, 5, 0, b"f", "", 1) is not None
    for _ in range(2):
        (flight,) = started(lanes, one)
        lanes.finish(flight)
    assert one.consumed == 6
    assert lanes.bytes == 0


def test_a_closed_partition_starts_nothing_and_what_runs_still_counts() -> None:
    hands = Hands("key", 2)
    lanes, one, other = Lanes(), track(hands), track(hands, number=1)
    arrive(lanes, one, *"aab")
    (first, second) = started(lanes, one)
    lanes.close(one)
    arrive(lanes, other, "a")
    lanes.finish(first)
    assert [flight.tp.partition for flight in started(lanes, one)] == [1]
    assert one.consumed == 1
    lanes.finish(second)
    assert list(done_ahead(one)) == [2]
    assert lanes.bytes == 0


class Played:
    """What a handler and a supervisor saw, and what the rules forbid."""

    def __init__(self, ordering: str, concurrency: int, keys: list[str | None]) -> None:
        self.ordering, self.concurrency, self.keys = ordering, concurrency, keys
        self.finished: set[int] = set()
        self.handled: dict[object, list[int]] = defaultdict(list)
        self.begin(0, set())

    def begin(self, consumed: int, done: set[int]) -> None:
        """A worker takes over."""
        self.lanes = Lanes()
        self.track = track(Hands(self.ordering, self.concurrency), consumed, done_before=done)
        self.running: list[Flight] = []
        self.waiting: list[Flight] = []
        self.sending: list[Flight] = []
        self.next = consumed

    def arrive(self) -> None:
        if self.next < len(self.keys):
            key = self.keys[self.next]
            self.lanes.arrive(self.track, self.next, 0, None if key is None else key.encode(), "", 1)
            self.next += 1

    def start(self) -> None:
        if (flight := self.lanes.start(self.track.hands, next(NS))) is None:
            return
        assert flight.offset not in self.finished, "handled twice"
        lane = self.lane_of(flight.offset)
        held = (*self.running, *self.sending)
        assert lane not in {self.lane_of(each.offset) for each in held}, "two of a lane at a time"
        before = [o for o in range(flight.offset) if self.lane_of(o) == lane]
        assert self.finished.issuperset(before), "invariant 4: out of order"
        self.running.append(flight)
        assert len(self.running) <= self.concurrency

    def finish(self, index: int) -> None:
        if self.running:
            flight = self.running.pop(index % len(self.running))
            self.finished.add(flight.offset)
            self.lanes.finish(flight)

    def send(self, index: int) -> None:
        """The handler has returned, with outputs."""
        if self.running:
            flight = self.running.pop(index % len(self.running))
            self.lanes.send(flight, lane_waits=True)
            self.sending.append(flight)

    def deliver(self, index: int) -> None:
        if self.sending:
            flight = self.sending.pop(index % len(self.sending))
            self.finished.add(flight.offset)
            self.lanes.finish(flight)

    def refuse(self, index: int) -> None:
        """The brokers take no output of it: it has failed."""
        if self.sending:
            flight = self.sending.pop(index % len(self.sending))
            self.lanes.take_up(flight, next(NS))
            self.lanes.wait(flight, "retry", "")
            self.waiting.append(flight)

    def fail(self, index: int) -> None:
        if self.running:
            flight = self.running.pop(index % len(self.running))
            self.lanes.wait(flight, "retry", "")
            self.waiting.append(flight)

    def again(self, index: int) -> None:
        if self.waiting:
            flight = self.waiting.pop(index % len(self.waiting))
            if flight.held:
                self.lanes.queue_again(flight)

    def shed(self, index: int) -> None:
        """And fetch again from there on."""
        first = self.lanes.shed(self.track, index % 5)
        if first is not None:
            self.next = first.offset

    def crash(self, index: int) -> None:
        """SIGKILL, or a hand-over: the successor knows what is done."""
        done = set(done_ahead(self.track))
        self.begin(self.track.consumed, done)

    def check(self) -> None:
        assert self.finished.issuperset(range(self.track.consumed)), "invariant 1: passed an unfinished record"
        ahead = {o for o in self.finished if o >= self.track.consumed}
        assert set(done_ahead(self.track)) == ahead, "what is done ahead"
        assert self.lanes.in_flight == len(self.running)

    def lane_of(self, offset: int) -> object:
        key = self.keys[offset]
        if self.ordering == "partition":
            return "all"
        return offset if self.ordering == "none" or key is None else key

    def complete(self) -> None:
        """Everything ends well from here on."""
        for _ in range(10 * len(self.keys) + 10):
            self.again(0)
            self.arrive()
            self.start()
            self.finish(0)
            self.deliver(0)
        assert self.track.consumed == len(self.keys), "something is never handled"
        assert self.lanes.bytes == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "start", "finish", "fail", "again", "shed", "crash", "send", "deliver", "refuse"]),
        st.integers(0, 50),
    ),
    max_size=120,
)
WEIGHTS = {"arrive": 4, "start": 4}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["partition", "key", "none"]),
    st.integers(1, 5),
    st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=25),
    STEPS,
)
def test_invariants_1_and_4_hold_whatever_ends_fails_is_dropped_or_killed(
    ordering: str, concurrency: int, keys: list[str | None], steps: list[tuple[str, int]]
) -> None:
    played = Played(ordering, concurrency, keys)
    for name, index in steps:
        for _ in range(WEIGHTS.get(name, 1)):
            step = getattr(played, name)
            step() if name in WEIGHTS else step(index)
            played.check()
    played.complete()


def test_a_record_that_failed_is_no_longer_held_once_its_partition_is_closed() -> None:
    lanes, one = Lanes(), track(Hands("key", 1))
    arrive(lanes, one, "a")
    (flight,) = started(lanes, one)
    lanes.wait(flight, "retry", "")
    assert flight.held
    lanes.close(one)
    assert not flight.held
    assert flight.stage is Stage.WAITING


def test_where_a_partition_will_be_is_told_over_gaps_and_with_what_was_done_before() -> None:
    lanes, one = Lanes(), track(Hands("none", 10), done_before={3, 2 * WINDOW + 9})
    for offset in (0, 2, 3, 2 * WINDOW, 2 * WINDOW + 1):
        lanes.arrive(one, offset, 7, None, f"record {offset}", 1)
    zero, two, far, farther = one.order[0], one.order[1], one.order[3], one.order[4]
    assert place_with(one, {two}) == Position(0, -1, written(0, {2, 3}))
    assert place_with(one, {zero, two}) == Position(2 * WINDOW, 7, written(2 * WINDOW, {2 * WINDOW + 9}))
    assert place_with(one, {zero, two, far}) == Position(2 * WINDOW + 1, 7, written(2 * WINDOW + 1, {2 * WINDOW + 9}))
    everything = place_with(one, {zero, two, far, farther})
    assert everything == Position(2 * WINDOW + 2, 7, written(2 * WINDOW + 2, {2 * WINDOW + 9}))
