"""Where our partitions come from: the group assigns them, or the settings name them (`AssignmentSource`). And how they
get their start offsets: `StartLookup` goes on until every partition has one, was halted, or has left us again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from kunicorn.backoff import Backoff, Retries
from kunicorn.errors import PeerError
from kunicorn.group.protocol import Offsets
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.observe.status import AssignStatus, CommitStatus, GroupStatus
from kunicorn.positions import NO_OFFSET, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.start_offsets import Starts, begin, check, in_stretches, recover
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.partitions.table import Unstarted
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.text import listed


@dataclass(frozen=True, slots=True)
class StopMessages:
    """Log lines and reasons of a red /readyz about the service's end."""

    leaving: str
    """What a stop means, as log line and as the reason of a red /readyz."""
    clean: str
    unclean: str
    overdue: str


class AssignmentSource(Protocol):
    """Where partitions come from: a group, or [assign]. Runs on the loop; nothing blocks."""

    @property
    def stop_messages(self) -> StopMessages:
        """How log lines and `/readyz` tell of the end."""

    @property
    def commits(self) -> OffsetCommitter | None:
        """The committer; None where no offsets are kept."""

    @property
    def goes_by_ids(self) -> bool:
        """Whether a partition whose topic was created anew is entered again, for the topic that has its name."""

    @property
    def requested(self) -> asyncio.Event:
        """Set once the first partitions are asked for: JoinGroup is on its way, or there is no group to join."""

    @property
    def steady(self) -> bool:
        """Whether no partition is about to be assigned or revoked, as far as is known."""

    @property
    def over(self) -> bool:
        """Whether `run` has returned: nothing is in hand any more."""

    @property
    def unfinished(self) -> int:
        """Partitions that do not end as they should: exit code `NOT_ALL_COMMITTED`."""

    @property
    def through(self) -> bool:
        """Whether `run` ends as nothing is left to do; false where it was told to leave before."""

    async def run(self) -> None:
        """Have partitions fetched until `leave` is through, or there is nothing left to do.

        Raises `ConfigError` for partitions that cannot be had.
        """

    def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks that have to run beside `run`."""

    def leave(self, reason: str) -> None:
        """Begin to drain and commit everything; returns at once."""

    def stop_at_once(self) -> None:
        """Stop at once: records in hand end with their worker, and count as unfinished."""

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        """The start offsets of partitions. Raises `PeerError`."""

    def group(self, now: float) -> GroupStatus | None:
        """The membership as `/status` shows it; None without a group."""

    def assign(self) -> AssignStatus | None:
        """The progress of [assign] as `/status` shows it; None with a group."""


def commit_status(commits: OffsetCommitter | None, now: float) -> CommitStatus | None:
    """The committer as `/status` shows it."""
    if commits is None:
        return None
    age = None if commits.last_ok_at is None else now - commits.last_ok_at
    return CommitStatus(last_age=age, last_result=commits.last_result, pending=commits.pending)


log = logs.get("kunicorn.starts")

_T = TypeVar("_T")
_Asked = dict[Partition, int]
"""Those of one look-up, and how many starts each had been given when it began."""

_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=2.0, jitter=0.0)
_TOLD_AFTER, _TOLD_EVERY = 10.0, 60.0


class Patience:
    """Seconds that the brokers may leave an offset open before the log says so (`_TOLD_AFTER`: an election takes less),
    and between two such lines."""

    def __init__(self) -> None:
        self._tell_at = clock.now() + _TOLD_AFTER

    @property
    def is_over(self) -> bool:
        return clock.now() >= self._tell_at

    def told(self) -> None:
        """Begin anew: the log has said it."""
        self._tell_at = clock.now() + _TOLD_EVERY


def new_topics(gone: Collection[TopicPartition]) -> str:
    """For the log: these partitions are entered again, for the topic that has their topic's name now."""
    return (
        f"{len(gone)} partitions belong to a topic that was deleted and created anew: what was consumed of the old one "
        f"is dropped, the new one is consumed from its beginning"
    )


_COMMIT_PATIENCE = 1.0
"""Seconds that partitions without a start wait for the commits of those that have one, before both are tried again."""


class StartLookup:
    """Looks up start offsets, one task for each set of partitions. A rebalance in between loses none of them: the task
    goes on with the partitions that are still ours."""

    def __init__(
        self,
        settings: Settings,
        source: AssignmentSource,
        offsets: Offsets,
        assignment: Assignment,
        tasks: ServiceTasks,
    ) -> None:
        self._source = source
        self._offsets = offsets
        self._assignment = assignment
        self._policy = settings.group.auto_offset_reset
        """For positions that the log does not hold any more; not for topics that begin at their beginning."""
        self._from_earliest = settings.retry_topics.keys()
        self._tasks = tasks
        self._under_way: set[asyncio.Task[None]] = set()
        self._refused = WeakKeyDictionary[Partition, Position]()
        """Starts that were chosen, of partitions that have not begun, and that this user may not commit yet."""
        self._stopped = False

    async def run(self, without_start: Unstarted) -> None:
        """Look up the start offsets of partitions from that queue, until `stop`."""
        while True:
            partitions = await without_start.get()
            if self._stopped:
                return
            for alike in _alike(partitions):
                task = self._tasks.start(self._find_starts(alike))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    def stop(self) -> None:
        """Cancel the look-ups under way, and begin none any more."""
        self._stopped = True
        for task in self._under_way:
            task.cancel()

    async def _find_starts(self, partitions: _Asked) -> None:
        retries, patience = Retries(_BACKOFF), Patience()
        kept = {p.tp: self._refused.pop(p, None) for p in partitions if p.position is None}
        chosen = {tp: start for tp, start in kept.items() if start is not None}
        """Kept until they are committed: the log's end of a later time would skip what was written since."""
        while left := {p: number for p, number in partitions.items() if self._waits(p, number)}:
            asked = {p: number for p, number in left.items() if p.tp not in chosen}
            try:
                starts = await self._look_up(asked) if asked else Starts()
            except PeerError as error:
                starts = Starts(waiting={p.tp: str(error) for p in asked})
            stored = {tp for tp in starts.open if self._assignment.table.handler_keeps_offsets(tp.topic)}
            self._assignment.resolved(dict.fromkeys(stored, Position(NO_OFFSET)), {})
            self._assignment.found_truncated(self._of_those_waiting(dict.fromkeys(starts.truncated), left))
            await self._halt(starts.refused | starts.open, left)
            denied = self._of_those_waiting(starts.denied, left)
            self._assignment.deny({p: denied[p.tp] for p in left if p.tp in denied})
            self._assignment.resolved(starts.given, {})
            self._assignment.resolved(starts.committed, {tp: start.offset for tp, start in starts.committed.items()})
            chosen |= starts.chosen
            loud = patience.is_over
            told = self._note_waiting(starts.waiting, left, loud=loud)
            uncommitted = await self._choose(chosen, left)
            if self._note_waiting(uncommitted, left, loud=loud) or told:
                patience.told()
            if any(self._waits(p, number) for p, number in partitions.items()):
                await asyncio.sleep(retries.failed())

    def _note_waiting(self, reasons: Mapping[TopicPartition, str], left: _Asked, *, loud: bool) -> bool:
        """Show at the partitions, and in the log, what their start offsets wait for; whether that was `loud`: above
        level info, as it lasts."""
        waiting = self._of_those_waiting(reasons, left)
        by_reason: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition in left:
            if (reason := waiting.get(partition.tp)) is not None:
                partition.wait_for_start(reason)
                by_reason[reason].append(partition.tp)
        tell = log.warning if loud else log.info
        for reason, tps in by_reason.items():
            tell(f"{len(tps)} partitions wait for their start offset: {reason}", partitions=listed(sorted(tps)))
        return loud and bool(by_reason)

    async def _halt(self, reasons: Mapping[TopicPartition, str], left: _Asked) -> None:
        asked = {p.tp: p for p in left}
        async for tp, reason in in_stretches(reasons.items()):
            if tp in asked and self._waits(asked[tp], left[asked[tp]]):
                self._assignment.halt(tp, reason)

    async def _choose(self, chosen: dict[TopicPartition, Position], left: _Asked) -> Mapping[TopicPartition, str]:
        """Commit the start offsets that were chosen, and hand each partition out when its own is committed: one that is
        refused holds up no other. One that this user may not commit is halted until that is granted, and begins there
        then: handed out meanwhile, it would begin at a start that no other member finds. Returns what the others wait
        for."""
        commits, waiting = self._source.commits, {p.tp: p for p in left}
        ours = self._of_those_waiting(chosen, left)

        def settled(committed: Collection[TopicPartition], denied: Mapping[TopicPartition, str]) -> None:
            started = self._of_those_waiting({tp: ours[tp] for tp in committed}, left)
            self._assignment.resolved(started, {tp: start.offset for tp, start in started.items()})
            reasons = {waiting[tp]: reason for tp, reason in self._of_those_waiting(denied, left).items()}
            self._refused.update({each: ours[each.tp] for each in reasons if each.position is None})
            self._assignment.deny(reasons)

        if commits is None:
            self._assignment.resolved(ours, {})
            return {}
        deadline = clock.now() + _COMMIT_PATIENCE
        uncommitted = await commits.commit_starts(
            ours, lambda tp: self._waits(waiting[tp], left[waiting[tp]]), deadline, settled
        )
        return {tp: f"its start offset is not committed yet: {why}" for tp, why in uncommitted.items()}

    async def _look_up(self, left: _Asked) -> Starts:
        if unknown := [p for p in left if p.topic_id is None]:
            # Before: what is committed under a name may say of which topic it is.
            await self._offsets.confirm_ids({p.tp.topic for p in unknown})
            self._assignment.table.learn_topics(unknown)
        held = {p.tp: at for p in left if (at := p.reached()) is not None}
        lost = {p.tp: held[p.tp] for p in left if p.tp in held and p.beside_the_log}
        fresh = [p.tp for p in left if p.fresh and p.position is None]
        if fresh:
            starts = await begin(self._offsets, fresh)
        elif lost:
            starts = await recover(self._offsets, lost, self._policy, self._from_earliest)
        elif held:
            starts = await check(self._offsets, held, self._policy, self._from_earliest)
        else:
            starts = await self._source.look_up([p.tp for p in left])
        # A member whose metadata is old would take an offset of the topic that has the name by now for one of the topic
        # that had it, and begin that one again when it learns better.
        await self._offsets.confirm_ids({p.tp.topic for p in left})
        starts.chosen = self._of_those_waiting(starts.chosen, left)
        starts.committed = self._of_those_waiting(starts.committed, left)
        starts.given = self._of_those_waiting(starts.given, left)
        starts.open = self._of_those_waiting(starts.open, left)
        unbegun = starts.chosen.keys() - starts.truncated - held.keys()
        self._assignment.table.begin_uncommitted(p for p in left if p.tp in unbegun and not p.fresh)
        return starts

    def _of_those_waiting(self, found: Mapping[TopicPartition, _T], asked: _Asked) -> dict[TopicPartition, _T]:
        """Leaves out partitions that have left us since they were looked up, even if they came back: their start of
        that time was not committed, or others have committed since. They have a look-up of their own."""
        waiting = {p.tp for p, number in asked.items() if self._waits(p, number)}
        return {tp: each for tp, each in found.items() if tp in waiting}

    def _waits(self, partition: Partition, starts: int) -> bool:
        """For a look-up that began when it had been given so many. One that began and has its position looked up again
        waits for a newer one: the older one may go on for others, and what it chose is behind what is committed."""
        table = self._assignment.table
        ours = table.get(partition.tp) is partition and partition.state is PartitionState.RESOLVING
        gone = self._source.goes_by_ids and table.is_of_gone_topic(partition)
        return ours and partition.starts == starts and not gone


def _alike(partitions: _Asked) -> Collection[_Asked]:
    """Split into those that are asked for in the same way: a leader that is away holds up none of another kind."""
    kinds: defaultdict[tuple[bool, bool, bool], _Asked] = defaultdict(dict)
    for partition, number in partitions.items():
        kinds[partition.position is None, partition.fresh, partition.beside_the_log][partition] = number
    return kinds.values()
