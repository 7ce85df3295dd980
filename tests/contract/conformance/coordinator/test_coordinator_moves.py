"""A coordinator that moves, dies or is cut off at every instant of a rebalance: nobody who was a member loses anything.

The generation that is being joined is in the log only with the leader's SyncGroup; whoever takes over before that knows
the one before it, and everybody in that.
"""

from __future__ import annotations

from random import Random

import pytest

from kunicorn.group.states import State
from tests.fakes.host import Host
from tests.fakes.simulation import Simulation, consumer_group

STEPS = pytest.mark.parametrize("step", [0.06, pytest.param(0.03, marks=pytest.mark.long)])
"""Seconds between two instants on average. The phases that members and coordinators tell apart take longer; answers on
their way take less, and are met by chance."""
WINDOW = 1.6
"""Seconds that the rebalance takes, with its slowest plan and both joins of the cooperative protocol; and a bit."""
SETTLED = 12.0
"""Seconds after which three members that came at once share everything, and heartbeats are slow again."""
OVER = 25.0
"""Seconds after the move: reading the log, a look-up, and both joins anew."""


def instants(seed: int, step: float) -> list[float]:
    """One in each step, where chance has it."""
    chance = Random(seed)
    return [(number + chance.random()) * step for number in range(round(WINDOW / step))]


def rebalancing(seed: int, assignor: str | None) -> tuple[Simulation, list[Host]]:
    """Three settled members, and a fourth that has just come."""
    world = Simulation(Random(seed), 12, group=consumer_group(12) if assignor is None else None)
    members = [Host(world, f"host-{number}", assignor) for number in range(3)]
    world.run(SETTLED)
    assert all(host.member.state is State.STABLE for host in members)
    Host(world, "newcomer", assignor)
    return world, members


@STEPS
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("orderly", [True, False], ids=["resigns", "dies"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_coordinator_that_moves_in_the_middle_of_a_rebalance_costs_no_member_a_partition(
    assignor: str, orderly: bool, seed: int, step: float
) -> None:
    costs: dict[float, list[int]] = {}
    for instant in instants(seed, step):
        world, members = rebalancing(seed, assignor)
        world.run(instant)
        world.move(orderly=orderly)
        world.settle(OVER)
        if any(host.lost for host in members):
            costs[instant] = [host.lost for host in members]
    assert not costs


@STEPS
@pytest.mark.parametrize("moves", [False, True], ids=["stays", "dies"])
@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range", None])
def test_a_member_told_to_stop_drains_at_once_at_every_instant_of_a_rebalance(
    assignor: str | None, moves: bool, step: float
) -> None:
    for instant in [0.0, *instants(5, step)]:
        world, members = rebalancing(5, assignor)
        world.run(instant)
        if moves:
            world.move(orderly=False)
            world.run(0.01)
        leaver = members[0]
        leaver.leave()
        assert not leaver.alive or (leaver.member.state is State.LEAVING and leaver.drains), instant
        world.run(8.0)
        assert not leaver.alive, f"{instant} s: {leaver.member.state}"
        assert not leaver.lost
        world.settle(OVER)


@STEPS
def test_a_coordinator_that_moves_twice_costs_no_member_a_partition(step: float) -> None:
    for instant in instants(3, step)[::5]:
        for again in (0.05, 0.3, 1.5):
            world, members = rebalancing(3, "cooperative-sticky")
            world.run(instant)
            world.move(orderly=False)
            world.run(again)
            world.move()
            world.settle(OVER)
            assert not any(host.lost for host in members), f"{instant} s and {again} s later"
