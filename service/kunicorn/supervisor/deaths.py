"""What a worker's death means for the partitions it held, and for the records it had in hand.

Which records are to blame, `suspects` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kunicorn.group.partitions import PartitionEvent, PartitionState
from kunicorn.observe import logs
from kunicorn.supervisor.partition import Partition, Poison
from kunicorn.supervisor.suspects import blamed, convicted
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import Position, TopicPartition

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
        """After `max_crashes` deaths with the same record (of batches: the same first record) in hand its partition
        halts; unless `poison_halts`, the next worker is told to keep it from the handler. `handling` is by topic."""
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
        """Take these back from the dead worker by `end`, and hold what was in hand to account for it. Returns whether
        something was in hand, or had been handled.

        `unsure`: its last transaction may be committed or not, only the brokers know.
        """
        for partition in held:
            partition.look()
        in_hands = {partition.tp: partition.in_hands() for partition in held}
        alone = sum(map(len, in_hands.values())) == 1
        anything = any(in_hands.values()) or any(partition.reading.handled > 0 for partition in held)
        for partition in held:
            reading, marked = partition.reading, worker.ledger.marked
            end(partition, None)
            if unsure:
                partition.position = None
            partition.meet(PartitionEvent.LET_GO_UNSURE if unsure else PartitionEvent.LET_GO, "its worker died")
            killed, killed_for = worker.killed_by_us is not None, worker.blamed == partition.tp
            offsets = blamed(in_hands[partition.tp], reading.in_hand, killed_for=killed_for, killed=killed)
            partition.deaths.update(offsets)
            worst = list(convicted(partition.deaths, offsets, self.max_crashes))
            if partition.state not in _GOING_ON or not worst:
                continue
            if alone or killed:
                count = reading.hand_count if self._handling(partition.tp.topic).batches else 1
                self._meet_poison(partition, Poison(worst[0], count, partition.deaths[worst[0]], how, exact=marked))
            else:
                self._suspect(partition, worst)
        return anything

    def _suspect(self, partition: Partition, offsets: Collection[int]) -> None:
        partition.suspects |= frozenset(offsets)
        log.warning(
            f"{partition.tp}: {len(offsets)} records were in hand when {self.max_crashes} workers died, with others: "
            f"each is handled with nothing beside it now, from offset {min(offsets)} on"
        )

    def _meet_poison(self, partition: Partition, poison: Poison) -> None:
        if self._handling(partition.tp.topic).poison_halts:
            self._halt(partition.tp, str(poison))
            return
        partition.poison = poison
        log.warning(f"{partition.tp}: {poison}: it is kept from the handler, or searched for in its batch")
