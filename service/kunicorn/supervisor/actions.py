"""The actions of HTTP and of `kunicorn` commands on the running service: pause, resume, recycle, reload, seek,
drain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.observe.requests import Done, Goal
from kunicorn.settings.assign import partitions_named
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workforce import Workforce
from kunicorn.text import listed

_PAUSABLE = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
_RESUMABLE = frozenset({PartitionState.PAUSED, PartitionState.HALTED})
_SHOWN = 5


class Life(Protocol):
    """What of the service's own life is asked for, or looked at."""

    def drain(self) -> bool:
        """Begin what SIGTERM begins; false if that has begun already."""

    def why_no_reload(self) -> str:
        """Why nothing can be reloaded now, as "stops"; empty where it can."""


class Actions:
    """Implements `observe.actions.Actions`; runs on the loop. A pause is this member's own: it ends when the partition
    leaves the member, or the service restarts."""

    def __init__(
        self, assignment: Assignment, workforce: Workforce, seeker: Seeker, tasks: ServiceTasks, life: Life
    ) -> None:
        self._assignment = assignment
        self._workforce = workforce
        self._seeker = seeker
        self._tasks = tasks
        self._life = life

    def pause(self, partitions: Sequence[str]) -> Done:
        """See `Actions`. A worker that has a record of it in hand finishes that."""
        return self._each(partitions, _PAUSABLE, self._pause, "paused")

    def resume(self, partitions: Sequence[str]) -> Done:
        """See `Actions`. A record that has halted its partition gets as many tries as a new one."""
        done = self._each(partitions, _RESUMABLE, self._resume, "resumed")
        if done.ok:
            self._assignment.distribute()
        return done

    def recycle(self, worker: int | None) -> Done:
        """See `Actions`. Returns before the successor is there."""
        slots = self._assignment.pool.slots
        slot = next((slot for slot in slots if slot.number == worker), None)
        if slot is None:
            there_are = ", ".join(str(slot.number) for slot in slots)
            return Done(ok=False, said=f"there is no worker {worker}; there are {there_are}")
        if slot.process is None or slot.successor is not None or slot.predecessor is not None:
            return Done(ok=False, said=f"worker {worker} has no process now, or is being replaced already")

        self._tasks.start(self._workforce.recycler.recycle(slot, "asked for by a person", "request"))
        return Done(
            ok=True, said=f"worker {worker} (pid {slot.process.pid}) hands over as soon as its successor is ready"
        )

    async def seek(self, partitions: Sequence[str], goal: Goal, *, execute: bool) -> Done:
        """See `Actions`. A halted partition goes on from there, and one that is paused stays so."""
        try:
            meant = self._meant(partitions)
        except ValueError as error:
            return Done(ok=False, said=str(error))
        return await self._seeker.seek(meant, goal, execute=execute)

    async def reload(self) -> Done:
        """See `Actions`. What is asked for while one runs is a second one, which this waits for."""
        if why := self._life.why_no_reload():
            return Done(ok=False, said=f"no reload: the service {why}")
        outcome = await self._workforce.reloader.outcome()
        kept = f"; these take effect with the next start only: {', '.join(outcome.kept)}" if outcome.kept else ""
        return Done(ok=outcome.completed, said=f"{outcome.result}: {outcome.message}{kept}")

    def drain(self) -> Done:
        """See `Actions`."""
        if not self._life.drain():
            return Done(ok=False, said="the service is stopping already")
        return Done(ok=True, said="the service drains, commits and exits; whoever started it may start it again")

    def _each(
        self,
        named: Sequence[str],
        states: Collection[PartitionState],
        act: Callable[[list[Partition]], None],
        word: str,
    ) -> Done:
        try:
            meant = self._meant(named)
        except ValueError as error:
            return Done(ok=False, said=str(error))
        able = [partition for partition in meant if partition.state in states]
        others = sorted({partition.state.value for partition in meant if partition.state not in states})
        act(able)
        told = listed((partition.tp for partition in able), _SHOWN, ", ")
        left = f"; {len(meant) - len(able)} are not, being {', '.join(others)}" if len(able) < len(meant) else ""
        return Done(ok=bool(able), said=f"{len(able)} partitions {word}{': ' if able else ''}{told}{left}")

    def _meant(self, named: Sequence[str]) -> list[Partition]:
        """The partitions of that name. Raises `ValueError` where none of them is assigned to this member."""
        table = self._assignment.table
        if not named:
            return list(table.values())
        # Each partition may be named by itself, and there are thousands.
        by_topic: dict[str, dict[int, Partition]] = defaultdict(dict)
        for tp, partition in table.items():
            by_topic[tp.topic][tp.partition] = partition
        found: dict[Partition, None] = {}
        for item in named:
            topic, numbers = partitions_named(item)
            ours = by_topic.get(topic, {})
            sought = ours if numbers is None or len(numbers) > len(ours) else numbers
            meant = [ours[n] for n in sought if n in ours and (numbers is None or n in numbers)]
            if not meant:
                raise ValueError(f"{item!r} is not assigned to this member")
            found |= dict.fromkeys(meant)
        return list(found)

    def _pause(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            partition.read_ledger()
            partition.advance(PartitionEvent.PAUSE, "paused by a person")
        self._assignment.drain(partitions)

    def _resume(self, partitions: Collection[Partition]) -> None:
        self._assignment.resume(partitions, "resumed by a person")
