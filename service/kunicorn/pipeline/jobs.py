"""A session with the handler's tasks in it: what a job asks of Spark. Everything here is the driver's, and blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, ServiceError
from kunicorn.pipeline.checks import CHECKED, CheckExecutor
from kunicorn.pipeline.executors import SettingsFile
from kunicorn.pipeline.hands import died_in_hand
from kunicorn.pipeline.observed import Observed
from kunicorn.pipeline.ranges import OffsetRange, largest_first
from kunicorn.pipeline.reading import Window
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import SUMMARY, FromNumbers, HandleRanges, Summary, Task, summaries
from kunicorn.pipeline.underway import Tasks, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROBE = "_probe"
_MOST_CHECKS = 64


class JobFailed(ServiceError):
    """Spark gave a round up; nothing of it counts."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


@dataclass(slots=True)
class Job:
    """Runs ranges through a task, on every executor there is."""

    spark: SparkSession
    file: SettingsFile
    _observed: Observed | None = field(default=None, init=False)
    """The round underway, or the last one."""

    def check_executors(self, directory: Directory, *, handler: bool = True) -> None:
        """See that executors have settings, handler and directory. Raises `ConfigError`, `HandlerLoadError`.

        A task each is all that can be asked for: Spark decides who runs it.
        """
        directory.write(_PROBE, b"")
        tasks = min(_MOST_CHECKS, self._parallelism())
        check = CheckExecutor(self.file, directory, _PROBE, handler)
        found = self._collect(self.spark.range(0, tasks, 1, tasks).mapInArrow(check, CHECKED))
        for row in found:
            raise (HandlerLoadError if row["handler"] else ConfigError)(row["problem"])

    def handle(self, ranges: Sequence[OffsetRange], outcomes: Directory, window: Window | None = None) -> list[Summary]:
        """Have the records handled, those of the window, one task a range. Raises `JobFailed`."""
        try:
            return self.run(ranges, HandleRanges(self.file, outcomes, window), outcomes)
        except JobFailed as error:
            raise JobFailed(f"{error}{in_hand_text(outcomes)}") from error

    def run(self, ranges: Sequence[OffsetRange], task: Task, hands: Directory) -> list[Summary]:
        """Any task over the ranges; a summary each. `hands`: where it notes what is in hand. Raises `JobFailed`."""
        planned = largest_first(ranges)
        through = self.spark.sparkContext.accumulator(0)
        self._observed = Observed(through, hands, planned)
        numbers = self.spark.range(0, len(planned), 1, len(planned))
        return summaries(self._collect(numbers.mapInArrow(FromNumbers(planned, task, through), SUMMARY)))

    def tasks(self) -> Tasks:
        """Those of the round underway. Caller: a thread that watches; see `kunicorn.pipeline.underway`."""
        found = tasks_of(self.spark)
        return found if self._observed is None else replace(found, offsets=self._observed.offsets())

    def _collect(self, frame: DataFrame) -> list[Any]:
        return asked_of_spark(lambda: list(frame.collect()))

    def _parallelism(self) -> int:
        from pyspark.errors import PySparkException

        try:
            return max(1, int(self.spark.sparkContext.defaultParallelism))
        except PySparkException:  # Spark Connect has no context to ask.
            return 2


def in_hand_text(outcomes: Directory) -> str:
    """What processes died with, for the end of a message; empty if none did. Reads files."""
    if not (found := died_in_hand(outcomes)):
        return ""
    return (
        f". In hand at the end: {', '.join(found)}. After workers.max_crashes deaths a record is kept from the "
        f"handler; going on gives it its next try"
    )


def asked_of_spark(ask: Callable[[], list[Any]]) -> list[Any]:
    """The rows. Raises `JobFailed` with what a task said, without Spark's stack around it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return ask()
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise JobFailed(f"Spark gave the round up, and nothing of it counts: {said_by_task(str(error))}") from error


_OURS = re.compile(r"^kunicorn\.[\w.]+: (.*)$", re.MULTILINE)


def said_by_task(text: str) -> str:
    """The message of an exception of ours in Spark's account of a failed task; else its first line. Pure."""
    if found := _OURS.findall(text):
        return str(found[-1]).strip()
    if "Python worker exited unexpectedly" in text:
        return "a Python process died with its records in hand (killed, out of memory, or a crash in C code)"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0][:1000] if lines else "without a reason"
