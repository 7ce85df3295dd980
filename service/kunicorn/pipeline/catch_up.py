"""`kunicorn pipeline catch-up`: takes over the offsets of a live group that is far behind, handles up to its topics'
ends, and hands the group back. Runs in the driver.

1. The group must be empty. Its offsets are taken over by committing them under the run's name before the first record
   is handled: that shows that the fence holds and that commits are allowed.
2. After each round its offsets are committed, and only then the next is begun. Killed anywhere, what was not committed
   is handled again, by the next catch-up or the live service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kunicorn.clients.access import Access
from kunicorn.clients.questions import Committed, Edges, GroupOffsets, Log, group_members, wait_until_empty
from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.pipeline.executors import SettingsFile, check_handlers
from kunicorn.pipeline.plan import check_same_topics
from kunicorn.pipeline.report import DryRun, Exposed, FinishedRun, Say
from kunicorn.pipeline.rounds import Steps, run_rounds, send_letters, stopping, timed
from kunicorn.pipeline.spark import Job, check_installed, open_session
from kunicorn.pipeline.state import Run, Runs, RunState, advanced
from kunicorn.pipeline.task import Summary
from kunicorn.positions import OffsetRange, Offsets, TopicPartition, between
from kunicorn.settings import Settings

JOB = "catch-up"


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Committed offsets of the group, and the ends of its topics."""

    starts: Offsets
    ranges: Sequence[OffsetRange]
    topics: Mapping[str, str]
    """Ids of the topics."""


def starts_of(
    partitions: Sequence[TopicPartition], committed: Offsets, edges: Edges, reset: str, *, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """Start offset of each partition, by the live service's rules. Pure. Raises `ConfigError`.

    Without a committed offset `auto_offset_reset` decides; but a partition of a topic on which the group has committed
    before is a new one, and begins at its beginning.
    """
    known = {tp.topic for tp in committed}
    starts: dict[TopicPartition, int] = {}
    for tp in partitions:
        at, first, end = committed.get(tp), edges.first[tp], edges.end[tp]
        if at is None and reset == "none" and tp.topic not in known:
            raise ConfigError(
                f'{tp} has no committed offset and group.auto_offset_reset = "none": commit one, or change it'
            )
        if at is None:
            starts[tp] = end if reset == "latest" and tp.topic not in known else first
        elif at > end:
            raise ConfigError(
                f"{tp} is committed at {at} and its log ends at {end}: it was truncated, or the topic created anew; "
                f"commit an offset that exists"
            )
        elif at < first and fail_on_data_loss:
            raise ConfigError(
                f"{tp} is committed at {at} and its log begins at {first}: {first - at:,} offsets are deleted already; "
                f"set pipeline.fail_on_data_loss = false to go on behind them"
            )
        else:
            starts[tp] = max(at, first)
    return starts


def dry_run(settings: Settings) -> DryRun:
    """Plan of a run, whether or not the group is empty. Changes nothing."""
    access = Access(settings)
    found = _standing(settings, GroupOffsets(access, settings.group.id), Log(access))
    pace = Runs(settings.pipeline.directory).pace(JOB, settings.handler.entrypoint)
    members = group_members(settings)
    note = f"the group has {len(members)} member(s) now: they have to leave before a catch-up begins"
    return DryRun(found.ranges, pace, [note] if members else ())


def catch_up(
    settings: Settings, file: SettingsFile, master: str, run: str | None, wait_seconds: float, say: Say
) -> FinishedRun:
    """Take over, run, hand back. Blocks. Raises a `ServiceError` where the run ends early."""
    _check_settings(settings)
    check_installed()
    check_handlers(settings)
    wait_until_empty(settings, wait_seconds)
    access = Access(settings)
    offsets = GroupOffsets(access, settings.group.id)
    found = _standing(settings, offsets, Log(access))
    if not found.ranges:
        note = f"group {settings.group.id} is at its end already: nothing to handle"
        return FinishedRun(JOB, None, RunState(()), notes=[note])
    runs = Runs(settings.pipeline.directory)
    new = runs.start(JOB, settings.handler.entrypoint, "", RunState(found.ranges, topics=found.topics), run)
    say(f"run {new.id} takes group {settings.group.id} over; keep the live service stopped until it is done")
    return _run(settings, file, runs, new, Holding(offsets, new.id, dict(found.starts)), master, say)


class Holding:
    """The group's offsets while the run has them."""

    def __init__(self, offsets: GroupOffsets, run: str, positions: dict[TopicPartition, int]) -> None:
        self._offsets = offsets
        self._metadata = f"spark:{run}"
        self._positions = positions

    def take(self) -> None:
        """Commit the group's offsets under the run's name. Raises `FatalGroupError`."""
        self._offsets.commit(self._positions, self._metadata)

    def move(self, positions: Offsets) -> None:
        """Commit a round's end. Raises `FatalGroupError` where another client has committed, or a member has joined."""
        self._check_ours()
        moved = {tp: at for tp, at in positions.items() if self._positions[tp] != at}
        self._offsets.commit(moved, self._metadata)
        self._positions |= moved

    def _check_ours(self) -> None:
        found = self._offsets.committed(list(self._positions))
        for tp, at in self._positions.items():
            if found.get(tp) != Committed(at, self._metadata):
                other = found.get(tp)
                raise FatalGroupError(
                    f"{tp} was committed by somebody else meanwhile ({_shown(other)} instead of our {at}): another "
                    f"catch-up, the live service or a person. This round does not count; see who it is before going on"
                )


def _shown(committed: Committed | None) -> str:
    return "nothing" if committed is None else f"{committed.offset}, {committed.metadata or 'without a name'}"


def _check_settings(settings: Settings) -> None:
    if settings.assigned:
        raise ConfigError("there is no group to catch up: these settings assign partitions by name; see [assign]")


def _standing(settings: Settings, offsets: GroupOffsets, log: Log) -> TakeOver:
    partitions = log.partitions(settings.group.topics)
    ids = log.topic_ids(tp.topic for tp in partitions)
    committed = {tp: each.offset for tp, each in offsets.committed(partitions).items()}
    edges = log.edges(partitions)
    strict = settings.pipeline.fail_on_data_loss
    starts = starts_of(partitions, committed, edges, settings.group.auto_offset_reset, fail_on_data_loss=strict)
    return TakeOver(starts, between(starts, edges.end), ids)


def _run(
    settings: Settings, file: SettingsFile, runs: Runs, run: Run, holding: Holding, master: str, say: Say
) -> FinishedRun:
    outcomes, log = runs.outcomes(run.id), Log(Access(settings))
    spark = open_session(settings, master, run.id)
    try:
        job = Job(spark, file)
        job.check_executors(outcomes)
        holding.take()

        def begun(state: RunState) -> None:
            runs.save(advanced(run, state))
            wait_until_empty(settings, 0)

        def ended(state: RunState, summaries: Sequence[Summary]) -> None:
            # The former topic's offsets, committed for the new one, would have the live service leave out its records.
            check_same_topics(state.topics, log.topic_ids(state.topics))
            send_letters(settings, outcomes, summaries)
            holding.move(state.positions)
            runs.save(advanced(run, state))

        steps = Steps(lambda ranges: job.handle(ranges, outcomes), begun, ended, timed(settings.pipeline), job.tasks)
        with stopping() as stop:
            state = run_rounds(run.state, steps, Exposed(settings.http, JOB, say), stop, say)
    finally:
        spark.stop()
    go_on = f"kunicorn pipeline {JOB} --config {file.path}, or the live service"
    note = f"group {settings.group.id} is handed back at what was handled; start the live service"
    return FinishedRun(JOB, run.id, state, go_on, [note])
