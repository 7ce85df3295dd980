"""What a person can ask the running service to do. Implements `observe.actions.Actions`; all on the loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.observe import logs
from kunicorn.observe.requests import Done, Goal
from kunicorn.settings.assign import partitions_named
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions.assignment import Fetchers
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.pool import Pool
from kunicorn.supervisor.workers.rolling import ReplacementFailed, Replacer

log = logs.get("kunicorn.actions")

_PAUSABLE = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
_RESUMABLE = frozenset({PartitionState.PAUSED, PartitionState.HALTED})
_SHOWN = 5


class Actions:
    """Pauses are this member's own: a partition that leaves it, or a restart, ends them."""

    def __init__(
        self, fetchers: Fetchers, pool: Pool, replacer: Replacer, seeker: Seeker, drain: Callable[[], bool]
    ) -> None:
        """`drain` begins what SIGTERM begins; false if that has begun already."""
        self._fetchers = fetchers
        self._pool = pool
        self._replacer = replacer
        self._seeker = seeker
        self._drain = drain
        self._recycling: set[asyncio.Task[None]] = set()

    def pause(self, partitions: Sequence[str]) -> Done:
        """See `Actions`. A worker that has a record of it in hand finishes that."""
        return self._each(partitions, _PAUSABLE, self._pause, "paused")

    def resume(self, partitions: Sequence[str]) -> Done:
        """See `Actions`. A record that has halted its partition gets as many tries as a new one."""
        done = self._each(partitions, _RESUMABLE, self._resume, "resumed")
        if done.ok:
            self._fetchers.distribute()
        return done

    def recycle(self, worker: int | None) -> Done:
        """See `Actions`. Returns before the successor is there."""
        place = next((p for p in self._pool.places if p.number == worker), None)
        if place is None:
            there_are = ", ".join(str(p.number) for p in self._pool.places)
            return Done(ok=False, said=f"there is no worker {worker}; there are {there_are}")
        if place.process is None or place.successor is not None or place.predecessor is not None:
            return Done(ok=False, said=f"worker {worker} has no process now, or is being replaced already")

        async def replace() -> None:
            try:
                await self._replacer.replace(place, "recycled: asked for by a person", "request")
            except ReplacementFailed as error:
                log.error(f"{place.process} goes on although it was to be recycled: {error}")

        task = asyncio.ensure_future(replace())
        self._recycling.add(task)
        task.add_done_callback(self._recycling.discard)
        return Done(
            ok=True, said=f"worker {worker} (pid {place.process.pid}) hands over as soon as its successor is ready"
        )

    async def seek(self, partitions: Sequence[str], goal: Goal, *, execute: bool) -> Done:
        """See `Actions`. A halted partition goes on from there, and one that is paused stays so."""
        try:
            meant = self._meant(partitions)
        except ValueError as error:
            return Done(ok=False, said=str(error))
        return await self._seeker.seek(meant, goal, execute=execute)

    def drain(self) -> Done:
        """See `Actions`."""
        if not self._drain():
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
        listed = ", ".join(str(partition.tp) for partition in able[:_SHOWN]) + (" …" if len(able) > _SHOWN else "")
        left = f"; {len(meant) - len(able)} are not, being {', '.join(others)}" if len(able) < len(meant) else ""
        return Done(ok=bool(able), said=f"{len(able)} partitions {word}{': ' if able else ''}{listed}{left}")

    def _meant(self, named: Sequence[str]) -> list[Partition]:
        """Raises `ValueError` for a name that means nothing here."""
        table = self._fetchers.table
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
            partition.look()
            partition.meet(PartitionEvent.PAUSE, "paused by a person")
        self._fetchers.drain(partitions)

    def _resume(self, partitions: Collection[Partition]) -> None:
        self._fetchers.resume(partitions, "resumed by a person")
