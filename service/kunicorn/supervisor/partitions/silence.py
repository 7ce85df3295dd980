"""Partitions of which a worker's client gives out nothing although the log goes on. They are fetched anew, and where
that does not help, by another client.

A Kafka client can lose a partition without a word: after a leader's change it may wait for ever for an answer that it
does not ask for again (confluentinc/librdkafka 4492, 2625). Nothing in the worker tells that from an empty topic; the
log's end, as the brokers tell it, does. Taking the partition from the client and giving it back begins a new fetch.

It can also lose all brokers: one that is shutting down may tell of none, and clients have been seen that look for none
from then on, until their process ends (confluentinc/librdkafka 5301). So the next time the worker is replaced, in
order.

`Silences` judges, and is pure: by looks and not by the clock, as after a freeze of this process everybody seems to have
been silent. `watch` looks, and has it done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

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
_LOOKS_ANEW = 2
"""The same for a topic that was created anew. librdkafka takes no leader's word whose epoch is below the highest it has
seen under that name, and the new topic's begin at 0: where the former one's leaders had changed, its partitions are
asked of brokers that do not lead them. A new fetch by the same client does not help, so that the worker is next."""
_HOLDS_UP = frozenset({"circuit_breaker", "rate_limit", "delivery"})
"""What other partitions may wait for, too, without a word: as `kunicorn_partitions_waiting` names it."""
_MOST_LOOKS = 90
"""Where another client has not helped either, the next one comes after twice as many looks, up to a quarter of an hour:
then it is the brokers who do not answer."""


@dataclass(frozen=True, slots=True)
class _Quiet:
    """A partition that stands still at `offset`."""

    offset: int
    looks: int = 0
    fetched_anew: int = 0
    """How many times, at this offset."""

    def patience(self, looks: int) -> int:
        return min(looks << max(0, self.fetched_anew - 1), _MOST_LOOKS)


@dataclass(frozen=True, slots=True)
class Silent:
    """What one look found."""

    fetch_anew: list[Partition] = field(default_factory=list)
    """By the same client."""
    lost: list[Partition] = field(default_factory=list)
    """A new fetch has not helped them: their workers are to be replaced."""


class Silences:
    """How long each partition has been silent. One look costs less than a microsecond a partition, and no ledger is
    read: positions are those of the last look at the logs' ends."""

    def __init__(self) -> None:
        self._quiet: dict[TopicPartition, _Quiet] = {}

    def look(
        self, partitions: Iterable[Partition], batch_ms: Callable[[str], int], created_anew: Callable[[str], bool]
    ) -> Silent:
        """The partitions of which something is to be done now. `batch_ms`: how long records of a topic may wait for a
        fuller batch, in milliseconds; `created_anew`: whether another topic had that name before.

        A look counts only where the partition's worker is idle but for what is known to wait: one that could begin a
        record, and has none to begin, was given none. At a busy one the partition's records may wait for their turn.
        """
        before, self._quiet, silent = self._quiet, {}, Silent()
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
            anew = created_anew(partition.tp.topic)
            beyond = quiet.looks - quiet.patience(_LOOKS_ANEW if anew else _LOOKS)
            if beyond >= 0 and beyond * INTERVAL * 1000 >= batch_ms(partition.tp.topic):
                (silent.lost if quiet.fetched_anew or anew else silent.fetch_anew).append(partition)
                quiet = _Quiet(quiet.offset, 0, quiet.fetched_anew + 1)
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
    assignment: Assignment,
    in_force: SettingsInForce,
    metrics: Metrics,
    is_steady: Callable[[], bool],
    replace: Callable[[WorkerProcess], Awaitable[None]],
) -> None:
    """Look every ten seconds, for ever. Caller: the service, as a task. `is_steady`: whether no partition is about to
    come or to go; `replace`: gives a worker a successor, which has a client of its own; it may take as long as a
    handler's `setup` does."""
    silences = Silences()
    while True:
        await asyncio.sleep(INTERVAL)
        # A look counts what it returns as fetched anew, and waits for longer the next time.
        if not is_steady():
            continue
        table = assignment.table
        silent = silences.look(table.values(), lambda topic: in_force.handling(topic).batch_ms, table.created_anew)
        metrics.count(catalogue.FETCHED_ANEW, len(silent.fetch_anew) + len(silent.lost))
        if silent.fetch_anew:
            log.warning(
                f"{len(silent.fetch_anew)} partitions are fetched anew: the brokers have records of them, and nothing "
                f"has come for a minute or more",
                partitions=_told(silent.fetch_anew),
            )
            assignment.distribution.fetch_anew(silent.fetch_anew)
        for worker in dict.fromkeys(each.worker for each in silent.lost):
            if worker is not None:
                log.warning(
                    f"{worker} is replaced: of some of its partitions nothing has come although they were fetched "
                    f"anew, or their topic was created anew. If it goes on, see whether their leaders answer",
                    partitions=_told(each for each in silent.lost if each.worker is worker),
                )
                await replace(worker)


def _told(partitions: Iterable[Partition]) -> str:
    return listed(f"{p.tp}@{p.position.offset if p.position is not None else '?'}" for p in partitions)
