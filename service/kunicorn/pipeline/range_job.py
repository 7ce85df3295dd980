"""The loop of every job over ranges, in the driver: begin ranges, count those that have ended, and so on.

1. Partitions move by themselves: when a range has ended, its partition's next one is begun, whatever the others do. As
   many are underway as keep the executors busy, and no more: what is killed repeats what was underway.
2. A range counts once its task has ended; its dead letters are acknowledged then. What has ended meanwhile is counted
   together: the job's own step makes it count (write a manifest, commit offsets), and only then more is begun.
3. A job that goes in rounds (`together`), each of which counts as a whole, waits for all that is underway.
4. SIGINT and SIGTERM: the first ends a job when what is underway has ended, the second at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from kunicorn.clients.session import JOB_PATIENCE, Passing, cluster_session
from kunicorn.errors import ConfigError, ExitCode, FatalGroupError, PeerError, ServiceError
from kunicorn.group.reactions import COORDINATOR_MOVED
from kunicorn.kafka.errors import CoordinatorUnavailable
from kunicorn.pipeline.metrics_port import Exposed
from kunicorn.pipeline.plan import check_not_truncated, check_same_topics
from kunicorn.pipeline.report import Bar, Say, Tasks, watched
from kunicorn.pipeline.spark import Job, JobFailed, open_session, stopped_behind, told_without_executors
from kunicorn.pipeline.state import RunState, write_tiles
from kunicorn.pipeline.storage import Directory, StoreFailed
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.limits import TaskLimits, limits_of
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import Done, Task
from kunicorn.positions import OffsetRange, Offsets, total
from kunicorn.settings import Settings

_PAUSE_SECONDS = 1.0
"""Between two counts: so many ranges as end meanwhile share a manifest, and a commit."""
_MOST_OF_THE_TIME = 4
"""Where a count itself takes long, as with thousands of partitions, so many times as long passes to the next one."""
_FILE_SECONDS = 60.0
"""Between two files of the outcome table that the driver writes."""


def check_logs(settings: Settings, state: RunState, counted: Offsets) -> None:
    """Raise `ConfigError` if one of the topics that are read was created anew since the run began, or if the log of one
    of these partitions was truncated before what is counted of it. Asks the cluster. Blocks.
    """
    # Of a topic that is done nothing can be lost any more, nor can another's records be taken for its own.
    read = {each.topic for each in state.left} | {tp.topic for tp in counted}
    ids = state.ids_of(read)
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        check_same_topics(ids, session.topic_ids(ids))
        known = session.existing([tp for tp in counted if tp in state.epochs])
        ends = session.ends_of_epochs({tp: state.epochs[tp] for tp in known})
    check_not_truncated(counted, ends)


class StoppedAtOnce(ServiceError):
    """Second signal: what is underway does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED

    def __init__(self) -> None:
        super().__init__("stopped at once: what is underway does not count, its records are handled again")


class Stop:
    """Request to stop, by a signal."""

    def __init__(self) -> None:
        self.asked = self.at_once = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handler of the signals."""
        if self.asked:
            self.at_once = True
            raise StoppedAtOnce
        self.asked = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Take signals as requests to stop while the block runs. In another thread than the main one, where no handler can
    be set, they are left to whoever runs the job there.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except Exception as error:
        if stop.at_once and not isinstance(error, StoppedAtOnce):
            # Raised amid a question to the JVM, it comes out of there as if the JVM had died.
            raise StoppedAtOnce from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def leaving_something() -> Iterator[None]:
    """Have what goes away within the block, a store or the brokers, end the job with exit code 6: its settings were
    good, and whoever starts it again has it go on. Raises `JobFailed`.
    """
    try:
        yield
    except (ConfigError, FatalGroupError) as error:
        if not _went_away(error):
            raise
        raise JobFailed(f"{error}. What is underway does not count; start the job again, and it goes on") from error


def _went_away(error: ServiceError) -> bool:
    cause = error.__cause__
    if isinstance(cause, CoordinatorUnavailable):
        # Else it has refused for good, as where a right is missing.
        return isinstance(cause, Passing) or cause.error in COORDINATOR_MOVED
    return isinstance(error, StoreFailed) or isinstance(cause, PeerError)


class Next(Protocol):
    """Decides which ranges are begun; see `kunicorn.pipeline.shares`."""

    def of(self, state: RunState, room: int) -> list[OffsetRange]: ...
    def learn(self, summaries: Iterable[Summary]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeJob:
    """A job over ranges: what differs from job to job. The hooks block, and raise to end the job."""

    name: str
    """"backfill", "catch-up" or "export"."""
    settings: Settings
    file: SettingsFile
    directory: Directory
    """Where its tasks write, as the outcome table of a run: every executor has to reach it."""
    handler: bool = True
    """Whether executors need the handler."""
    task: Callable[[bool, TaskLimits], Task]
    """The task that handles ranges, within these limits; for those that may have been begun before, with True."""
    next: Next
    ready: Callable[[], None] = lambda: None
    """Called once before anything is begun, when the executors are found to be able to work."""
    begun: Callable[[RunState], None]
    """Saves what has to be known after a crash, before ranges are begun."""
    ended: Callable[[RunState, Sequence[Summary]], None]
    """Makes ranges count that have ended, and whose logs are still the same."""
    together: bool = False
    """Whether all that is underway counts at once."""
    at_once: int = 1
    """Ranges that a task handles side by side."""
    done: Done = field(default_factory=dict)
    """What is not to be handled again."""

    def __call__(self, state: RunState, master: str, run: str, say: Say) -> RunState:
        """Start Spark as `run`, and go on until nothing is left or a signal stops it; the final state.

        Blocks. Raises a `ServiceError` where the job ends early.
        """
        spark = open_session(self.settings, master, run)
        with stopped_behind(spark):
            job = Job(spark, self.file)
            with told_without_executors(say):
                job.check_executors(self.directory, handler=self.handler)
            self.ready()
            with stopping() as stop, Exposed(self.settings.http, self.name, say) as exposed, Bar(state, say) as bar:
                return _Loop(self, job, stop, exposed, bar)(state)


class _Loop:
    """One run of a `RangeJob`. Caller: the driver's main thread."""

    def __init__(self, job: RangeJob, spark: Job, stop: Stop, exposed: Exposed, bar: Bar) -> None:
        self._job, self._spark, self._stop = job, spark, stop
        self._exposed, self._bar = exposed, bar
        self._ended: list[Summary] = []
        """Of partitions of which more is underway."""
        self._counted_at = self._written_at = time.monotonic()
        self._pause = 0.0

    def __call__(self, state: RunState) -> RunState:
        self._exposed.moved(state.counts, state.rounds, total(state.left))
        with leaving_something(), watched(self._spark.tasks, self._show):
            if state.underway:
                self._start(state, state.underway, again=True)
            while True:
                state = self._begin_more(state)
                if not state.underway:
                    return self._write(state)
                self._ended += self._spark.ended(max(_PAUSE_SECONDS, self._pause))
                state = self._count(state)

    def _start(self, state: RunState, ranges: Sequence[OffsetRange], *, again: bool) -> None:
        """Save the state, then begin the ranges."""
        limits = limits_of(self._job.settings.pipeline, len(state.left), self._spark.cores())
        # Before the save: who goes on from what is saved is a later driver, however long this one stands still then.
        task = self._job.task(again, limits)
        self._job.begun(state)
        self._spark.submit(ranges, task, self._job.directory, at_once=self._job.at_once, done=self._job.done)

    def _begin_more(self, state: RunState) -> RunState:
        if self._stop.asked:
            return state
        room = self._spark.room(self._job.at_once) - len({each.tp for each in state.underway})
        if not (more := self._job.next.of(state, room)):
            return state
        state = state.begin(more)
        self._start(state, more, again=False)
        return state

    def _count(self, state: RunState) -> RunState:
        """The state with what has ended counted, if it may be."""
        whole, rest = state.whole(self._ended)
        if not whole or (self._job.together and len(whole) < len(state.underway)):
            return state
        began = time.monotonic()
        self._ended = rest
        counting = state.counting(whole)
        # Their ranges are cut anew: what is written of them now would stand beside it.
        if discarded := [each.file for each in whole if each not in counting and each.file]:
            self._job.begun(state)  # A driver that has taken this one's place may count them: then it ends here.
        for name in discarded:
            self._job.directory.delete(name)
        state = state.end(counting, began - self._counted_at)
        self._counted_at = began
        check_logs(self._job.settings, state, {each.range.tp: state.positions[each.range.tp] for each in counting})
        self._job.ended(state, counting)
        self._job.next.learn(counting)
        self._exposed.moved(state.counts, state.rounds, total(state.left))
        self._bar.moved(state)
        if time.monotonic() - self._written_at >= _FILE_SECONDS:
            state = self._write(state)
        self._pause = _MOST_OF_THE_TIME * (time.monotonic() - began)
        return state

    def _write(self, state: RunState) -> RunState:
        self._written_at = time.monotonic()
        if not state.tiles:
            return state
        write_tiles(self._job.directory, state.tiles, state.rounds)
        return state.written()

    def _show(self, tasks: Tasks) -> None:
        self._exposed.underway(tasks)
        self._bar.underway(tasks)
