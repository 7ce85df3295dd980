"""Partitions go from busy workers to idle ones, one at a time: `balance` decides, `Balancer` has it done.

`Measures` is what each partition takes of its worker, measured in the ledgers between two looks. Figures fade by half
with every look, so that one long record or one pause does not pass for the rule.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from kunicorn.group.protocol import Offsets
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.partitions import lag
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.balance import Limits, Load, Move, Past, next_move
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.process import WorkerProcess

_FADING = 0.5
_NOTHING = 0.001
_LONG = 1.0
"""Seconds: whose record is in hand for longer would drain for an unknown time, and stays."""


@dataclass(slots=True)
class Measured:
    """The measures of one partition so far, in seconds."""

    grant: int = 0
    busy_before: float = 0.0
    handled_before: int = 0
    busy: float = 0.0
    handled: float = 0.0
    time: float = 0.0

    def look(self, grant: int, busy: float, handled: int, elapsed: float) -> None:
        """Note that its records have taken `busy` under this grant so far; `elapsed`: since the last look."""
        if grant != self.grant:
            self.grant, self.busy_before, self.handled_before = grant, 0.0, 0
        # A call that was long under way at the first look has taken no more of this time than there was.
        self.busy = self.busy * _FADING + min(max(0.0, busy - self.busy_before), elapsed)
        self.handled = self.handled * _FADING + handled - self.handled_before
        self.time = self.time * _FADING + elapsed
        self.busy_before, self.handled_before = busy, handled

    @property
    def rate(self) -> float:
        """Seconds of handling in a second."""
        return self.busy / self.time if self.time else 0.0


class Measures:
    """The measures of all partitions. Runs on the loop; nothing blocks."""

    def __init__(self, now: float, delay_ms: Callable[[str], int] = lambda _: 0) -> None:
        """`delay_ms`: by topic. Lag is not to be caught up with where records wait until they are due."""
        self._looked_at = now
        self._elapsed = 0.0
        self._delay_ms = delay_ms
        self._measured: dict[TopicPartition, Measured] = {}

    def begin(self, table: Collection[TopicPartition], now: float) -> None:
        """Begin a look; partitions that have left are forgotten."""
        self._elapsed, self._looked_at = now - self._looked_at, now
        self._measured = {tp: self._measured.get(tp) or Measured() for tp in table}

    def look(self, partitions: Iterable[Partition], now: float) -> None:
        """Read the ledgers of these partitions."""
        for partition in partitions:
            if (measured := self._measured.get(partition.tp)) is not None:
                self._look(partition, measured, now)

    def loads(self, table: Mapping[TopicPartition, Partition], parked: Collection[int], now: float) -> list[Load]:
        """The loads of all partitions that take something of a worker, by the last look and the logs' ends. `parked`:
        grants of which a record waits."""
        costs, loads = _costs(self._measured), []
        for tp, partition in table.items():
            partition.measured(0.0)
            measured, worker = self._measured.get(tp), partition.worker
            lag = partition.lag if not self._delay_ms(tp.topic) else None
            if measured is None or worker is None or not (measured.busy or lag):
                continue
            cost = _cost(measured, costs.get(tp.topic, 0.0))
            load = Load(tp, worker.number, measured.rate, lag, cost, _movable(partition, parked, now))
            partition.measured(load.demand)
            loads.append(load)
        return loads

    @property
    def idle(self) -> bool:
        """Whether no partition has taken any time for some looks."""
        return all(measured.rate < _NOTHING for measured in self._measured.values())

    def _look(self, partition: Partition, measured: Measured, now: float) -> None:
        partition.read_ledger()
        worker, reading = partition.worker, partition.reading
        if worker is None or not reading.started:
            measured.look(0, 0.0, 0, self._elapsed)
            return
        busy = worker.ledger.busy_ns(partition.slot) / clock.NANOSECONDS
        if reading.in_hand != NO_OFFSET and not worker.ledger.marked(partition.slot):
            # A long call would count for nothing until it ends, and then for a whole interval or several.
            busy += max(0.0, now - reading.hand_since_ns / clock.NANOSECONDS)
        measured.look(partition.grant, busy, reading.handled, self._elapsed)


def _costs(measured: Mapping[TopicPartition, Measured]) -> dict[str, float]:
    """The cost of a record of each topic, for partitions that have no measure of their own."""
    busy: defaultdict[str, float] = defaultdict(float)
    handled: defaultdict[str, float] = defaultdict(float)
    for tp, each in measured.items():
        busy[tp.topic] += each.busy
        handled[tp.topic] += each.handled
    return {topic: busy[topic] / handled[topic] for topic in busy if handled[topic] >= 1.0}


def _cost(measured: Measured, usual: float) -> float:
    return measured.busy / measured.handled if measured.handled >= 1.0 else usual


def _movable(partition: Partition, parked: Collection[int], now: float) -> bool:
    reading = partition.reading
    long = reading.in_hand != NO_OFFSET and now - reading.hand_since_ns / clock.NANOSECONDS > _LONG
    position = partition.position.offset if partition.position is not None else NO_OFFSET
    return (
        partition.state is PartitionState.RUNNING
        and not partition.lost
        and not long
        and not partition.blame.weighs_on(position)
        and partition.grant not in parked
    )


def settled(partitions: Iterable[Partition]) -> bool:
    """Whether none of them is between two workers, or on its way in or out."""
    return all(partition.state in _SETTLED for partition in partitions)


# What is released stays in the table for as long as its group's rebalance lasts, or with [assign] for good.
_SETTLED = frozenset({PartitionState.RUNNING, PartitionState.PAUSED, PartitionState.HALTED, PartitionState.RELEASED})


log = logs.get("kunicorn.sharing")

_LOOKS = 2
"""In an interval."""
_SECONDS_EACH = 0.002
"""Between two looks for each partition, at least: a look at one takes ten microseconds, so that with thousands of
partitions it is half a per cent of a CPU all the same."""
_AT_ONCE = 500
"""Partitions between two turns of the loop."""


class Balancer:
    """Moves partitions from busy workers to idle ones, by what the ledgers say."""

    def __init__(
        self, assignment: Assignment, offsets: Offsets, in_force: SettingsInForce, steady: Callable[[], bool]
    ) -> None:
        """`steady`: whether no partition is about to come or to go."""
        self._assignment = assignment
        self._pool = assignment.pool
        self._offsets = offsets
        self._in_force = in_force
        self._steady = steady
        self._measures = Measures(clock.now(), in_force.delay_ms)
        self._past = Past()
        self._handled = 0

    async def watch(self) -> None:
        """Measure, and move what pays, for ever. Caller: the service, as a task."""
        while True:
            partitions = len(self._assignment.table)
            await asyncio.sleep(max(self._limits.interval / _LOOKS, _SECONDS_EACH * partitions))
            await self.look(clock.now())

    async def look(self, now: float) -> None:
        """One look at all partitions (microseconds for each), and at most one move.

        Where one seems to pay, the ends of the logs are asked for first: they are known to ten seconds otherwise, in
        which a partition may have been caught up with, or another one may have become the hot one.
        """
        if self._in_force.workers.sharing == "count":
            self._assignment.distribution.share_by_count(self._pool)
        if not self._worked() and self._measures.idle:
            self._measures.begin(self._assignment.table, now)
            return
        await self._measure(now)
        if self._best(now) is None:
            return
        await lag.refresh_ends(self._offsets, self._assignment, self._assignment.table)
        move = self._best(now)
        if move is None:
            return
        self._past = self._past.with_move(move.tp, now, self._limits)
        log.info(
            str(move),
            topic=move.tp.topic,
            partition=move.tp.partition,
            reason=move.reason.value,
            load=round(move.demand, 3),
            load_of_giver=round(move.of_giver, 3),
            load_of_receiver=round(move.of_receiver, 3),
        )
        self._assignment.distribution.move(move)

    async def _measure(self, now: float) -> None:
        table = self._assignment.table
        self._measures.begin(table, now)
        partitions = list(table.values())
        for first in range(0, len(partitions), _AT_ONCE):
            self._measures.look(partitions[first : first + _AT_ONCE], now)
            await asyncio.sleep(0)

    def _worked(self) -> bool:
        """Whether workers have told of any work since the last look; an idle service is not to be looked through."""
        processes = self._pool.processes()
        before, self._handled = self._handled, sum(process.handled for process in processes)
        in_hand = any(process.pong is not None and process.pong.in_hand is not None for process in processes)
        return in_hand or self._handled != before

    @property
    def _limits(self) -> Limits:
        return Limits(
            self._in_force.workers.sharing_interval_ms / 1000, self._in_force.workers.sharing_gap_percent / 100
        )

    def _best(self, now: float) -> Move | None:
        """The move that pays most now, if any does; also notes each partition's demand."""
        processes = self._pool.processes()
        loads = self._measures.loads(self._assignment.table, _parked(processes), now)
        if self._in_force.workers.sharing != "load" or not self._quiet(processes):
            return None
        return next_move(loads, self._pool.expected(), now, self._past, self._limits)

    def _quiet(self, processes: list[WorkerProcess]) -> bool:
        """Whether neither a rebalance nor a replacement of workers is under way, with which a move would interfere."""
        pool = self._pool
        return (
            not pool.stopping
            and self._steady()
            and all(process.takes_partitions for process in processes)
            and all(process.pong is not None and not process.pong.paused_by_lease for process in processes)
            and not any(slot.backing_off or slot.successor or slot.predecessor for slot in pool.slots)
            and len(processes) >= len(pool.expected())
            and settled(self._assignment.table.values())
        )


def _parked(processes: list[WorkerProcess]) -> set[int]:
    """Grants of which a record waits for its next try, or for its delivery, as far as workers tell."""
    return {parked.grant for process in processes if process.pong is not None for parked in process.pong.parked}
