"""What each partition takes of its worker, measured in the ledgers between two looks.

Figures fade by half with every look, so that one long record or one pause does not pass for the rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kunicorn.group.loads import Load
from kunicorn.group.partitions import PartitionState
from kunicorn.pipes import clock
from kunicorn.supervisor.partition import Partition
from kunicorn.topics import NO_OFFSET, TopicPartition

_FADING = 0.5
_NOTHING = 0.001
_LONG = 1.0
"""Seconds: whose record is in hand for longer would drain for an unknown time, and stays."""


@dataclass(slots=True)
class Measured:
    """One partition so far. Seconds."""

    grant: int = 0
    busy_before: float = 0.0
    handled_before: int = 0
    busy: float = 0.0
    handled: float = 0.0
    time: float = 0.0

    def look(self, grant: int, busy: float, handled: int, elapsed: float) -> None:
        """Under this grant its records have taken `busy` in all by now; `elapsed` since the last look."""
        if grant != self.grant:
            self.grant, self.busy_before, self.handled_before = grant, 0.0, 0
        # A call that was long under way at the first look has taken no more of this time than there was.
        self.busy = self.busy * _FADING + min(max(0.0, busy - self.busy_before), elapsed)
        self.handled = self.handled * _FADING + handled - self.handled_before
        self.time = self.time * _FADING + elapsed
        self.busy_before, self.handled_before = busy, handled

    @property
    def rate(self) -> float:
        """Seconds in a second."""
        return self.busy / self.time if self.time else 0.0


class Measures:
    """Of all partitions of the member. Caller: the loop; nothing blocks."""

    def __init__(self, now: float, delayed: Collection[str] = ()) -> None:
        """`delayed`: topics whose lag is not to be caught up with, since records wait there until they are due."""
        self._looked_at = now
        self._elapsed = 0.0
        self._delayed = frozenset(delayed)
        self._measured: dict[TopicPartition, Measured] = {}

    def begin(self, table: Collection[TopicPartition], now: float) -> None:
        """A look begins; what has left is forgotten."""
        self._elapsed, self._looked_at = now - self._looked_at, now
        self._measured = {tp: self._measured.get(tp) or Measured() for tp in table}

    def look(self, partitions: Iterable[Partition], now: float) -> None:
        """Look at these in their ledgers."""
        for partition in partitions:
            if (measured := self._measured.get(partition.tp)) is not None:
                self._look(partition, measured, now)

    def loads(self, table: Mapping[TopicPartition, Partition], parked: Collection[int], now: float) -> list[Load]:
        """Of all that take something of a worker, by the last look and by what is known of the logs' ends. `parked`:
        grants of which a record waits."""
        costs, loads = _costs(self._measured), []
        for tp, partition in table.items():
            partition.demand = 0.0
            measured, worker = self._measured.get(tp), partition.worker
            lag = _lag(partition) if tp.topic not in self._delayed else None
            if measured is None or worker is None or not (measured.busy or lag):
                continue
            cost = _cost(measured, costs.get(tp.topic, 0.0))
            load = Load(tp, worker.number, measured.rate, lag, cost, _movable(partition, parked, now))
            partition.demand = load.demand
            loads.append(load)
        return loads

    @property
    def idle(self) -> bool:
        """Nobody has taken anything for some looks."""
        return all(measured.rate < _NOTHING for measured in self._measured.values())

    def _look(self, partition: Partition, measured: Measured, now: float) -> None:
        partition.look()
        worker, reading = partition.worker, partition.reading
        if worker is None or not reading.started:
            measured.look(0, 0.0, 0, self._elapsed)
            return
        busy = worker.ledger.busy_ns(partition.slot) / clock.NANOSECONDS
        if reading.in_hand != NO_OFFSET and not worker.ledger.marked:
            # A long call would count for nothing until it ends, and then for a whole interval or several.
            busy += max(0.0, now - reading.hand_since_ns / clock.NANOSECONDS)
        measured.look(partition.grant, busy, reading.handled, self._elapsed)


def _costs(measured: Mapping[TopicPartition, Measured]) -> dict[str, float]:
    """Of a record of each topic: what those that have none of their own go by."""
    busy: defaultdict[str, float] = defaultdict(float)
    handled: defaultdict[str, float] = defaultdict(float)
    for tp, each in measured.items():
        busy[tp.topic] += each.busy
        handled[tp.topic] += each.handled
    return {topic: busy[topic] / handled[topic] for topic in busy if handled[topic] >= 1.0}


def _cost(measured: Measured, usual: float) -> float:
    return measured.busy / measured.handled if measured.handled >= 1.0 else usual


def _lag(partition: Partition) -> int | None:
    if partition.log_end is None or partition.position is None:
        return None
    end = partition.log_end if partition.stop == NO_OFFSET else min(partition.log_end, partition.stop)
    return max(0, end - partition.position.offset)


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
