"""A group's members beside a modelled coordinator, on links that lose, delay and repeat, under a clock that is turned.

The members are the real state machines; what the driver does with their commands is played by `tests.fakes.host`. Each
event is held against the invariants that concern more than one member (those of owners in `tests.fakes.owners`):

2. No commit is taken between JoinGroup and SyncGroup.
3. A commit is taken only from the owner, and never takes an offset back.
4. No partition is handled by two members, and none is given away while another one may still handle it.

A `Meter` sees what passes between members and coordinator, and is asked for each decision: `bench.groups` measures so.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from kunicorn.group import events as ev
from kunicorn.group.member import Timings
from kunicorn.group.protocol import Plan
from kunicorn.group.states import State
from kunicorn.positions import TopicPartition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.owners import Owners

if TYPE_CHECKING:
    from tests.fakes.host import Host

TOPIC = "orders"
TOPIC_ID = UUID("00000000-0000-4000-8000-000000000001")
TIMINGS = Timings(session_timeout=10.0, rebalance_timeout=20.0, fast_period=7.0)
NODES = 3
SETTLED_WITHIN = 90.0
"""Seconds: a crashed member's session, a rebalance timeout spent on it, and the joins after that; twice."""

_OUT_OF_TURN = 0.004
"""Most seconds that an answer takes: enough for later ones to overtake it."""


def consumer_group(partitions: int) -> ConsumerGroup:
    """An empty group with the consumer protocol."""
    return ConsumerGroup(TOPIC, TOPIC_ID, partitions, TIMINGS.session_timeout)


class Meter:
    """Does what members decide, and sees what they say. This one measures nothing."""

    def decide(self, host: Host, event: ev.Event, now: float) -> list[ev.Command]:
        """What the member does about the event."""
        return host.member.receive(event, now)

    def plan(self, host: Host, request: ev.MakePlan) -> tuple[Plan, float]:
        """The leader's plan, and the seconds until it is there."""
        return host.plan(request), host.world.rng.uniform(0, 0.3)

    def asked(self, host: Host, request: ev.Request) -> None:
        """A request goes out."""

    def answered(self, host: Host, event: ev.Event) -> ev.Event:
        """Its answer comes in, as the member reads it."""
        return event

    def committed(self, host: Host, offsets: Mapping[TopicPartition, int]) -> None:
        """OffsetCommit goes out, and its answer comes in."""


class Simulation:
    """One group of `partitions`. Everything happens in `run`."""

    def __init__(
        self, rng: Random, partitions: int, *, group: ClassicGroup | ConsumerGroup | None = None,
        timings: Timings = TIMINGS, meter: Meter | None = None,
    ) -> None:  # fmt: skip
        """`group`: a classic one unless told otherwise."""
        self.rng = rng
        self.now = 1000.0
        self.timings = timings
        self.meter = meter or Meter()
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.owners = Owners(self.partitions, self.now)
        self.group: ClassicGroup | ConsumerGroup = ClassicGroup() if group is None else group
        self.coordinator = 0
        """The node that coordinates."""
        self.loading_until = 0.0
        self.hosts: list[Host] = []
        self.committed: Counter[TopicPartition] = Counter()
        self.fates: list[str] = []
        """What happens to the next messages: "lost", "twice", "slow"; those after them arrive."""
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by topic, as metadata tells them."""
        return {TOPIC: len(self.partitions)}

    @property
    def living(self) -> list[Host]:
        """Members that neither crashed nor left."""
        return [host for host in self.hosts if host.alive]

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """Let it happen then."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), what))

    def send(self, what: Callable[[], None], *, behind: float = 0.0) -> float:
        """An answer on its way; or a request, which arrives `behind` those before it and once at most, as TCP has it.

        Returns when it arrives.
        """
        fate = self.fates.pop(0) if self.fates else "arrives"
        delay = self.rng.uniform(0, _OUT_OF_TURN) if fate != "slow" else self.rng.uniform(1.0, 5.0)
        delay = max(delay, behind - self.now)
        if fate != "lost":
            self.after(delay, what)
        if fate == "twice" and not behind:
            self.after(self.rng.uniform(0, 3.0), what)
        return self.now + delay

    def grow(self, partitions: int) -> None:
        """The topic has so many more partitions; the leader's metadata tell it now."""
        first = len(self.partitions)
        new = [TopicPartition(TOPIC, number) for number in range(first, first + partitions)]
        self.partitions += new
        self.owners.add(new, self.now)
        if isinstance(self.group, ConsumerGroup):
            self.group.grow(partitions, self.now)
        for host in self.living:
            if host.member.leader:
                host.tell(ev.TopicsChanged(f"{TOPIC}: {first} to {len(self.partitions)} partitions"))

    def move(self, *, orderly: bool = True) -> None:
        """Another node coordinates; it has to read the log first.

        Where the one before resigns, whoever waits is told so; where it dies, connections break.
        """
        self.coordinator = (self.coordinator + 1) % NODES
        self.loading_until = self.now + self.rng.uniform(0, 1.0)
        if not orderly:
            for host in self.living:
                host.cut_off()
        self.group.move(self.now)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while True:
            event = self._due[0][0] if self._due else float("inf")
            timer = self.group.deadline()
            upcoming = min(event, timer)
            if upcoming > until:
                break
            self.now = max(self.now, upcoming)
            if timer < event:
                self.group.tick(self.now)
            else:
                heapq.heappop(self._due)[2]()
            self.owners.check()
        self.now = until

    def settle(self, within: float = SETTLED_WITHIN) -> None:
        """With nothing going wrong any more, every partition has one owner and every member a settled place."""
        self.fates.clear()
        self.run(within)
        states = {host.name: host.member.state for host in self.living}
        assert set(states.values()) <= {State.STABLE}, f"after {within:g} s: {states}; {self.group}"
        if self.living:
            self.owners.check_settled()
        for host in self.living:
            assert host.running == host.member.owned, f"{host.name} runs {host.running}, owns {host.member.owned}"

    def take_commit(self, host: Host, offsets: dict[TopicPartition, int], generation: int, member_id: str) -> int:
        """OffsetCommit as it arrives at the coordinator."""
        if isinstance(self.group, ClassicGroup):
            error = self.group.commit(member_id, generation, host.instance_id, self.now)
        else:
            error = self.group.commit(member_id, generation, self.now)
        if error == 0:
            for tp, offset in offsets.items():
                assert offset >= self.committed[tp], f"invariant 3: {host.name} takes {tp} back to {offset}"
                self.committed[tp] = offset
        return error
