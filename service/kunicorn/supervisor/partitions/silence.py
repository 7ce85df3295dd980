"""Partitions of which a worker's client gives out nothing although the log goes on. They are fetched anew.

A Kafka client can lose a partition without a word: after a leader's change it may wait for ever for an answer that it
does not ask for again (confluentinc/librdkafka 4492, 2625). Nothing in the worker tells that from an empty topic; the
log's end, as the brokers tell it, does. Taking the partition from the client and giving it back begins a new fetch.

`Silences` judges, and is pure: by looks and not by the clock, as after a freeze of this process everybody seems to have
been silent. `watch` looks, and has it done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kunicorn.group.states import PartitionState
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.lag import INTERVAL
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.process import WorkerProcess
from kunicorn.text import listed

log = logs.get("kunicorn.fetchers")

_LOOKS = 6
"""So many looks in a row, a minute, at which nothing came though there was something to fetch."""
_HOLDS_UP = frozenset({"circuit_breaker", "rate_limit", "delivery"})
"""What other partitions may wait for, too, without a word: as `kunicorn_partitions_waiting` names it."""
_MOST_LOOKS = 90
"""Where a new fetch has not helped, the next one comes after twice as many looks, up to a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A partition that stands still at `offset`."""

    offset: int
    looks: int = 0
    fetched_anew: int = 0
    """How many times, at this offset."""

    @property
    def patience(self) -> int:
        return min(_LOOKS << self.fetched_anew, _MOST_LOOKS)


class Silences:
    """How long each partition has been silent. One look costs less than a microsecond a partition, and no ledger is
    read: positions are those of the last look at the logs' ends."""

    def __init__(self) -> None:
        self._quiet: dict[TopicPartition, _Quiet] = {}

    def look(self, partitions: Iterable[Partition], batch_ms: Callable[[str], int]) -> list[Partition]:
        """The partitions that are to be fetched anew now. `batch_ms`: how long records of a topic may wait for a fuller
        batch, in milliseconds.

        A look counts only where the partition's worker is idle but for what is known to wait: one that could begin a
        record, and has none to begin, was given none. At a busy one the partition's records may wait for their turn.
        """
        before, self._quiet, silent = self._quiet, {}, []
        waiting: dict[WorkerProcess, frozenset[int] | None] = {}
        for partition in partitions:
            worker, position = partition.worker, partition.position
            if worker is None or position is None or not _has_more(partition):
                continue
            quiet = before.get(partition.tp)
            if quiet is None or quiet.offset != position.offset:
                quiet = _Quiet(position.offset)
            if worker not in waiting:
                waiting[worker] = _waiting(worker)
            known = waiting[worker]
            if known is not None and partition.grant not in known:
                quiet = _Quiet(quiet.offset, quiet.looks + 1, quiet.fetched_anew)
            beyond = quiet.looks - quiet.patience
            if beyond >= 0 and beyond * INTERVAL * 1000 >= batch_ms(partition.tp.topic):
                quiet = _Quiet(quiet.offset, 0, quiet.fetched_anew + 1)
                silent.append(partition)
            self._quiet[partition.tp] = quiet
        return silent


def _has_more(partition: Partition) -> bool:
    """Whether a record could come of it, as far as the brokers have told."""
    running = partition.state is PartitionState.RUNNING and not partition.lost
    return running and bool(partition.lag) and partition.reading.in_hand == NO_OFFSET


def _waiting(worker: WorkerProcess) -> frozenset[int] | None:
    """Grants whose records wait for a try or for their time, if the worker could begin one of another grant now, and
    had none to begin when it last told; else None, as where not all that waits is told."""
    pong = worker.pong
    if (
        pong is None
        or not worker.takes_partitions
        or worker.unanswered
        or pong.paused_by_lease
        or pong.in_hand is not None
        or pong.in_flight
        or not _HOLDS_UP.isdisjoint(pong.parked_count)
        or len(pong.parked) < sum(pong.parked_count.values())
    ):
        return None
    return frozenset(each.grant for each in pong.parked)


async def watch(
    assignment: Assignment, in_force: SettingsInForce, metrics: Metrics, is_steady: Callable[[], bool]
) -> None:
    """Look every ten seconds, for ever. Caller: the service, as a task. `is_steady`: whether no partition is about to
    come or to go."""
    silences = Silences()
    while True:
        await asyncio.sleep(INTERVAL)
        # A look counts what it returns as fetched anew, and waits for longer the next time.
        if not is_steady():
            continue
        silent = silences.look(assignment.table.values(), lambda topic: in_force.handling(topic).batch_ms)
        if not silent:
            continue
        metrics.count(catalogue.FETCHED_ANEW, len(silent))
        log.warning(
            f"{len(silent)} partitions are fetched anew: the brokers have records of them, and nothing has come for "
            f"a minute or more; if it goes on, see whether their leaders answer, and kunicorn recycle the worker",
            partitions=listed(f"{p.tp}@{p.position.offset if p.position is not None else '?'}" for p in silent),
        )
        assignment.distribution.fetch_anew(silent)
