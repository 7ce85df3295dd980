"""Reports of a job, by its driver: the plan of a `--dry-run`, progress while it runs (as metrics: `metrics_port`), its
result. For people, or with `--json` for programs.
"""

from __future__ import annotations

import re
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kunicorn.errors import ExitCode
from kunicorn.pipeline import DEFAULT_MASTER
from kunicorn.pipeline.plan import as_json
from kunicorn.pipeline.state import Counts, RunState
from kunicorn.pipeline.tasks.beside import beside
from kunicorn.positions import OffsetRange, skew, total
from kunicorn.text import Answer

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession


_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Tasks:
    """Spark's tasks underway, counted by their state."""

    all: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0
    """Tries, not tasks: each of these is made again, up to four times."""
    offsets: int = 0
    """Handled of the ranges underway, as far as the driver has heard."""
    tries: Sequence[str] = ()
    """Why tries failed of which nobody was told yet; not of all at a time."""


_MOST_TRIES = 20
"""Failed tries of a stage that are told at a time."""


def tasks_of(spark: SparkSession, told: dict[int, set[int]]) -> Tasks:
    """Spark's tasks underway. Asks the JVM. Raises what py4j does when that goes.

    `told`: Spark's numbers of the failed tries that the caller was told of, by their stage; those that are told now are
    added.
    """
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    return Tasks(
        sum(stage.numTasks for stage in stages),
        sum(stage.numCompletedTasks for stage in stages),
        sum(stage.numActiveTasks for stage in stages),
        sum(stage.numFailedTasks for stage in stages),
        tries=tuple(each for stage in stages for each in _failed(spark, stage, told.setdefault(stage.stageId, set()))),
    )


def _failed(spark: SparkSession, stage: SparkStageInfo, told: set[int]) -> Iterator[str]:
    """A line about each of the stage's tries that has failed and was not told."""
    if stage.numFailedTasks <= len(told):
        return
    java: Any = spark.sparkContext._jvm
    api = java.org.apache.spark.status.api.v1
    failed = java.java.util.ArrayList()
    failed.add(api.TaskStatus.FAILED)
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    # By their numbers: one that is new may be anywhere among those that were told.
    most = len(told) + _MOST_TRIES
    tries = store.taskList(stage.stageId, stage.currentAttemptId, 0, most, api.TaskSorting.ID, failed)
    for at in range(tries.size()):
        each = tries.apply(at)
        if (number := each.taskId()) in told:
            continue
        told.add(number)
        why = said_by_task(each.errorMessage().get()) if each.errorMessage().isDefined() else "without a reason"
        yield f"try {each.attempt() + 1} of a task failed, executor {each.executorId()}: {why}"


_OURS = re.compile(r"^kunicorn\.[\w.]+: (.*)$", re.MULTILINE)


def said_by_task(text: str) -> str:
    """Message of an exception of ours in Spark's account of a failed task; else its first line. Pure."""
    if found := _OURS.findall(text):
        return str(found[-1]).strip()
    if "Python worker exited unexpectedly" in text:
        return "a Python process died with its records in hand (killed, out of memory, or a crash in C code)"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0][:1000] if lines else "without a reason"


@contextmanager
def watched(ask: Callable[[], Tasks], show: Callable[[Tasks], None], every: float = _LOOK_SECONDS) -> Iterator[None]:
    """Show the tasks every so many seconds while the block runs, and none behind it. A failure to ask ends the watch:
    the job itself reports what is wrong.
    """

    def look(over: threading.Event) -> None:
        while not over.wait(every):
            try:
                found = ask()
            except Exception:
                return
            if not over.is_set():
                show(found)

    try:
        with beside(look, "underway"):
            yield
    finally:
        show(Tasks())


Say = Callable[[str], None]
_MINUTE, _HOUR = 60, 3600
_SELDOM = 30.0
"""Seconds between two lines where nothing has ended meanwhile."""


def counted_line(before: RunState, after: RunState, all_offsets: int) -> str:
    """What was counted last, as a line of a log."""
    line = f"{after.last_offsets:,} offsets in {after.last_seconds:.1f} s"
    left = all_offsets - after.done
    rate = after.last_offsets / max(after.last_seconds, 0.001)
    line += f" ({rate:,.0f}/s), " + (f"{left:,} left" if left else "none left")
    if left and rate:  # What is counted may have no offsets, as of a range that halts at its first record.
        line += f", about {duration(left / rate)}"
    failures = (after.counts.dead_letters - before.counts.dead_letters, after.counts.skipped - before.counts.skipped)
    return line + "".join(f", {n:,} {what}" for n, what in zip(failures, ("dead letters", "skipped"), strict=True) if n)


def duration(seconds: float) -> str:
    """Duration for people: 0.4 s, 34 s, 12 min, 3 h 20 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


class Bar:
    """Progress bar on a terminal; elsewhere a line whenever ranges are counted."""

    def __init__(self, state: RunState, say: Say) -> None:
        self._say = say
        self._state = state
        self._whole = total(state.ranges)
        self._counted_at = time.monotonic()
        self._silent_until = self._counted_at + _SELDOM
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("offsets"),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(elapsed_when_finished=True),
            )  # fmt: skip
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("handling", total=self._whole, completed=state.done, rate="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def underway(self, tasks: Tasks) -> None:
        """Show what is underway. Caller: the thread that watches it."""
        for why in tasks.tries:
            self._say(f"warning: {why}")
        if not tasks.all:
            return
        told = f"{tasks.done} of {tasks.all} tasks done" + (f", {tasks.failed} failed tries" if tasks.failed else "")
        if self._bar is not None:
            self._bar.update(self._task, description=told)
            if tasks.offsets:
                rate = tasks.offsets / max(time.monotonic() - self._counted_at, 0.001)
                done = self._state.done + tasks.offsets
                self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SELDOM
            self._say(f"underway: {tasks.offsets:,} offsets, {told}")

    def moved(self, state: RunState) -> None:
        """Show what is counted."""
        if self._bar is None:
            self._say(counted_line(self._state, state, self._whole))
        else:
            rate = f"{state.rate:,.0f}/s" if state.rate else ""
            self._bar.update(self._task, completed=state.done, rate=rate, description="handling")
        self._state = state
        self._counted_at = time.monotonic()
        self._silent_until = self._counted_at + _SELDOM


def command(job: str, *arguments: str, master: str) -> str:
    """Command by which a job goes on where it ran, for a shell. Pure."""
    where = () if master == DEFAULT_MASTER else ("--master", master)
    return shlex.join(["kunicorn", "pipeline", job, *arguments, *where])


class Finished(Answer, Protocol):
    """Result of a job that has ended without an error; something may be left to handle."""

    @property
    def code(self) -> ExitCode:
        """Exit code of the command."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Result of a job over ranges. Counts are the whole run's, over all the times it was resumed."""

    job: str
    run: str | None
    """Its id; None where none was begun, and for an export, which belongs to its target."""
    state: RunState
    go_on: str = ""
    """How to handle what is left: a command, or words."""
    notes: Sequence[str] = ()
    """What else there is to know, in sentences."""

    @property
    def code(self) -> ExitCode:
        return ExitCode.CLEAN if self.state.finished else ExitCode.NOT_ALL_COMMITTED

    def lines(self) -> Iterator[str]:
        state = self.state
        if state.rounds:
            yield from _counted(state)
        if left := total(state.left):
            yield f"left          {left:,} offsets"
        for tp, why in sorted(state.halted.items()):
            yield f"halted        {tp} at {state.positions[tp]}: {why}"
        if state.halted:
            yield "halted partitions go on with the record they halt at, once its cause is put right"
        if not state.finished:
            yield f"to go on: {self.go_on}"
        yield from self.notes

    def as_json(self) -> dict[str, object]:
        state = self.state
        return {
            "job": self.job,
            "run": self.run,
            "exit_code": self.code.value,
            "finished": state.finished,
            **asdict(state.counts),
            "seconds": round(state.seconds, 3),
            "offsets_per_second": state.rate,
            "offsets_left": total(state.left),
            "positions": as_json(state.positions),
            "halted": [
                {**tp._asdict(), "offset": state.positions[tp], "why": why} for tp, why in sorted(state.halted.items())
            ],
            "go_on": None if state.finished else self.go_on,
            "notes": list(self.notes),
        }


def _counted(state: RunState) -> Iterator[str]:
    pace = f", {state.rate:,.0f} offsets/s" if state.rate else ""
    yield f"handled       {state.counts.records:,} records in {duration(state.seconds)}{pace}"
    yield f"dead letters  {state.counts.dead_letters:,}"
    yield f"skipped       {state.counts.skipped:,}"
    if state.counts.filtered:
        yield f"filtered      {state.counts.filtered:,} of those handled, which the handler never saw"


@dataclass(frozen=True, slots=True)
class FinishedStream:
    """Result of a stream since its last start: its checkpoint has no counts."""

    run: str
    counts: Counts
    batches: int
    """Micro-batches that were handled."""
    finished: bool
    """Whether everything is handled that was there at its start: never so without `--available-now`."""
    go_on: str = ""
    """The command by which it goes on."""

    @property
    def code(self) -> ExitCode:
        """Exit code. A stream that is halted or killed raises and never comes here."""
        return ExitCode.CLEAN if self.finished else ExitCode.NOT_ALL_COMMITTED

    def lines(self) -> Iterator[str]:
        letters, skipped = self.counts.dead_letters, self.counts.skipped
        filtered = f", {self.counts.filtered:,} of them filtered" if self.counts.filtered else ""
        yield f"handled       {self.counts.records:,} records{filtered}, {letters:,} dead letters, {skipped:,} skipped"
        if not self.finished:
            yield f"stopped: {self.go_on} goes on from the checkpoint"

    def as_json(self) -> dict[str, object]:
        told = {"job": "stream", "run": self.run, "exit_code": self.code.value, "finished": self.finished}
        go_on = None if self.finished else self.go_on
        return {**told, **asdict(self.counts), "micro_batches": self.batches, "go_on": go_on}


_SHOWN = 50


@dataclass(frozen=True, slots=True)
class DryRun:
    """Plan of a job, for `--dry-run`."""

    ranges: Sequence[OffsetRange]
    pace: float | None
    """Offsets a second of an earlier run of the kind; None if there is none."""
    notes: Sequence[str] = ()
    """What else there is to know, in sentences."""

    @property
    def seconds(self) -> float | None:
        """Estimated duration, at the pace of earlier runs."""
        return None if self.pace is None else total(self.ranges) / self.pace

    def as_json(self) -> dict[str, object]:
        """Every range, however many. In offsets: how many records they hold only reading would tell."""
        return {
            "ranges": [{**each._asdict(), "offsets": each.size} for each in self.ranges],
            "offsets": total(self.ranges),
            "offsets_per_second": self.pace,
            "estimated_seconds": self.seconds,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The first ranges, and sums."""
        ranges = self.ranges
        width = max([len(str(each.tp)) for each in ranges[:_SHOWN]], default=0)
        for each in ranges[:_SHOWN]:
            yield f"{each.tp!s:<{width}}  {each.start:>14,} to {each.stop:>14,}  {each.size:>14,} offsets"
        if len(ranges) > _SHOWN:
            yield f"and {len(ranges) - _SHOWN} more partitions"
        whole = total(ranges)
        yield f"{len(ranges)} partitions, {whole:,} offsets (compacted and transactional topics have fewer records)"
        if len(ranges) > 1 and (uneven := skew(ranges)) >= 2:
            median = statistics.median_low([each.size for each in ranges])
            yield f"the largest partition is {uneven:.1f} times the median ({median:,}) and will be the last to finish"
        if self.seconds is None:
            yield "estimated time: unknown, as no earlier run of this kind is in pipeline.directory"
        else:
            yield f"estimated time: {duration(self.seconds)} at the last run's {self.pace:,.0f} offsets/s"
        yield from self.notes
