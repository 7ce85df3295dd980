"""What a worker's death means for the partitions it held, and for the records it had in hand.

Which records are to blame, `suspects` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kunicorn.group.partitions import PartitionEvent, PartitionState
from kunicorn.observe import logs
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.suspects import Offsets, Poison, blamed
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import NO_OFFSET, Position, TopicPartition

log = logs.get("kunicorn.fetchers")

_GOING_ON = frozenset({PartitionState.STARTING, PartitionState.RESOLVING})


@dataclass(frozen=True, slots=True)
class TopicHandling:
    """How the records of a topic are handled, as far as it matters here."""

    poison_halts: bool = True
    batches: bool = False
    timeout_ms: int | None = None


class Deaths:
    """Caller: `Fetchers`, on the loop, once a worker's ledger is final."""

    def __init__(
        self,
        max_crashes: int,
        handling: Callable[[str], TopicHandling],
        halt: Callable[[TopicPartition, str], None],
    ) -> None:
        """After `max_crashes` deaths with the same record, and no other, in hand or on its way its partition halts;
        unless `poison_halts`, the next worker is told to keep it from the handler. `handling` is by topic."""
        self.max_crashes = max_crashes
        self._handling = handling
        self._halt = halt

    def meet(
        self,
        worker: WorkerProcess,
        held: Collection[Partition],
        how: str,
        *,
        unsure: bool,
        end: Callable[[Partition, Position | None], None],
    ) -> bool:
        """Take these back from the dead worker by `end`, and hold what it had in hand, or handled and not delivered, to
        account for it. Returns whether there was something, or anything had been handled.

        `unsure`: its last transaction may be committed or not, only the brokers know.
        """
        for partition in held:
            partition.look()
        had = {partition: partition.held(batches=self._handling(partition.tp.topic).batches) for partition in held}
        anything = any(each.every for each in had.values()) or any(partition.reading.handled > 0 for partition in held)
        killed = worker.killed_by_us is not None
        against = {p: blamed(each, killed_for=p.tp in worker.blamed, killed=killed) for p, each in had.items()}
        alone = sum(map(len, against.values())) == 1
        for partition, offsets in against.items():
            returned = partition.reading.in_hand == NO_OFFSET
            end(partition, None)
            if unsure:
                partition.position = None
            partition.meet(PartitionEvent.LET_GO_UNSURE if unsure else PartitionEvent.LET_GO, "its worker died")
            if offsets and alone:
                self._name(partition, next(iter(offsets)), how, exact=worker.ledger.marked, returned=returned)
            elif offsets:
                self._share(partition, offsets)
        return anything

    def _name(self, partition: Partition, offset: int, how: str, *, exact: bool, returned: bool) -> None:
        deaths = partition.blame.name(offset, exact=exact)
        if deaths >= self.max_crashes and partition.state in _GOING_ON:
            self._meet_poison(partition, Poison(offset, deaths, how, exact, returned))

    def _share(self, partition: Partition, offsets: Offsets) -> None:
        if partition.blame.share(offsets, self.max_crashes):
            log.warning(
                f"{partition.tp}: {self.max_crashes} workers died with offset {min(offsets)} and others in hand, or "
                f"not delivered: each is handled with nothing beside it now, until one is to blame or all are done"
            )

    def _meet_poison(self, partition: Partition, poison: Poison) -> None:
        if self._handling(partition.tp.topic).poison_halts:
            self._halt(partition.tp, str(poison))
        elif poison.deaths >= 2 * self.max_crashes:
            # It never came to the handler again: what stands for it in the dead-letter topic cannot be sent, either.
            self._halt(partition.tp, f"{poison}, and so does what ends it without the handler")
        else:
            partition.blame.poison = poison
            log.warning(f"{partition.tp}: {poison}: it is kept from the handler")
