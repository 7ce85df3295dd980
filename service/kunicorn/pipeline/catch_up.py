"""`kunicorn pipeline catch-up`: takes over the offsets of a live group that is far behind, handles up to its topics'
ends, and hands the group back. Runs in the driver.

1. The group must be empty. Its offsets are taken over by committing them under the run's name before the first record
   is handled: that shows that the fence holds and that commits are allowed. Where somebody else has committed since the
   run looked, it ends: to take over what it found would give all that was handled since to the handler again.
2. What the live service has done ahead of its offsets is not handled again: the marks in its commits are heeded, and
   every commit of the run carries those that are still ahead.
3. What has ended is committed before its partitions go on. Killed anywhere, what was not committed is handled again, by
   the next catch-up or the live service.
4. Brokers forget the offsets of a group that is empty for `offsets.retention.minutes`, a week by default, also those
   that were committed a minute ago. So each commit says for how long it is to be kept. That version of OffsetCommit has
   no leader epochs: they are in the metadata (`kunicorn.ipc.bitmap`), so that a truncated log is noticed (KIP-320).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kunicorn.clients.session import JOB_PATIENCE, ClusterSession, cluster_session
from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.group.protocol import Committed
from kunicorn.handler.config import takes
from kunicorn.ipc import bitmap
from kunicorn.kafka.admin import KEPT_FOR_GOOD
from kunicorn.kafka.stored_positions import Loss, began_with, edge_of_new, resolve
from kunicorn.pipeline.group_offsets import commit, group_members, wait_until_empty
from kunicorn.pipeline.plan import check_same_topics, created_anew, epochs_of, listed
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.report import DryRun, FinishedRun, Say, command
from kunicorn.pipeline.shares import Shares
from kunicorn.pipeline.spark import check_installed
from kunicorn.pipeline.state import Run, Runs, RunState, write_tiles
from kunicorn.pipeline.storage import StoreFailed
from kunicorn.pipeline.tasks.executor_process import SettingsFile, at_once, check_handlers, told_of_differences
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import (
    NO_EPOCH,
    NO_OFFSET,
    Edges,
    OffsetRange,
    Offsets,
    Position,
    TopicPartition,
    between,
    ends_of,
)
from kunicorn.settings import Settings

JOB = "catch-up"

_WHO = "spark:"
"""Before a run's id in the metadata of its commits."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Committed offsets of the group, and the ends of its topics."""

    starts: Mapping[TopicPartition, Position]
    """With what is done ahead of them."""
    ranges: Sequence[OffsetRange]
    topics: Mapping[str, str]
    """Ids of the topics."""
    committed: Mapping[TopicPartition, Committed]
    """The group's answers, also where nothing is committed."""
    epochs: Mapping[TopicPartition, int]
    """Leader epochs in which the topics' ends were told."""
    lost: Sequence[Loss]
    """What the group goes on behind."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What the live service told with its offsets."""

    done: Mapping[TopicPartition, frozenset[int]]
    """Offsets beyond the committed one that are done; partitions without any are left out."""
    began_with: Mapping[TopicPartition, int]
    """How many partitions the topic had when the group began; left out where that is not known."""
    topics: Mapping[str, str]
    """Ids of the topics, where they are known."""

    def metadata(self, tp: TopicPartition, position: Position, who: str) -> str:
        """Metadata of a commit by `who` at that position: what the live service told and is still true, and the
        position's leader epoch.
        """
        topic_id = self.topics.get(tp.topic, "")
        done = bitmap.written(position.offset, self.done.get(tp, ()), topic_id)
        told = bitmap.with_partitions(self.began_with.get(tp), done)
        epoch = bitmap.epoch_word(position.offset, topic_id, position.leader_epoch)
        return " ".join(filter(None, (told, epoch, who)))


def ahead_of(starts: Mapping[TopicPartition, Position], topics: Mapping[str, str]) -> Ahead:
    """What was stored beside the positions, of topics with those ids. Pure."""
    done = {
        tp: bitmap.read_committed(each.offset, each.done, topics.get(tp.topic, "")).offsets()
        for tp, each in starts.items()
    }
    counts = {tp: bitmap.partitions(each.done) for tp, each in starts.items()}
    return Ahead(
        {tp: offsets for tp, offsets in done.items() if offsets},
        {tp: count for tp, count in counts.items() if count is not None},
        topics,
    )


def starts_of(
    committed: Mapping[TopicPartition, Committed],
    edges: Mapping[TopicPartition, Edges],
    reset: str,
    *,
    fail_on_data_loss: bool,
    epoch_ends: Offsets | None = None,
) -> tuple[dict[TopicPartition, Position], list[Loss]]:
    """Start of each partition, with what is done ahead of it, by the live service's rules
    (`kunicorn.kafka.stored_positions`), and what is lost before them. Pure.

    `committed`: for each partition the group's answer, also where nothing is committed. `epoch_ends`: where the logs
    of their leader epochs end, as far as that is known. Raises `ConfigError` where a person has to decide, and with
    `fail_on_data_loss` for what is lost.
    """
    counts = {topic: began_with(topic, committed, committed) for topic in {tp.topic for tp in committed}}
    starts: dict[TopicPartition, Position] = {}
    lost: list[Loss] = []
    for tp, found in committed.items():
        if found.offset == NO_OFFSET:
            edge = edge_of_new(tp, reset, counts[tp.topic])
            if edge is None:
                raise ConfigError(
                    f'{tp} has no committed offset and group.auto_offset_reset = "none": commit one, or change it'
                )
            starts[tp] = Position(edges[tp].placed(edge))
            continue
        stored = Position(found.offset, found.leader_epoch, found.metadata)
        start, loss, done = resolve(tp, stored, edges[tp], epoch_end=(epoch_ends or {}).get(tp))
        if loss is not None and fail_on_data_loss:
            raise ConfigError(f"{loss}; set pipeline.fail_on_data_loss = false to go on behind that")
        if loss is not None:
            lost.append(loss)
        assert start is not None
        starts[tp] = Position(start, done=done)
    return starts, lost


def dry_run(settings: Settings, run: str | None = None) -> DryRun:
    """Plan of a run, of that id if it has one, whether or not the group is empty. Changes nothing. Raises what else
    would end the run before its start."""
    _check_settings(settings)
    runs = Runs(settings.pipeline.directory)
    if run is not None:
        runs.check_free(JOB, run)
    check_handlers(settings)
    found = _standing(settings)
    pace = runs.pace(JOB, settings.handler.entrypoint)
    members = group_members(settings)
    note = f"the group has {len(members)} member(s) now: they have to leave before a catch-up begins"
    return DryRun(found.ranges, pace, [*map(str, found.lost), *([note] if members else ())])


def catch_up(
    settings: Settings, file: SettingsFile, master: str, run: str | None, wait_seconds: float, say: Say
) -> FinishedRun:
    """Take over, run, hand back. Blocks. Raises a `ServiceError` where the run ends early."""
    _check_settings(settings)
    check_installed()
    check_handlers(settings)
    wait_until_empty(settings, wait_seconds)
    found = _standing(settings)
    for each in found.lost:
        say(f"warning: {each}")
    runs, left = Runs(settings.pipeline.directory), named_in(found.committed)
    if not found.ranges:
        # A run that was killed behind its last commit has nobody who goes on with it.
        write_left(runs, left, settings.group.id, say)
        note = f"group {settings.group.id} is at its end already: nothing to handle"
        return FinishedRun(JOB, None, RunState(()), notes=[note])
    state = RunState(found.ranges, topics=found.topics, epochs=found.epochs)
    new = runs.start(JOB, settings.handler.entrypoint, "", state, run, settings.group.id, left)
    say(f"run {new.id} takes group {settings.group.id} over; keep the live service stopped until it is done")
    return _run(settings, file, runs, new, found, master, say)


class Holding:
    """The group's offsets while the run has them."""

    def __init__(self, settings: Settings, run: str, found: TakeOver) -> None:
        self._ahead = ahead_of(found.starts, found.topics)
        self.done = self._ahead.done
        """Offsets that are not to be handled again."""
        self._settings = settings
        self._who = f"{_WHO}{run}"
        self._starts, self._epochs = _offsets(found.starts), found.epochs
        self._last = {tp: (each.offset, each.metadata) for tp, each in found.committed.items()}
        """Offset and metadata of each partition as they were found, or as this run has committed them since."""

    def take(self) -> None:
        """Commit the group's offsets under the run's name. Raises as `move` does."""
        self._commit(self._starts)

    def move(self, positions: Offsets) -> None:
        """Commit what is handled, of partitions that there are. Raises `FatalGroupError` where another client has
        committed, or a member is there; `ConfigError` where a topic was created anew.
        """
        self._commit({tp: at for tp, at in positions.items() if self._last[tp][0] != at})

    def _commit(self, offsets: Offsets) -> None:
        positions = {tp: Position(at, self._epochs.get(tp, NO_EPOCH)) for tp, at in offsets.items()}
        own = {tp: self._ahead.metadata(tp, position, self._who) for tp, position in positions.items()}
        with cluster_session(self._settings, patience=JOB_PATIENCE) as session:
            found = session.committed(list(self._last))
            changed = [tp for tp, last in self._last.items() if (found[tp].offset, found[tp].metadata) != last]
            there = self._there(session, offsets, changed)
            self._check_unmoved(found, [tp for tp in changed if tp in there])
            taken = {tp: at for tp, at in offsets.items() if tp in there}
            commit(session, taken, self._who, own, self._epochs, KEPT_FOR_GOOD)
        self._last |= {tp: (at, own[tp]) for tp, at in taken.items()}

    def _there(
        self, session: ClusterSession, offsets: Offsets, changed: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        """Those of the partitions whose topics there still are: brokers delete a group's offsets together with a topic.

        Raises `ConfigError` where a topic of `offsets` was created anew: the live service would pass over what it has
        below the former one's offset.
        """
        known = self._ahead.topics
        now = session.topic_ids({tp.topic for tp in (*offsets, *changed)})
        check_same_topics({tp.topic: known[tp.topic] for tp in offsets if tp.topic in known}, now)
        anew = created_anew(known, now)
        return {tp for tp in session.existing({*offsets, *changed}) if tp.topic not in anew}

    def _check_unmoved(self, found: Mapping[TopicPartition, Committed], changed: Sequence[TopicPartition]) -> None:
        """Raise `FatalGroupError` if anything is `changed` of what this run has committed, and still exists."""
        if forgotten := [tp for tp in changed if found[tp].offset == NO_OFFSET]:
            lines = "\n".join(f"{tp.topic},{tp.partition},{self._last[tp][0]}" for tp in forgotten)
            raise FatalGroupError(
                f"partitions that have no committed offset any more: {len(forgotten)}. The brokers have forgotten it, "
                "as the group has been empty for offsets.retention.minutes, or somebody has deleted it. What was "
                "underway does not count. Put the lines below into a file and commit them with kunicorn offsets reset "
                "--from-file FILE --execute before anything else goes on: the live service and the next catch-up would "
                f"begin by auto_offset_reset\n{lines}"
            )
        if changed:
            tp, was = changed[0], self._last[changed[0]][0]
            at = "nothing" if was == NO_OFFSET else was
            raise FatalGroupError(
                f"{tp} was committed by somebody else meanwhile ({_shown(found[tp])} instead of {at}): another "
                f"catch-up, the live service or a person. What was underway does not count; see who it is before "
                f"going on"
            )


def _offsets(starts: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
    return {tp: each.offset for tp, each in starts.items()}


def _shown(committed: Committed) -> str:
    return f"{committed.offset}, {committed.metadata or 'without a name'}"


def _check_settings(settings: Settings) -> None:
    if settings.assigned:
        raise ConfigError("there is no group to catch up: these settings assign partitions by name; see [assign]")


def _standing(settings: Settings) -> TakeOver:
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        topics = settings.group.topics
        known = [tp for tp in session.ask(session.group.committed) if takes(topics, tp.topic)]
        partitions = listed(topics, (), known, session)
        ids = session.topic_ids(tp.topic for tp in partitions)
        committed = session.committed(partitions)
        edges = session.edges(partitions)
        ends = session.epoch_ends(committed)
    strict = settings.pipeline.fail_on_data_loss
    reset = settings.group.auto_offset_reset
    starts, lost = starts_of(committed, edges, reset, fail_on_data_loss=strict, epoch_ends=ends)
    ranges = between(_offsets(starts), ends_of(edges))
    return TakeOver(starts, ranges, ids, committed, epochs_of(edges), lost)


def named_in(committed: Mapping[TopicPartition, Committed]) -> list[str]:
    """Runs that have committed these offsets. Pure."""
    last = {each.metadata.rpartition(" ")[2] for each in committed.values()}
    return sorted(each.removeprefix(_WHO) for each in last if each.startswith(_WHO))


def write_left(runs: Runs, names: Sequence[str], group: str, say: Say) -> list[str]:
    """Write the rows that catch-ups which were killed have left in their manifests into their outcome tables: of these
    runs, and of those whose rows they were to write. Gives back those of which the store has not taken them. Caller:
    has taken the group over since, or found it at its end, so that none of them counts anything more.
    """
    every, failed = list(names), list[str]()
    for run in every:
        try:
            known = runs.read(run) if run in runs else None
            if known is None or (known.job, known.group) != (JOB, group):
                continue
            every += [each for each in known.left if each not in every]
            if known.state.tiles:
                write_tiles(runs.outcomes(run), known.state.tiles, known.state.rounds)
        except ConfigError as error:
            if isinstance(error, StoreFailed):
                failed.append(run)
            say(f"warning: the rows that run {run} has not written stay in its manifest: {error}")
    return failed


def _run(
    settings: Settings, file: SettingsFile, runs: Runs, run: Run, found: TakeOver, master: str, say: Say
) -> FinishedRun:
    outcomes, holding = runs.outcomes(run.id), Holding(settings, run.id, found)

    def ready() -> None:
        nonlocal run
        holding.take()
        # Until the manifest is saved anew it names them: what is committed names this run alone by now.
        run = replace(run, left=write_left(runs, run.left, settings.group.id, say))

    def begun(state: RunState) -> None:
        runs.save(replace(run, state=state))
        wait_until_empty(settings, 0)

    def ended(state: RunState, summaries: Sequence[Summary]) -> None:
        # A former topic's offsets, committed for the new one, would have the live service leave out its records: the
        # topics have just been found to be the same.
        try:
            # First: behind the commit nobody handles these records again, and a kill there would cost their rows.
            runs.save(replace(run, state=state))
        except StoreFailed:
            # That costs their rows. Nothing of them is handled twice.
            holding.move(state.positions)
            raise
        holding.move(state.positions)

    told_of_differences(settings, say)
    job = RangeJob(
        name=JOB,
        settings=settings,
        file=file,
        directory=outcomes,
        task=lambda again, limits: HandleRanges(file, outcomes, again=again, limits=limits),
        next=Shares(settings.pipeline),
        at_once=at_once(settings),
        done=holding.done,
        ready=ready,
        begun=begun,
        ended=ended,
    )
    state = job(run.state, master, run.id, say)
    go_on = f"{command(JOB, '--config', file.path, master=master)}, or the live service"
    note = f"group {settings.group.id} is handed back at what was handled; start the live service"
    return FinishedRun(JOB, run.id, state, go_on, [note])
