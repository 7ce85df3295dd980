"""Counts by member and pool: as even as any assignment can be, and taken away only where evenness demands it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors.sticky import Counts, quotas
from tests.contract.assignors.groups import steady


@dataclass(frozen=True)
class Problem:
    """The arguments of `quotas`."""

    sizes: tuple[int, ...]
    subscribers: tuple[tuple[int, ...], ...]
    owned: tuple[dict[int, int], ...]

    def solve(self) -> Counts:
        return quotas(self.sizes, self.subscribers, self.owned)


@st.composite
def problems(draw: st.DrawFn, max_members: int = 5, max_size: int = 5) -> Problem:
    members = range(draw(st.integers(1, max_members)))
    pools = range(draw(st.integers(0, 4)))
    subscribers = tuple(tuple(sorted(draw(st.sets(st.sampled_from(members), min_size=1)))) for _ in pools)
    sizes = tuple(draw(st.integers(1, max_size)) for _ in pools)
    owned: tuple[dict[int, int], ...] = tuple({} for _ in members)
    for pool in pools:
        for rank in draw(st.lists(st.sampled_from(subscribers[pool]), max_size=sizes[pool])):
            owned[rank][pool] = owned[rank].get(pool, 0) + 1
    return Problem(sizes, subscribers, owned)


def unevenness(loads: tuple[int, ...]) -> int:
    return sum(load * load for load in loads)


def _one_more(loads: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (*loads[:rank], loads[rank] + 1, *loads[rank + 1 :])


def least_unevenness(problem: Problem) -> int:
    """By trying every assignment there is."""
    reachable = {(0,) * len(problem.owned)}
    for size, ranks in zip(problem.sizes, problem.subscribers, strict=True):
        for _ in range(size):
            reachable = {_one_more(loads, rank) for loads in reachable for rank in ranks}
    return min(map(unevenness, reachable))


@steady
@given(problem=problems())
def test_every_pool_is_given_out_whole_and_to_subscribers_only(problem: Problem) -> None:
    solved = problem.solve()
    assert all(count > 0 for counts in solved for count in counts.values())
    for pool, (size, ranks) in enumerate(zip(problem.sizes, problem.subscribers, strict=True)):
        holders = {rank: counts[pool] for rank, counts in enumerate(solved) if pool in counts}
        assert holders.keys() <= set(ranks)
        assert sum(holders.values()) == size


@steady
@given(problem=problems(max_members=4, max_size=4))
def test_no_assignment_is_more_even(problem: Problem) -> None:
    loads = tuple(sum(counts.values()) for counts in problem.solve())
    assert unevenness(loads) == least_unevenness(problem)


@steady
@given(problem=problems())
def test_what_is_even_already_stays(problem: Problem) -> None:
    solved = problem.solve()
    assert Problem(problem.sizes, problem.subscribers, tuple(solved)).solve() == solved


@steady
@given(problem=problems(), data=st.data())
def test_what_is_taken_out_of_an_even_assignment_fits_back_without_moving_the_rest(
    problem: Problem, data: st.DataObject
) -> None:
    kept = tuple(
        {pool: left for pool, count in counts.items() if (left := data.draw(st.integers(0, count)))}
        for counts in problem.solve()
    )
    again = Problem(problem.sizes, problem.subscribers, kept).solve()
    assert all(again[rank].get(pool, 0) >= left for rank, counts in enumerate(kept) for pool, left in counts.items())


def test_a_chain_of_transfers_levels_what_no_single_transfer_can() -> None:
    # Members 0 and 2 share no pool; only through member 1 can the one relieve the other.
    problem = Problem((6, 3), ((0, 1), (1, 2)), ({0: 4}, {0: 2, 1: 1}, {1: 2}))
    assert [sum(counts.values()) for counts in problem.solve()] == [3, 3, 3]


def test_what_is_free_is_rearranged_before_anything_is_taken_from_a_member() -> None:
    # Placed one by one, the free partitions leave members 0 and 2 ahead; moving those about is enough to level them.
    owned: tuple[dict[int, int], ...] = ({0: 1, 1: 1}, {}, {1: 2}, {0: 1})
    again = Problem((4, 4), ((0, 1, 3), (0, 1, 2)), owned).solve()
    assert all(again[rank].get(pool, 0) >= count for rank, counts in enumerate(owned) for pool, count in counts.items())
    assert [sum(counts.values()) for counts in again] == [2, 2, 2, 2]
