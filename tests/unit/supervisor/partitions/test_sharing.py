"""A member's partitions over its own workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.positions import TopicPartition
from kunicorn.supervisor.partitions.balance import share, workers_wanted
from tests.contract.assignors.groups import of, steady
from tests.lines import counted

partition_sets = st.sets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 12)))
worker_sets = st.sets(st.integers(0, 6), min_size=1)
currents = st.dictionaries(st.builds(TopicPartition, st.sampled_from("abcd"), st.integers(0, 12)), st.integers(0, 8))


def loads(shared: dict[TopicPartition, int], workers: set[int]) -> list[int]:
    return [list(shared.values()).count(worker) for worker in workers]


@steady
@given(partitions=partition_sets, workers=worker_sets, current=currents)
def test_every_partition_has_one_living_worker_and_nothing_else_is_shared(
    partitions: set[TopicPartition], workers: set[int], current: dict[TopicPartition, int]
) -> None:
    shared = share(partitions, workers, current)
    assert shared.keys() == partitions
    assert set(shared.values()) <= workers


@steady
@given(partitions=partition_sets, workers=worker_sets, current=currents)
def test_loads_differ_by_at_most_one(
    partitions: set[TopicPartition], workers: set[int], current: dict[TopicPartition, int]
) -> None:
    counts = loads(share(partitions, workers, current), workers)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("counts", "evened"), [((3, 2), (3, 2)), ((4, 2), (3, 3)), ((1, 1, 0), (1, 1, 0)), ((2, 0), (1, 1))]
)
def test_what_is_even_stays_as_it_is_and_two_more_than_another_worker_has_is_not(
    counts: tuple[int, ...], evened: tuple[int, ...]
) -> None:
    places = [worker for worker, count in enumerate(counts) for _ in range(count)]
    current = {TopicPartition("a", number): worker for number, worker in enumerate(places)}
    shared = share(list(current), range(len(counts)), current)
    assert tuple(loads(shared, set(range(len(counts))))) == evened
    assert (shared == current) is (counts == evened)


@steady
@given(partitions=partition_sets, workers=worker_sets, current=currents)
def test_no_balanced_sharing_moves_less(
    partitions: set[TopicPartition], workers: set[int], current: dict[TopicPartition, int]
) -> None:
    shared = share(partitions, workers, current)
    held = {p: w for p, w in current.items() if p in partitions and w in workers}
    least, extra = divmod(len(partitions), len(workers))
    counts = sorted(loads(held, workers), reverse=True)
    needed = sum(max(0, count - least - (place < extra)) for place, count in enumerate(counts))
    assert sum(shared[p] != w for p, w in held.items()) == needed


@steady
@given(partitions=partition_sets, workers=worker_sets, current=currents)
def test_sharing_again_changes_nothing(
    partitions: set[TopicPartition], workers: set[int], current: dict[TopicPartition, int]
) -> None:
    shared = share(partitions, workers, current)
    assert share(partitions, workers, shared) == shared


@steady
@given(partitions=partition_sets, workers=worker_sets)
def test_a_fresh_start_spreads_every_topic_evenly(partitions: set[TopicPartition], workers: set[int]) -> None:
    shared = share(partitions, workers, {})
    for topic in {p.topic for p in partitions}:
        counts = [sum(w == worker for p, w in shared.items() if p.topic == topic) for worker in workers]
        assert max(counts) - min(counts) <= 1


@steady
@given(partitions=partition_sets, workers=worker_sets, current=currents, data=st.data())
def test_the_order_of_what_is_told_does_not_matter(
    partitions: set[TopicPartition], workers: set[int], current: dict[TopicPartition, int], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(sorted(partitions)))
    turned = dict(data.draw(st.permutations(sorted(current.items()))))
    assert share(shuffled, sorted(workers, reverse=True), turned) == share(partitions, workers, current)


def test_a_dead_workers_partitions_go_to_the_others_and_theirs_stay() -> None:
    current = share(of("t", *range(9)), range(3), {})
    shared = share(of("t", *range(9)), [0, 2], current)
    assert all(shared[partition] == worker for partition, worker in current.items() if worker != 1)


def test_a_worker_lets_go_first_of_the_topic_it_has_most_of() -> None:
    held = of("a", 0, 1, 2, 3) + of("b", 0) + of("c", 0)
    shared = share(held, [0, 1], dict.fromkeys(held, 0))
    assert [partition for partition in held if shared[partition] == 1] == of("a", 1, 2, 3)


def test_a_free_partition_goes_where_its_topic_is_not_yet() -> None:
    current = {**dict.fromkeys(of("a", 0, 1), 0), **dict.fromkeys(of("b", 0, 1), 1)}
    assert share([*current, *of("a", 2), *of("b", 2)], [0, 1], current) == {
        **current,
        **dict.fromkeys(of("a", 2), 1),
        **dict.fromkeys(of("b", 2), 0),
    }


def test_a_partition_named_twice_is_shared_once() -> None:
    assert share(of("t", 0, 0), [0, 1], {}) == dict.fromkeys(of("t", 0), 0)


def test_without_workers_nothing_can_be_shared() -> None:
    assert share(of("t", 0), [], {}) == {}


@pytest.mark.parametrize("topics", [1, 100, 10_000])
def test_sharing_ten_times_the_partitions_over_64_workers_costs_about_ten_times_as_much(topics: int) -> None:
    def lines(count: int) -> int:
        partitions = [TopicPartition(f"t{n % topics}", n // topics) for n in range(count)]
        run, shared = counted(lambda: share(partitions, range(64), {}))
        assert max(Counter(shared.values()).values()) == -(-count // 64)
        return run

    # Counted, not timed. Squared, it would be a hundred times as much.
    assert lines(10_000) < 20 * lines(1_000)


@pytest.mark.parametrize(
    ("partitions", "count", "wanted"),
    [(0, 4, 1), (1, 4, 2), (3, 4, 4), (4, 4, 4), (100, 4, 4), (0, 1, 1), (5, 1, 1)],
)
def test_workers_beyond_the_partitions_and_one_spare_are_not_wanted(partitions: int, count: int, wanted: int) -> None:
    assert workers_wanted(partitions, count) == wanted


@pytest.mark.parametrize(("partitions", "count"), [(-1, 4), (3, 0)])
def test_impossible_numbers_are_refused(partitions: int, count: int) -> None:
    with pytest.raises(ValueError, match="there are at least 0 and 1"):
        workers_wanted(partitions, count)
