"""`kunicorn pipeline stream`: the handler in Spark's Structured Streaming, micro-batch after micro-batch.

1. The stream's position is in Spark's checkpoint. A micro-batch that was cut off is handled again under the same
   ranges, so that its outcome rows are replaced: the table has every offset once.
2. A micro-batch is done once its letters are acknowledged. Its offsets are then committed for a group of the stream's
   own, which nobody joins: for dashboards and alerts that look at groups. Where that fails the stream goes on, and says
   so. Spark writes the micro-batch down after that.
3. A record that halts ends the stream: a micro-batch has no way to leave one partition behind.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kunicorn.clients.session import JOB_PATIENCE, cluster_session
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.pipeline.group_offsets import commit
from kunicorn.pipeline.metrics_port import Exposed
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.range_job import Stop, leaving_something, stopping
from kunicorn.pipeline.report import FinishedStream, Say, Tasks, command, said_by_task, watched
from kunicorn.pipeline.spark import (
    Job,
    JobFailed,
    check_installed,
    check_streams,
    in_hand_text,
    open_session,
    stopped_behind,
    told_without_executors,
)
from kunicorn.pipeline.state import Counts, Runs, joined, tiles_of, write_micro_batch
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile, check_handlers, told_of_differences
from kunicorn.pipeline.tasks.limits import TaskLimits, limits_of
from kunicorn.pipeline.tasks.range_outcomes import Summary, of_micro_batch
from kunicorn.pipeline.tasks.ranges import SUMMARY, FromSource, HandleRanges, MicroBatch, driver_id, summaries
from kunicorn.positions import Offsets
from kunicorn.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_SECONDS = 0.5
_CHECKPOINT_SECONDS = 20.0
"""How long Spark may take to write down that a micro-batch is through, when the stream is stopped."""


class StreamHalted(ServiceError):
    """A record halts its partition, and with it the stream."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


class _StopAsked(Exception):
    """Ends the query before another micro-batch is handled."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Trigger of micro-batches: every so many seconds, or until everything of now is handled."""

    every_seconds: float = 10.0
    available_now: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.every_seconds):
            raise ConfigError(f"--every {self.every_seconds} is no number of seconds")

    def trigger(self) -> dict[str, Any]:
        """Arguments of `DataStreamWriter.trigger`."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": f"{round(self.every_seconds * 1000)} milliseconds"}


@dataclass(slots=True)
class Batches:
    """Function for every micro-batch; called by Spark in a thread of the driver."""

    settings: Settings
    outcomes: Directory
    stop: Stop
    exposed: Exposed
    say: Say
    begin: Callable[[int, bool], None] = lambda number, first: None
    """Called before each micro-batch's tasks, with its number, and whether none was through before it."""
    driver: str = field(default_factory=driver_id)
    counts: Counts = field(default_factory=Counts)
    failure: ServiceError | None = None
    turned_down: bool = False
    """Whether a micro-batch was not begun as the stream is to stop: that ends the query by an error which is none."""
    busy: bool = False
    latest: int = -1
    """Number of the last micro-batch that is done."""
    through: int = 0
    """Count of micro-batches that are done."""

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Handle one micro-batch. An exception ends the stream."""
        if self.stop.asked:
            self.turned_down = True
            raise _StopAsked
        self.busy = True
        try:
            with leaving_something():
                self.begin(number, not self.through)
                self._finish(summaries(frame.collect()), number)
        except ServiceError as error:
            self.failure = error
            raise
        finally:
            self.busy = False

    def _finish(self, found: Sequence[Summary], number: int) -> None:
        if halted := [each for each in found if each.halted is not None]:
            raise StreamHalted(
                f"the handler halts {halted[0].halted}: the stream ends before micro-batch {number}, which is handled "
                f"again as a whole; put the cause right, or let handler.on_failure say dead_letter or skip"
            )
        tiles, driver = joined(tiles_of(found)), of_micro_batch(self.driver, number)
        write_micro_batch(self.outcomes, tiles, number, driver, first=not self.through)
        letters = sum(each.dead_letters for each in found)
        ends = {each.range.tp: each.until for each in sorted(found, key=lambda each: each.range)}
        self._mirror(ends, number)
        self.counts, self.latest, self.through = self.counts.plus(found), number, self.through + 1
        self.exposed.moved(self.counts, number + 1, None)
        records = sum(each.records for each in found)
        self.say(f"micro-batch {number}: {records:,} records" + (f", {letters:,} dead letters" if letters else ""))

    def _mirror(self, ends: Offsets, number: int) -> None:
        """Commit the micro-batch's offsets for dashboards. The checkpoint has them: no failure here ends the stream."""
        group = self.settings.stream_group
        try:
            with cluster_session(self.settings, group, patience=JOB_PATIENCE) as session:
                commit(session, ends, f"spark:{group}:{number}")
        except ServiceError as error:
            self.say(
                f"warning: the offsets of micro-batch {number} are not committed for group {group}, whose lag is too "
                f"high on dashboards until the next commit; the stream goes on: {error}"
            )


def stream(
    settings: Settings, file: SettingsFile, master: str, run: str, start: str | None, pace: Pace, say: Say
) -> FinishedStream:
    """Run until a signal comes, or with `available_now` until everything of now is handled. Blocks.

    `start`: start of a new stream, as `startingOffsets` has it; one that has a checkpoint goes on. Raises a
    `ServiceError` where it ends early, but for a signal: then it is not `finished`.
    """
    check_installed()
    check_streams("a stream")
    check_handlers(settings)
    if start is not None:
        bounds_of({"startingOffsets": start}, batch=False)  # Spark would tell of it as of a failure that may pass.
    place = Runs(settings.pipeline.directory).enter_stream(run, settings.handler.entrypoint, settings.stream_group)
    told_of_differences(settings, say)
    spark = open_session(settings, master, run)
    with stopped_behind(spark):
        job = Job(spark, file)
        with told_without_executors(say):
            job.check_executors(place / "outcomes")
        with stopping() as stop, Exposed(settings.http, "stream", say) as exposed:

            def begin(number: int, first: bool) -> None:
                MicroBatch(_limits(settings, job.cores()), first, number).tell(spark.sparkContext)

            batches = Batches(settings, place / "outcomes", stop, exposed, say, begin)
            source = (
                spark.readStream.format("kunicorn")
                .option("config", file.path)
                .option("rows", "ranges")
                .option("startingOffsets", start or _policy(settings, place / "checkpoint"))
                .load()
            )
            handled = source.mapInArrow(
                FromSource(HandleRanges(file, batches.outcomes, driver=batches.driver)), SUMMARY
            )
            writer = handled.writeStream.queryName(run).option("checkpointLocation", f"{place.url}/checkpoint")
            query = writer.foreachBatch(batches).trigger(**pace.trigger()).start()
            say(f"stream {run}: checkpoint in {place.url}, offsets mirrored to group {settings.stream_group}")
            with _watched(job, exposed, say):
                ended = _attend(query, batches, stop, job.tries)
    go_on = command("stream", "--config", file.path, "--run", run, master=master)
    return FinishedStream(run, batches.counts, batches.through, ended and pace.available_now, go_on)


def _watched(job: Job, exposed: Exposed, say: Say) -> AbstractContextManager[None]:
    """Context in which the tasks underway are shown as metrics, and each try that fails is told: of Spark's own
    warnings none is shown."""

    def show(tasks: Tasks) -> None:
        exposed.underway(tasks)
        for why in tasks.tries:
            say(f"warning: {why}")

    return watched(job.tasks, show)


def _limits(settings: Settings, cores: int) -> TaskLimits:
    """Limits of a micro-batch's tasks. Asks the brokers, where there are rates to share out."""
    pipeline = settings.pipeline
    rates = pipeline.max_records_per_second, pipeline.max_bytes_per_second
    return limits_of(pipeline, 0 if rates == (None, None) else _partitions(settings), cores)


def _partitions(settings: Settings) -> int:
    """How many there are now: so many tasks has a micro-batch."""
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        wanted = settings.assign.wanted
        return len(session.partitions(settings.group.topics or wanted.topics, numbered=wanted.numbered))


def _policy(settings: Settings, checkpoint: Directory) -> str:
    """Where the stream begins if it is a new one. Raises `ConfigError` where that is not said, and it is one."""
    if (reset := settings.group.auto_offset_reset) != "none":
        return reset
    if not any(name.isdigit() for name in (checkpoint / "offsets").names("", below=False)):
        raise ConfigError('group.auto_offset_reset = "none": say where a new stream begins with --starting-offsets')
    return "earliest"  # Of no account: Spark goes on with the checkpoint's offsets.


def _attend(
    query: StreamingQuery, batches: Batches, stop: Stop, tries: int, wait: Callable[[float], None] = time.sleep
) -> bool:
    """Wait for the query's end, or end it once the micro-batch underway is written down. Whether it ended by itself.
    `tries`: how many a task has. `wait` sleeps, in seconds.

    Raises the `ServiceError` that has ended it: after a signal, too, for whoever stops a stream must hear that the
    micro-batch underway has failed.
    """
    from pyspark.errors import StreamingQueryException

    asked_at, stopped = None, False
    try:
        while query.isActive:
            if stop.asked and asked_at is None:
                asked_at = time.monotonic()
            if (
                asked_at is not None
                and not batches.busy
                and (_written(query, batches.latest) or time.monotonic() - asked_at > _CHECKPOINT_SECONDS)
            ):
                stopped = True
                query.stop()
                break
            # Not by the query's own way to wait: a second signal would come in the middle of a question to the JVM.
            wait(_LOOK_SECONDS)
        if (error := query.exception()) is not None:
            raise error
    except StreamingQueryException as error:
        if batches.failure is not None:
            raise batches.failure from error
        if not batches.turned_down:
            told = said_by_task(str(error))
            raise JobFailed(f"Spark ended the stream: {told}{in_hand_text(batches.outcomes, tries)}") from error
        return False
    return not stopped


def _written(query: StreamingQuery, batch: int) -> bool:
    """Whether the checkpoint has this micro-batch: Spark reports progress after that."""
    progress = query.lastProgress
    return batch < 0 or (progress is not None and int(progress["batchId"]) >= batch)
