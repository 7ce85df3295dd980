"""Groups of three to eight members through all that hypothesis finds to do to them, beside a modelled coordinator.

The simulation holds every event against invariants 2 to 4. However a story ends, the group settles once nothing goes
wrong any more: every partition has one owner, nobody waits, nobody has failed.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.contract.conformance.endurance import came_through
from tests.fakes.host import Host
from tests.fakes.simulation import Simulation, consumer_group

FEWEST, MOST = 3, 8
SECONDS = st.floats(0.01, 15.0)
STORIES = int(os.environ.get("KUNICORN_STORIES", "20"))
"""Of each kind of group; more of them in the long tests."""

KINDS: dict[str, tuple[str | None, ...]] = {
    "cooperative": ("cooperative-sticky",),
    "eager": ("range",),
    "sticky": ("sticky",),
    "consumer": (None,),
    "mixed": ("cooperative-sticky", None),
}


class Groups(RuleBasedStateMachine):
    """One group's life."""

    kind = "cooperative"

    @initialize(seed=st.integers(0, 2**32), members=st.integers(FEWEST, MOST), partitions=st.integers(1, 12))
    def begin(self, seed: int, members: int, partitions: int) -> None:
        self.rng = Random(seed)
        self.world = Simulation(
            self.rng, partitions, group=consumer_group(partitions) if None in KINDS[self.kind] else None
        )
        self.named = 0
        self.start(members)

    def start(self, members: int) -> None:
        for _ in range(members):
            self.named += 1
            assignor = KINDS[self.kind][self.named % len(KINDS[self.kind])]
            Host(self.world, f"host-{self.named}", assignor, drain=self.rng.choice((0.0, 0.1, 2.0)))

    @precondition(lambda self: len(self.world.living) < MOST)
    @rule()
    def a_member_joins(self) -> None:
        self.start(1)

    @precondition(lambda self: len(self.world.living) > FEWEST)
    @rule(pick=st.integers(0, MOST))
    def a_member_crashes(self, pick: int) -> None:
        self.world.living[pick % len(self.world.living)].crash()

    @precondition(lambda self: len(self.world.living) > FEWEST)
    @rule(pick=st.integers(0, MOST))
    def a_member_leaves(self, pick: int) -> None:
        self.world.living[pick % len(self.world.living)].leave()

    @precondition(lambda self: self.world.living)
    @rule(pick=st.integers(0, MOST))
    def a_member_commits(self, pick: int) -> None:
        self.world.living[pick % len(self.world.living)].commit()

    @rule()
    def the_coordinator_moves(self) -> None:
        self.world.move()

    @rule(fates=st.lists(st.sampled_from(["lost", "twice", "slow", "arrives"]), min_size=1, max_size=12))
    def messages_go_astray(self, fates: list[str]) -> None:
        self.world.fates += fates

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


def play(kind: str, stories: int, *, same: bool = False) -> None:
    """So many stories of that kind of group; `same`: as in every other run."""
    machine = type(f"Groups_{kind}", (Groups,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=stories,
            stateful_step_count=25,
            deadline=None,
            derandomize=same,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.scenario("Test848PartitionHandoffNoDuplicates", "TestGroupETL")
@pytest.mark.parametrize("kind", KINDS)
def test_invariants_2_to_4_hold_and_the_group_always_settles(kind: str) -> None:
    play(kind, STORIES, same=True)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_invariants_2_to_4_hold_in_a_thousand_stories_of_each_kind_of_group(kind: str) -> None:
    play(kind, 1000)
    came_through("stories after which a group settled", f"{kind} group", 1000)
