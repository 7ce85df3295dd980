"""Which partition goes to another worker, and that it comes to an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.positions import TopicPartition
from kunicorn.supervisor.partitions.balance import FORGOTTEN, REST, Limits, Load, Move, Past, Reason, demands, next_move
from tests.contract.assignors.groups import steady

LIMITS = Limits(interval=5.0, gap=0.2)
worlds_that_run = settings(deadline=None, max_examples=15)


def load(number: int, worker: int, busy: float, lag: int = 0, *, movable: bool = True) -> Load:
    return Load(TopicPartition("orders", number), worker, busy, lag, 0.001, movable)


def moves(loads: Iterable[Load], workers: Iterable[int], rounds: int, past: Past | None = None) -> list[Move]:
    """What is done while the loads stay as they are, each move carried out before the next look."""
    now, past, found = 1000.0, past or Past(), []
    current = {each.tp: each for each in loads}
    for _ in range(rounds):
        move = next_move(list(current.values()), list(workers), now, past, LIMITS)
        if move is not None:
            current[move.tp] = replace(current[move.tp], worker=move.receiver)
            past = past.with_move(move.tp, now, LIMITS)
            found.append(move)
        now += LIMITS.interval
    return found


def said(loads: Iterable[Load], workers: Iterable[int] = (0, 1), rounds: int = 30) -> list[tuple[int, int, str]]:
    return [(move.tp.partition, move.receiver, move.reason.value) for move in moves(loads, workers, rounds)]


def test_what_lies_beside_a_hot_partition_moves_away_and_the_hot_one_stays() -> None:
    hot = [load(0, 0, 0.25, lag=70_000), *(load(n, 0, 0.25, lag=10_000) for n in (2, 4, 6))]
    others = [load(n, 1, 0.25, lag=10_000) for n in (1, 3, 5, 7)]
    found = said([*hot, *others])
    assert {number for number, _, _ in found} == {2, 4, 6}, "the hot partition is alone: as much as the seven others"
    assert all(receiver == 1 for _, receiver, _ in found)


def test_beside_a_partition_that_fills_its_worker_nothing_stays_that_has_room_elsewhere() -> None:
    found = said([load(0, 0, 1.0, lag=50_000), load(1, 0, 0.01), load(2, 1, 0.3)])
    assert found == [(1, 1, "crowded")], "a tiny share of all that is to be done, and everything for that partition"


def test_where_every_worker_is_full_the_tiny_ones_stay_where_they_are() -> None:
    assert said([load(0, 0, 1.0, lag=50_000), load(1, 0, 0.01), load(2, 1, 1.0, lag=50_000)]) == []


def test_workers_that_keep_up_with_ease_are_left_alone() -> None:
    assert said([load(0, 0, 0.2), load(1, 0, 0.2), load(2, 1, 0.0)]) == []


def test_a_gap_below_the_limit_moves_nothing() -> None:
    loads = [load(0, 0, 0.45), load(1, 0, 0.15), load(2, 1, 0.5)]
    assert said(loads) == []
    assert said([*loads[:2], load(2, 1, 0.3)]) == [(1, 1, "load")]


def test_the_only_partition_of_a_worker_does_not_change_places() -> None:
    assert said([load(0, 0, 1.0, lag=1_000_000), load(1, 1, 0.0)]) == []


def test_two_that_are_busy_on_one_worker_part_although_the_receiver_then_has_more() -> None:
    assert said([load(0, 0, 0.6), load(1, 0, 0.6), load(2, 1, 0.2)]) == [(1, 1, "load")]


def test_what_may_not_move_counts_where_it_is() -> None:
    stays = load(0, 0, 0.9, movable=False)
    assert said([stays, load(1, 1, 0.0), load(2, 0, 0.1)]) == [(2, 1, "load")]


def test_a_lag_that_is_not_known_counts_for_nothing() -> None:
    unknown = Load(TopicPartition("orders", 0), 0, 0.3, None, 0.001)
    assert unknown.demand == 0.3


def test_the_receiver_is_the_idlest_of_all_workers() -> None:
    loads = [load(0, 0, 0.6), load(1, 0, 0.5), load(2, 1, 0.5), load(3, 2, 0.1)]
    assert said(loads, (0, 1, 2))[0][1] == 2


def test_a_worker_that_takes_nothing_neither_gives_nor_receives() -> None:
    assert said([load(0, 0, 0.6), load(1, 0, 0.6)], (0,)) == []
    assert all(receiver != 2 for _, receiver, _ in said([load(0, 0, 0.6), load(1, 0, 0.6), load(2, 2, 0.0)], (0, 1)))


def test_no_two_moves_come_within_an_interval() -> None:
    loads = [load(n, 0, 0.2) for n in range(5)]
    past = Past().with_move(loads[0].tp, 100.0, LIMITS)
    assert next_move(loads, (0, 1), 104.9, past, LIMITS) is None
    assert next_move(loads, (0, 1), 105.0, past, LIMITS) is not None


def test_a_partition_that_was_moved_rests() -> None:
    loads = [load(0, 0, 0.6), load(1, 0, 0.5)]
    past = Past().with_move(loads[0].tp, 100.0, LIMITS)
    found = next_move(loads, (0, 1), 106.0, past, LIMITS)
    assert found is not None
    assert found.tp == loads[1].tp
    both = past.with_move(loads[1].tp, 106.0, LIMITS)
    assert next_move(loads, (0, 1), 112.0, both, LIMITS) is None
    assert next_move(loads, (0, 1), 100.0 + REST * LIMITS.interval, both, LIMITS) is not None


def test_each_further_move_makes_its_rest_twice_as_long_until_it_has_stayed_for_long() -> None:
    tp, rest = TopicPartition("orders", 0), REST * LIMITS.interval
    once = Past().with_move(tp, 0.0, LIMITS)
    twice = once.with_move(tp, rest, LIMITS)
    assert not twice.rested(tp, rest + 1.9 * rest, LIMITS)
    assert twice.rested(tp, rest + 2 * rest, LIMITS)
    later = rest + 4 * 2 * rest
    assert twice.with_move(tp, later, LIMITS).rested(tp, later + rest, LIMITS)


def test_a_move_says_what_goes_where_and_why() -> None:
    loaded, crowded = (
        Move(TopicPartition("orders", 3), 0, 1, reason, 0.2, 1.4, 0.3) for reason in (Reason.LOAD, Reason.CROWDED)
    )
    assert str(loaded) == "orders-3 moves from worker 0 to worker 1, which has less to do"
    assert "another partition takes all that worker 0 can do" in str(crowded)


# -- it comes to an end ------------------------------------------------------------------------------------------------

worlds = st.integers(2, 5).flatmap(
    lambda workers: st.tuples(
        st.just(range(workers)),
        st.lists(
            st.tuples(st.integers(0, workers - 1), st.floats(0.0, 1.0), st.integers(0, 100_000), st.booleans()),
            min_size=1,
            max_size=24,
        ),
    )
)


def loads_of(partitions: Iterable[tuple[int, float, int, bool]]) -> list[Load]:
    return [load(n, worker, busy, lag, movable=movable) for n, (worker, busy, lag, movable) in enumerate(partitions)]


@steady
@given(world=worlds)
def test_under_constant_loads_it_settles_after_few_moves(
    world: tuple[range, list[tuple[int, float, int, bool]]],
) -> None:
    workers, partitions = world
    loads = loads_of(partitions)
    found = moves(loads, workers, rounds=REST * len(loads) + 100)
    assert len(found) <= 2 * len(loads)
    after = {each.tp: each for each in loads} | {
        move.tp: replace(next(each for each in loads if each.tp == move.tp), worker=move.receiver) for move in found
    }
    assert next_move(list(after.values()), list(workers), 1e9, Past(), LIMITS) is None, "nothing is left that pays"


@steady
@given(world=worlds)
def test_every_move_evens_out(world: tuple[range, list[tuple[int, float, int, bool]]]) -> None:
    workers, partitions = world
    loads = loads_of(partitions)
    current = {each.tp: each for each in loads}
    for move in moves(loads, workers, rounds=60):
        before = demands(current.values(), workers)
        current[move.tp] = replace(current[move.tp], worker=move.receiver)
        after = demands(current.values(), workers)
        assert sum(each**2 for each in after.values()) < sum(each**2 for each in before.values())
        assert current[move.tp].movable


@steady
@given(
    flips=st.lists(st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6), min_size=2, max_size=40),
    step=st.floats(0.1, 7.0),
)
def test_loads_that_flip_cause_at_most_one_move_an_interval_and_rest_for_who_moved(
    flips: list[list[float]], step: float
) -> None:
    now, past, workers = 0.0, Past(), [0, 0, 0, 1, 1, 1]
    made: list[tuple[float, TopicPartition]] = []
    for flip in flips * 5:
        found = next_move([load(n, workers[n], busy) for n, busy in enumerate(flip)], (0, 1), now, past, LIMITS)
        if found is not None:
            workers[found.tp.partition] = found.receiver
            past = past.with_move(found.tp, now, LIMITS)
            made.append((now, found.tp))
        now += step
    assert all(later - earlier >= LIMITS.interval for (earlier, _), (later, _) in pairwise(made))
    for tp in {tp for _, tp in made}:
        of_it = [at for at, other in made if other == tp]
        assert all(later - earlier >= REST * LIMITS.interval for earlier, later in pairwise(of_it))


# -- with workers that behave as workers do ----------------------------------------------------------------------------


@dataclass
class Queue:
    """A partition to which work arrives: seconds of it in a second, and what waits."""

    arrives: float
    waits: float
    worker: int
    busy: float = 0.0


def work(queues: list[Queue], worker: int, seconds: float) -> None:
    """Workers share their time out evenly among partitions that have something."""
    left = seconds
    own = [queue for queue in queues if queue.worker == worker]
    for queue in own:
        queue.waits += queue.arrives * seconds
        queue.busy = 0.0
    for place, queue in enumerate(sorted(own, key=lambda queue: queue.waits)):
        took = min(queue.waits, left / (len(own) - place))
        queue.waits, queue.busy, left = queue.waits - took, took / seconds, left - took


def lived(queues: list[Queue], workers: int, rounds: int) -> list[tuple[float, int]]:
    """The moves made, when and of what. Loads follow from them: a full worker shows none of its partitions as it is."""
    past, now, made = Past(), 0.0, []
    for _ in range(rounds):
        for worker in range(workers):
            work(queues, worker, LIMITS.interval)
        now += LIMITS.interval
        loads = [load(n, queue.worker, queue.busy, int(queue.waits * 1000)) for n, queue in enumerate(queues)]
        found = next_move(loads, range(workers), now, past, LIMITS)
        if found is not None:
            queues[found.tp.partition].worker = found.receiver
            past = past.with_move(found.tp, now, LIMITS)
            made.append((now, found.tp.partition))
    return made


def most_of_one(made: list[tuple[float, int]]) -> int:
    """How often the partition moved that moved most."""
    return max(Counter(number for _, number in made).values(), default=0)


def often(rounds: int) -> int:
    """How often one may: each rest is twice the one before, or four of them lay between."""
    return 1 + rounds // (FORGOTTEN * REST)


@worlds_that_run
@given(
    shares=st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 60.0)), min_size=2, max_size=12),
    workers=st.integers(2, 4),
)
def test_work_that_can_be_done_is_shared_out_once_and_then_stays(
    shares: list[tuple[float, float]], workers: int
) -> None:
    of_all = 0.6 * workers / sum(share for share, _ in shares)
    queues = [Queue(min(0.6, share * of_all), waits, n % workers) for n, (share, waits) in enumerate(shares)]
    rounds = 400
    made = lived(queues, workers, rounds)
    assert most_of_one(made) <= often(rounds)
    # A minute of work at most waits for each of twelve, and two fifths of two workers' time are there for it.
    caught_up = 12 * 60.0 / (0.4 * 2)
    assert not [at for at, _ in made if at > caught_up + 50 * LIMITS.interval], "then there is nothing to move for"


@worlds_that_run
@given(arrivals=st.lists(st.floats(0.0, 1.5), min_size=2, max_size=12), workers=st.integers(2, 4))
def test_where_there_is_too_much_to_do_partitions_do_not_go_round_and_round(
    arrivals: list[float], workers: int
) -> None:
    rounds = 250
    made = lived([Queue(each, 0.0, n % workers) for n, each in enumerate(arrivals)], workers, rounds)
    assert most_of_one(made) <= often(rounds)
