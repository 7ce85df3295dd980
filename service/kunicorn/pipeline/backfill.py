"""`kunicorn pipeline backfill`: handles history again, beside a live group, whose offsets it never touches.

Runs in the driver. Progress is in the run's manifest, so that a run that was cut off, stopped or halted can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kunicorn import __version__
from kunicorn.clients.range_reader import Window
from kunicorn.clients.session import JOB_PATIENCE, ClusterSession, cluster_session
from kunicorn.errors import ConfigError
from kunicorn.handler.config import takes
from kunicorn.kafka.stored_positions import Loss
from kunicorn.pipeline.plan import (
    Bound,
    Bounds,
    ByOffset,
    ByTime,
    Everywhere,
    Plan,
    check_nothing_lost,
    check_same_topics,
    created_anew,
    gone_text,
    not_deleted,
    pairs_in,
    plan,
    within_epochs,
)
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.report import DryRun, FinishedRun, Say, command
from kunicorn.pipeline.shares import Shares
from kunicorn.pipeline.spark import check_installed
from kunicorn.pipeline.state import IdTaken, Run, Runs, RunState, write_tiles
from kunicorn.pipeline.storage import Overtaken, Unreadable
from kunicorn.pipeline.tasks.executor_process import SettingsFile, at_once, check_handlers, told_of_differences
from kunicorn.pipeline.tasks.range_outcomes import rows_file
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import EARLIEST, LATEST, OffsetRange
from kunicorn.settings import Settings
from kunicorn.text import listed

JOB = "backfill"


@dataclass(frozen=True, slots=True)
class Request:
    """Bounds of a backfill: two times (milliseconds since 1970), or offsets as JSON."""

    since: int | None = None
    until: int | None = None
    offsets: str | None = None
    topics: Sequence[str] = ()
    """Topics to handle in place of all of group.topics."""
    slack_ms: int | None = None
    """How far behind `until` records are looked for: to the first one so much younger. None: to the log's end."""

    def __post_init__(self) -> None:
        if self.slack_ms is not None and self.until is None:
            raise ConfigError("--slack is how far behind --to records are looked for: say --to, or leave it out")
        if self.offsets is not None and (self.since is not None or self.until is not None or self.topics):
            raise ConfigError("--offsets says everything itself; leave out --from, --to and --topic")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ConfigError("--from is not before --to: exchange the two")

    @property
    def text(self) -> str:
        """The request as text, for the manifest."""
        return json.dumps([self.since, self.until, self.offsets, list(self.topics), self.slack_ms])

    @property
    def window(self) -> Window | None:
        """Filter of the ranges' records by time; None: all."""
        return None if self.since is None and self.until is None else Window(self.since, self.until)


def _request_of(run: Run) -> Request:
    """What the run was asked for. Raises `Unreadable` where that is more, or other, than this version knows."""
    try:
        since, until, offsets, topics, slack_ms = json.loads(run.request)
        return Request(since, until, offsets, tuple(topics), slack_ms)
    except (TypeError, ValueError) as error:
        raise Unreadable(
            f"run {run.id!r} was asked for something that kunicorn {__version__} does not know: finish it with the "
            f"version that began it, or begin anew under another name"
        ) from error


def planned(settings: Settings, request: Request) -> Plan:
    """Ranges of the request. Raises `ConfigError`. Blocks on the brokers."""
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        return _planned(settings, request, session)


def _planned(settings: Settings, request: Request, log: ClusterSession) -> Plan:
    strict = settings.pipeline.fail_on_data_loss
    asked_for = settings.group.topics or settings.assign.wanted.topics
    if request.offsets is not None:
        starts, stops = pairs_in("--offsets", request.offsets)
        known = log.partitions(sorted({tp.topic for tp in starts}), "--offsets")
        _check_handled({tp.topic for tp in known}, asked_for, "--offsets")
        bounds = Bounds(ByOffset(starts), ByOffset(stops))
        return plan([tp for tp in known if tp in starts], bounds, log, fail_on_data_loss=strict)
    start = Everywhere(EARLIEST) if request.since is None else ByTime(request.since, {})
    stop: Bound = Everywhere(LATEST)
    if request.until is not None and request.slack_ms is not None:
        # Not at --to itself: behind the first record of that time, of a clock that is ahead, others lie that are older.
        stop = ByTime(request.until + request.slack_ms, {})
    # A partition without a record as young as --from has nothing to handle again.
    setting = "--topic" if request.topics else "group.topics"
    partitions = log.partitions(request.topics or asked_for, setting, settings.assign.wanted.numbered)
    _check_handled({tp.topic for tp in partitions}, asked_for, setting)
    return plan(partitions, Bounds(start, stop, unmatched_is_latest=True), log, fail_on_data_loss=strict)


def _check_handled(topics: Collection[str], asked_for: Collection[str], setting: str) -> None:
    """Raise `ConfigError` for a topic that the settings do not have the handler take: letters, say, are no orders."""
    if strangers := sorted(topic for topic in topics if not takes(asked_for, topic)):
        raise ConfigError(
            f"{setting}: {listed(strangers)} is none of group.topics, whose records the handler takes: name others, or "
            f"run with settings that have it"
        )


def dry_run(settings: Settings, request: Request, run: str | None = None) -> DryRun:
    """Plan of a run, of that id if it has one. Starts no Spark and handles nothing. Raises what would end the run
    before its start."""
    runs = Runs(settings.pipeline.directory)
    if run is not None:
        runs.check_free(JOB, run)
    check_handlers(settings)
    found = planned(settings, request)
    pace = runs.pace(JOB, settings.handler.entrypoint)
    notes = [gone_text(found.gone, found.edges)] if found.gone else []
    notes += _told_of_ages(settings)
    if request.until is not None:
        notes.append(
            f"these are read {_where_to(request)}, and what has another time than was asked for is passed over"
        )
    return DryRun(found.ranges, pace, notes)


def dry_run_of_resumed(settings: Settings, run: str) -> DryRun:
    """Plan of what is left of a run. Starts no Spark, handles and writes nothing. Raises what would end the run before
    it goes on."""
    runs = Runs(settings.pipeline.directory)
    known = _known(settings, runs, run)
    pace = known.state.rate or runs.pace(JOB, known.what)
    if known.state.finished:
        return DryRun((), pace, [f"run {run} is finished: nothing is left"])
    check_handlers(settings)
    state, lost, _ = _in_logs(settings, known.state.released())
    notes = [f"run {run} has handled {state.done:,} offsets, and goes on with these", *map(str, lost)]
    notes += _told_of_ages(settings)
    return DryRun(state.left, pace, notes)


def dry_run_of_named(settings: Settings, request: Request, run: str) -> DryRun:
    """Plan of what `begin_or_resume` would do."""
    runs = Runs(settings.pipeline.directory)
    if run not in runs:
        return dry_run(settings, request, run)
    found = dry_run_of_resumed(settings, run)
    return replace(found, notes=[*_told_of_another(runs.read(run), request), *found.notes])


def _where_to(request: Request) -> str:
    if request.slack_ms is None:
        return "to the log's end, as records of a time may lie behind younger ones (--slack says how far)"
    return f"to the first record {request.slack_ms // 1000:,} s younger than --to"


def backfill(
    settings: Settings, file: SettingsFile, request: Request, master: str, run: str | None, say: Say
) -> FinishedRun:
    """Plan and run. Blocks. Raises a `ServiceError` where the run ends early."""
    check_installed()
    check_handlers(settings)
    found = planned(settings, request)
    if found.gone:
        say(f"warning: {gone_text(found.gone, found.edges)}; they are passed over")
    if not found.ranges:
        return FinishedRun(JOB, None, RunState(()), notes=["nothing lies between start and end: nothing to handle"])
    runs = Runs(settings.pipeline.directory)
    state = RunState(found.ranges, topics=found.topics, epochs=found.epochs)
    new = runs.start(JOB, settings.handler.entrypoint, request.text, state, run, _group(settings))
    return _go_on(settings, file, runs, new, master, say)


def begin_or_resume(
    settings: Settings, file: SettingsFile, request: Request, master: str, run: str, say: Say
) -> FinishedRun:
    """Continue the run of that name by what it was asked for when it began; begin it where there is none. Blocks.
    Raises `Overtaken` where another process begins it at the same time.
    """
    runs = Runs(settings.pipeline.directory)
    if run in runs:
        for each in _told_of_another(_known(settings, runs, run), request):
            say(f"warning: {each}")
        return resume(settings, file, run, master, say)
    try:
        return backfill(settings, file, request, master, run, say)
    except IdTaken as error:
        # Of two that are begun at once: no setting is wrong.
        raise Overtaken(f"run {run} was begun by another process meanwhile; this one ends, let it finish") from error


def resume(settings: Settings, file: SettingsFile, run: str, master: str, say: Say) -> FinishedRun:
    """Continue a run that was cut off, stopped or halted. Blocks."""
    check_installed()
    runs = Runs(settings.pipeline.directory)
    known = _known(settings, runs, run)
    if known.state.finished:
        if known.state.tiles:
            _take(runs, known)
        return FinishedRun(JOB, run, known.state, notes=[f"run {run} is finished: nothing is left"])
    check_handlers(settings)
    state, lost, dropped = _in_logs(settings, known.state.released())
    for loss in lost:
        say(f"warning: {loss}")

    def ready() -> None:
        _take(runs, known)
        for whole in dropped:
            runs.outcomes(run).delete(rows_file(whole))

    going_on = replace(known, state=state.written())
    if state.finished:
        ready()
        runs.save(going_on)
        return FinishedRun(JOB, run, state, notes=[f"run {run} is finished: what was left is gone"])
    return _go_on(settings, file, runs, going_on, master, say, ready)


def _known(settings: Settings, runs: Runs, run: str) -> Run:
    """The run of that id. Raises `ConfigError` where there is none, or one of another job, handler or group."""
    known = runs.read(run)
    if known.job != JOB:
        raise ConfigError(
            f"run {run!r} is a {known.job} and no backfill: choose another id. A catch-up that was cut off is started "
            f"anew, and goes on from the group's offsets"
        )
    if known.what != settings.handler.entrypoint:
        raise ConfigError(
            f"run {run!r} is of {known.what}, and the settings have {settings.handler.entrypoint}: resume it with its "
            f"own settings"
        )
    own = _group(settings)
    if known.group is not None and known.group != own:
        raise ConfigError(
            f"run {run!r} is of {_shown(known.group)}, and the settings are of {_shown(own)}: its ranges are of other "
            f"topics. Choose another id, or resume it with its own settings"
        )
    _request_of(known)  # Found out by a plan, too.
    return known


def _group(settings: Settings) -> str:
    return "" if settings.assigned else settings.group.id


def _shown(group: str) -> str:
    return f"group {group!r}" if group else "no group ([assign])"


def _told_of_another(known: Run, request: Request) -> Iterator[str]:
    """That the run goes on with what it was asked for, where this is something else."""
    options = {"since": "--from", "until": "--to", "offsets": "--offsets", "topics": "--topic", "slack_ms": "--slack"}
    begun = _request_of(known)
    if others := [option for name, option in options.items() if getattr(begun, name) != getattr(request, name)]:
        yield (
            f"run {known.id} was begun with another {' and another '.join(others)}, and goes on with that: to have "
            f"this command's handled, name another run"
        )


def _told_of_ages(settings: Settings) -> Iterator[str]:
    """That the handler gets old records, where the live service keeps them from it."""
    if any(each.max_age_ms is not None for each in settings.every_handler):
        yield (
            "handler.max_age_ms does not hold in a backfill, which is asked for old records: those of all ages are "
            "handled, and --from says how old the oldest is"
        )


def _take(runs: Runs, run: Run) -> None:
    """Overtake a driver that still has the run, and have all that its manifest counts in its outcome table. Caller: is
    about to go on with the run, or finds it finished.
    """
    # Else that driver's next file would have these rows again; and what the caller deletes it may count meanwhile.
    runs.save(run)
    if run.state.tiles:
        write_tiles(runs.outcomes(run.id), run.state.tiles, run.state.rounds)


def _in_logs(settings: Settings, state: RunState) -> tuple[RunState, list[Loss], list[OffsetRange]]:
    """As `RunState.in_logs`, with the logs of now. Raises `ConfigError` for losses that are not accepted."""
    before = state.ids_of({each.topic for each in state.left})
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        there = not_deleted([each.tp for each in state.left], session)
        topics = session.topic_ids(before)
        edges = session.edges(there)
        logs = within_epochs(edges, state.epochs, session.ends_of_epochs)
    if settings.pipeline.fail_on_data_loss:
        check_same_topics(before, topics)
    found, lost, dropped = state.in_logs(logs, created_anew(before, topics))
    if settings.pipeline.fail_on_data_loss:
        check_nothing_lost(lost)
    return replace(found, topics={**found.topics, **topics}), lost, dropped


def _go_on(
    settings: Settings,
    file: SettingsFile,
    runs: Runs,
    run: Run,
    master: str,
    say: Say,
    ready: Callable[[], None] = lambda: None,
) -> FinishedRun:
    go_on = command(JOB, "--config", file.path, "--resume", run.id, master=master)
    say(f"run {run.id}; if it is cut off: {go_on}")
    outcomes, window = runs.outcomes(run.id), _request_of(run).window

    def save(state: RunState) -> None:
        runs.save(replace(run, state=state))

    told_of_differences(settings, say)
    for each in _told_of_ages(settings):
        say(f"warning: {each}")
    file = replace(file, any_age=True)
    job = RangeJob(
        name=JOB,
        settings=settings,
        file=file,
        directory=outcomes,
        task=lambda again, limits: HandleRanges(file, outcomes, window, again=again, limits=limits),
        next=Shares(settings.pipeline),
        at_once=at_once(settings),
        ready=ready,
        begun=save,
        ended=lambda state, summaries: save(state),
    )
    state = job(run.state, master, run.id, say)
    return FinishedRun(JOB, run.id, state, go_on)
