"""What happens to a modelled group, and what it costs until the group is settled again.

Every member has its place, every partition its owner, and the coordinator has nothing left to tell: that is settled.
Time is the model's. A message takes up to 4 ms one way, records in hand 100 ms, a commit 4 ms; the leader's plan takes
the processor time that it takes here. Nothing is lost.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from bench.groups.wire import CLIENT, Tally, Wire, group_record_bytes, place_of
from kunicorn.group.member import Timings
from kunicorn.group.states import State
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.host import Host
from tests.fakes.java_member import JavaHost
from tests.fakes.seats import GroupState
from tests.fakes.simulation import TOPIC, TOPIC_ID, Simulation

RULES: dict[str, type[Host]] = {"kunicorn": Host, "java": JavaHost}
ASSIGNORS = ("range", "cooperative-sticky", "consumer")
CASES = ("join", "one", "ten", "grown", "rolling", "rolling-static")
SIZES = {"rolling": (200, 20_000), "rolling-static": (200, 20_000)}
"""Members and partitions; of the other cases `LARGE`."""
LARGE = (1_000, 100_000)
GROWN = 10
"""In a hundred: so many more partitions does the topic get."""
SAMPLED = 10
INITIAL_DELAY = 3.0
ASSIGNMENT_INTERVAL = 1.0
"""As Kafka 4.4 ships them: `group.initial.rebalance.delay.ms`, `group.consumer.assignment.interval.ms`."""
STARTING = 2.0
"""Seconds from a member's end to the first request of its successor."""
QUIET = 30.0
"""Seconds between cases: heartbeats are slow again."""
_STEP = 0.02
_SETTLED_WITHIN = 900.0


@dataclass(frozen=True)
class Row:
    """One case of one kind of group. Seconds and bytes; processor time of Python here."""

    case: str
    rules: str
    assignor: str
    members: int
    partitions: int
    generations: int
    messages: dict[str, int]
    sent: int
    received: int
    largest_frame: int
    group_record: int
    """Of a classic group at its end; 0 where the coordinator keeps a record a member."""
    frames: int
    """That were really encoded."""
    leader_cpu: float
    plan_cpu: float
    """The longest of its plans."""
    follower_cpu: float
    seconds: float
    moved: int
    unowned: float
    """Partition-seconds."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Where it stands in the table: of each kind there is one."""
        return CASES.index(self.case), ASSIGNORS.index(self.assignor), list(RULES).index(self.rules)


class Group:
    """A modelled group. Each case begins where the one before it ended."""

    def __init__(
        self, rules: str, assignor: str, size: tuple[int, int], *, static: bool = False, wire: Wire | None = None
    ) -> None:
        """`size`: members that are to come, and partitions; `wire`: unless told otherwise with ten members on it."""
        self.rules, self.assignor, self.static = rules, assignor, static
        self.size, partitions = size
        self._ticket = 0
        self.wire = wire or Wire(frozenset(place(self.size * number // SAMPLED) for number in range(SAMPLED)))
        timings = Timings()
        self.world = Simulation(
            Random(27), partitions, timings=timings, meter=self.wire,
            group=ConsumerGroup(TOPIC, TOPIC_ID, partitions, timings.session_timeout, ASSIGNMENT_INTERVAL)
            if assignor == "consumer"
            else ClassicGroup(f"{CLIENT}-1c0ffee0-0000-4000-8000", INITIAL_DELAY, 10**11),
        )  # fmt: skip

    def start(self, at: str) -> Host:
        """A member begins in that place."""
        self._ticket += 1
        assignor = None if self.assignor == "consumer" else self.assignor
        return RULES[self.rules](self.world, f"{at}.{self._ticket:06}", assignor, at if self.static else None)

    def settled(self) -> bool:
        """See the module."""
        group, owners = self.world.group, self.world.owners
        if owners.unowned or (isinstance(group, ClassicGroup) and group.state is not GroupState.STABLE):
            return False
        if isinstance(group, ConsumerGroup) and not group.reconciled:
            return False
        return all(host.member.state is State.STABLE for host in self.world.living)

    def settle(self) -> None:
        """Let time pass until it is; raises `AssertionError` if that takes too long."""
        until = self.world.now + _SETTLED_WITHIN
        while not self.settled():
            assert self.world.now < until, f"not settled after {_SETTLED_WITHIN:g} s"
            self.world.run(_STEP)
        self.world.owners.check_settled()

    def measure(self, case: str, what: Callable[[], None]) -> Row:
        """Do it, let the group settle, and tell what that cost."""
        world, owners = self.world, self.world.owners
        gc.collect()
        gc.freeze()  # else a plan's processor time is that of looking through a thousand members
        owners.count(world.now)
        self.wire.tally = tally = Tally()
        began, generations = world.now, world.group.rebalances
        moved, unowned = owners.moved, owners.unowned_seconds
        what()
        self.settle()
        owners.count(world.now)
        group = world.group
        return Row(
            case, self.rules, self.assignor, self.size, len(world.partitions),
            generations=group.rebalances - generations,
            messages={api.title: count for api, count in sorted(tally.messages.items())},
            sent=tally.sent.total(), received=tally.received.total(), largest_frame=tally.largest,
            group_record=group_record_bytes(group) if isinstance(group, ClassicGroup) else 0,
            frames=tally.real,
            leader_cpu=round(tally.leader_ns / 1e9, 4),
            plan_cpu=round(max(tally.plan_ns, default=0) / 1e9, 4),
            follower_cpu=round(tally.follower_ns.total() / max(1, len(tally.follower_ns)) / 1e9, 5),
            seconds=round(world.now - began, 2),
            moved=owners.moved - moved,
            unowned=round(owners.unowned_seconds - unowned, 1),
        )  # fmt: skip

    # -- cases ---------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """All members come within a second."""
        for number in range(self.size):
            self.world.after(number / self.size, partial(self.start, place(number)))
        self.world.run(1.0)

    def add(self, members: int) -> None:
        """So many more come at once."""
        for number in range(self.size, self.size + members):
            self.start(place(number))
        self.size += members

    def grow(self) -> None:
        """The topic has more partitions, and the leader learns of it."""
        self.world.grow(len(self.world.partitions) * GROWN // 100)

    def roll(self) -> None:
        """One member after the other is stopped and started anew; the next one when the group is settled."""
        for host in list(self.world.living):
            host.leave()
            while host.alive:
                self.world.run(_STEP)
            self.world.run(STARTING)
            self.start(place_of(host))
            self.settle()


def place(number: int) -> str:
    """What that member's place is called."""
    return f"member-{number:04}"


def run(rules: str, assignor: str, cases: Sequence[str], size: tuple[int, int] | None = None) -> Iterator[Row]:
    """These cases, in the order of `CASES`; `size` for other sizes than those of the page."""
    if large := [case for case in cases if case not in SIZES]:
        yield from _grown_up(Group(rules, assignor, size or LARGE), large)
    for case in (case for case in CASES if case in cases and case in SIZES):
        group = Group(rules, assignor, size or SIZES[case], static=case == "rolling-static")
        group.measure("join", group.join)
        group.world.run(QUIET)
        yield group.measure(case, group.roll)


def _grown_up(group: Group, cases: Sequence[str]) -> Iterator[Row]:
    steps: dict[str, Callable[[], None]] = {
        "join": group.join,
        "one": lambda: group.add(1),
        "ten": lambda: group.add(10),
        "grown": group.grow,
    }
    last = max(list(steps).index(case) for case in cases)
    for case, what in list(steps.items())[: last + 1]:
        row = group.measure(case, what)
        if case in cases:
            yield row
        group.world.run(QUIET)
