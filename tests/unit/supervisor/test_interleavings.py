"""Hand-outs, drains, revokes, losses, pauses, deaths, late reports and failing commits, in every order there is.

The world beside this holds what happens against invariants 1 to 4 and 8; the end of each story against 7.
"""

from __future__ import annotations

from random import Random
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kunicorn.group.states import PartitionState
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.offsets import commits
from tests.fakes.played_workers import PlayedWorker
from tests.unit.supervisor.world import World

WORKERS = 2
PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
CHOICE = st.randoms(use_true_random=False)
SOME = st.sets(st.sampled_from(PARTITIONS), min_size=1)
# 14, 15, 16, 25, 27: loading, no coordinator, not coordinator, unknown member, rebalance (Errors.java).
FATES = st.sampled_from(["answer lost", "request lost", "14", "15", "16", "25", "27"])


class Interleavings(RuleBasedStateMachine):
    """One member's life."""

    def __init__(self) -> None:
        super().__init__()
        # Nothing waits for the clock: a story of fifty steps takes milliseconds.
        self.quick = mock.patch.multiple(commits, _RETRY_PAUSE=0)
        self.quick.start()
        self.world = World(WORKERS)

    def grants(self, *, in_hand: bool | None = None, stop_asked: bool | None = None) -> list[tuple[PlayedWorker, int]]:
        """Those open in living workers, in this condition."""
        return [
            (worker, grant)
            for worker, hands in self.world.hands.items()
            for grant, held in hands.items()
            if in_hand in (None, held.in_hand) and stop_asked in (None, held.stop_asked)
        ]

    # -- the group

    @initialize(some=SOME)
    def begin(self, some: set[TopicPartition]) -> None:
        self.world.assign(sorted(some))
        self.world.resolve()

    @rule(some=SOME)
    def assign(self, some: set[TopicPartition]) -> None:
        if fresh := some - self.world.owned:
            self.world.assign(sorted(fresh))

    @precondition(lambda self: self.world.stage.resolving)
    @rule()
    def find_start_offsets(self) -> None:
        self.world.resolve()

    @rule(some=SOME)
    def revoke(self, some: set[TopicPartition]) -> None:
        if going := some & self.world.owned - self.world.leaving.keys():
            self.world.revoke(sorted(going))

    @rule(some=SOME, others_handle=st.integers(0, 3))
    def lose(self, some: set[TopicPartition], others_handle: int) -> None:
        if going := some & self.world.owned - self.world.leaving.keys():
            self.world.lose(sorted(going), others_handle)

    @rule(joining=st.booleans())
    def join_or_sync(self, joining: bool) -> None:
        if not joining or self.world.in_flight == 0:
            self.world.join_or_sync(joining=joining)
            self.world.go_on()

    # -- the workers

    @precondition(lambda self: self.grants(in_hand=False, stop_asked=False))
    @rule()
    def handle_a_record_each(self) -> None:
        for grant in self.grants(in_hand=False, stop_asked=False):
            self.world.begin_record(*grant)
            self.world.finish_record(*grant)

    @precondition(lambda self: self.grants(in_hand=False, stop_asked=False))
    @rule(rng=CHOICE)
    def begin_a_record(self, rng: Random) -> None:
        self.world.begin_record(*rng.choice(self.grants(in_hand=False, stop_asked=False)))

    @precondition(lambda self: self.grants(in_hand=True))
    @rule(rng=CHOICE)
    def finish_a_record(self, rng: Random) -> None:
        self.world.finish_record(*rng.choice(self.grants(in_hand=True)))

    @precondition(lambda self: self.grants(in_hand=False, stop_asked=True))
    @rule(rng=CHOICE)
    def let_go(self, rng: Random) -> None:
        self.world.let_go(*rng.choice(self.grants(in_hand=False, stop_asked=True)))

    @precondition(lambda self: self.world.over)
    @rule(rng=CHOICE)
    def report_late(self, rng: Random) -> None:
        self.world.report_late(*rng.choice(self.world.over))

    @rule(number=st.sampled_from(range(WORKERS)))
    def crash_or_replace(self, number: int) -> None:
        if number in self.world.stage.pool.workers:
            self.world.crash(number)
        else:
            self.world.replace(number)

    @precondition(lambda self: self.world.movable())
    @rule(rng=CHOICE)
    def move_by_load(self, rng: Random) -> None:
        self.world.move(rng.choice(self.world.movable()))

    # -- a person

    @rule(some=SOME, pause=st.booleans())
    def pause_or_resume(self, some: set[TopicPartition], pause: bool) -> None:
        if ours := some & self.world.stage.assignment.table.keys():
            self.world.pause_or_resume(sorted(ours), pause=pause)

    # -- commits

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(fate=FATES)
    def let_a_commit_fail(self, fate: str) -> None:
        self.world.script.append(fate)

    @invariant()
    def invariant_7_everything_owned_is_in_the_table(self) -> None:
        table = self.world.stage.assignment.table
        staying = self.world.owned - self.world.leaving.keys()
        assert staying <= table.keys()
        assert not any(table[tp].state is PartitionState.HALTED for tp in staying)

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.world.close()
            self.quick.stop()

    def settle(self) -> None:
        """Nothing more goes wrong: then every partition of ours is with a worker, and everything gets committed."""
        world = self.world
        world.script.clear()
        world.join_or_sync(joining=False)
        for number in set(range(WORKERS)) - set(world.stage.pool.workers):
            world.replace(number)
        for _ in range(6):
            if paused := [tp for tp, p in world.stage.assignment.table.items() if p.state is PartitionState.PAUSED]:
                world.pause_or_resume(paused, pause=False)
            for grant in self.grants(in_hand=True):
                world.finish_record(*grant)
            for grant in self.grants(stop_asked=True):
                world.let_go(*grant)
            world.resolve()
        assert not world.leaving, "a revoke that nothing stands in the way of has not ended"
        assert sorted(held.tp for hands in world.hands.values() for held in hands.values()) == sorted(world.owned), (
            "invariant 7: owned, and in no worker's hands"
        )
        world.commit()
        assert {tp: world.committed[tp] for tp in world.owned} == {tp: world.handled[tp] for tp in world.owned}


Interleavings.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestInterleavings = Interleavings.TestCase
