"""Spark as a job's driver uses it: its session with the handler's tasks in it, and the progress of a round.

1. A range that is done is counted by an accumulator, when its task ends, wherever that ran.
2. A range underway is noted in its task's mapped file (`kunicorn.pipeline.in_hand_file`), which the driver reads where
   it can see it: on the same machine, or on a volume that both have. Elsewhere only ranges that are done count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunicorn.allocator import library_of, with_library
from kunicorn.clients.range_reader import Window
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, ServiceError
from kunicorn.handler.extras import install_extra
from kunicorn.pipeline.executors import CHECKED, CheckExecutor, SettingsFile
from kunicorn.pipeline.in_hand_file import died_in_hand, noted_so_far
from kunicorn.pipeline.report import Tasks, said_by_task, tasks_of
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.task import SUMMARY, FromNumbers, HandleRanges, Summary, Task, summaries
from kunicorn.positions import OffsetRange, TopicPartition, largest_first, total
from kunicorn.settings import PipelineSettings, Settings

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession


SUBMITTED = "submitted"
"""`--master` of a driver that spark-submit or an operator has started: the master is settled."""
_JAVA = 17
"""Oldest version of Java that Spark 4 runs on."""
_JAVA_REMEDY = (
    f"install Java {_JAVA} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
)
_ATTEMPTS = 4
"""Tries of a task, as on a cluster; `local[*]` alone has one, and a broker's restart would end the run."""
_JAVA_SECONDS = 30.0

_SETTINGS: Mapping[str, str] = {
    # A range that two attempts handle at the same time is handled twice.
    "spark.speculation": "false",
    # The bar of the job itself would be painted over.
    "spark.ui.showConsoleProgress": "false",
    # What a job has to say it says itself; Spark's warnings are about its own inner life.
    "spark.log.level": "FATAL",
    # Times in the tables are UTC wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    # A round is one scan and one `mapInArrow`: Java made and compiled for it costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.metrics.namespace": "kunicorn",
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}

_LOCAL_SETTINGS: Mapping[str, str] = {
    # The JVM shares the machine with the tasks, and no record passes through it: the optimising compiler alone took
    # half a second of each round's processors.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def check_installed() -> None:
    """Raise `ConfigError` with what to install where PySpark or a Java is missing. Runs `java -version`."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: {install_extra('pipeline')}") from error
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs a Java, and there is none in PATH: {_JAVA_REMEDY}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark needs a Java, and {java} cannot be run ({error}): {_JAVA_REMEDY}") from error
    version = re.search(r'version "(\d+)', told.stderr + told.stdout)
    if told.returncode != 0 or version is None or int(version[1]) < _JAVA:
        found = (told.stderr or told.stdout).strip().partition("\n")[0]
        raise ConfigError(f"Spark needs Java {_JAVA} or later, and {java} is {found or 'silent'}: {_JAVA_REMEDY}")


def spark_settings(pipeline: PipelineSettings, master: str, name: str) -> dict[str, str]:
    """Spark's settings for a session. `master` as Spark knows it. Pure."""
    return {
        **_SETTINGS,
        **(_LOCAL_SETTINGS if master.startswith("local[") or master == "local" else {}),
        **pipeline.spark,
        "spark.speculation": "false",
        **({} if master == SUBMITTED else {"spark.master": patient(master)}),
        "spark.app.name": name,
    }


def patient(master: str) -> str:
    """The master, a local one with as many tries of a task as a cluster has. Pure."""
    if master == "local":
        return f"local[1,{_ATTEMPTS}]"
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{_ATTEMPTS}]", master)


def open_session(settings: Settings, master: str, name: str) -> SparkSession:
    """Start Spark, or connect to a cluster's, and register the source. Blocks for seconds. Raises `ConfigError`."""
    check_installed()
    if master.startswith("sc:"):
        raise ConfigError(
            f"--master {master} is a server of Spark Connect, where jobs cannot see their tasks: name the cluster "
            f"itself (spark://, k8s://, yarn), or use the source and transform from a connected session"
        )
    if master.startswith("local"):
        _share_python()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from kunicorn.pipeline.source import KunicornDataSource

    builder = SparkSession.builder
    for setting, value in spark_settings(settings.pipeline, master, name).items():
        builder = builder.config(setting, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise ConfigError(f"Spark does not start with --master {master}: {error}") from error
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        # Of a session that was there already, such as a notebook's: its own settings were not asked for.
        raise ConfigError(
            "Spark runs with spark.speculation = true, and a range that two tasks handle at once is handled twice: "
            "start the cluster, or the session that is there already, without it"
        )
    # Of Spark's Python processes alone: `spark.executorEnv` would be the JVMs', too.
    spark.sparkContext.environment.update(with_library({}, library_of(settings.workers.allocator, os.environ)))
    spark.dataSource.register(KunicornDataSource)
    return spark


def _share_python() -> None:
    """Make Spark's Python processes on this machine use this Python and this process's search path.

    By default they take the first `python3` in PATH, and know nothing of this process's search path.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    entries = [os.getcwd(), *filter(None, sys.path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))


_MOST_NOTES = 500
"""Ranges of a round whose notes are looked at: on a shared volume more would take longer than the pause between two
looks, and so many ranges that end tell enough.
"""


class Observed:
    """Progress of one round. Made by the driver's main thread, read by the one that watches."""

    def __init__(self, through: Accumulator[int], hands: Directory, ranges: Sequence[OffsetRange]) -> None:
        """`through` is the accumulator that tasks add to; `hands` is where they note their records in hand."""
        self._through, self._hands, self._ranges = through, hands, frozenset(ranges)
        self._all = total(ranges)
        self._most = 0

    def offsets(self) -> int:
        """Number of offsets handled. Reads files.

        Never falls: between the end of a range and that of its task neither file nor accumulator knows of it, and a
        task that is tried again begins anew. Nor is it more than there are: Spark may run a task twice.
        """
        notes = noted_so_far(self._hands, self._ranges) if len(self._ranges) <= _MOST_NOTES else 0
        so_far = self._through.value + notes
        self._most = max(self._most, min(so_far, self._all))
        return self._most


_MOST_CHECKS = 64


class JobFailed(ServiceError):
    """Spark gave a round up; nothing of it counts."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


@dataclass(slots=True)
class Job:
    """Spark session that runs ranges through a task, on every executor there is."""

    spark: SparkSession
    file: SettingsFile
    _observed: Observed | None = field(default=None, init=False)
    """The round underway, or the last one."""

    def check_executors(self, directory: Directory, *, handler: bool = True) -> None:
        """Check that executors have settings, handler and directory. Raises `ConfigError`, `HandlerLoadError`.

        One task for each is all that can be asked for: Spark decides which executor runs it, and some may come later.
        What matters for their records every task looks at again: settings and versions.
        """
        # Of another driver's it must not be: each removes its own.
        directory.write(probe := f"_probe-{uuid.uuid4().hex}", b"")
        tasks = min(_MOST_CHECKS, self._parallelism())
        check = CheckExecutor(self.file, directory, probe, handler)
        try:
            found = self._collect(self.spark.range(0, tasks, 1, tasks).mapInArrow(check, CHECKED))
        finally:
            directory.delete(probe)
        for row in found:
            raise (HandlerLoadError if row["handler"] else ConfigError)(row["problem"])

    def handle(
        self,
        ranges: Sequence[OffsetRange],
        outcomes: Directory,
        window: Window | None = None,
        done: Mapping[TopicPartition, Collection[int]] | None = None,
    ) -> list[Summary]:
        """Have the ranges' records handled, those of the window and not `done` already, one task a range. Raises
        `JobFailed`.
        """
        try:
            return self.run(ranges, HandleRanges(self.file, outcomes, window, done or {}), outcomes)
        except JobFailed as error:
            raise JobFailed(f"{error}{in_hand_text(outcomes)}") from error

    def run(self, ranges: Sequence[OffsetRange], task: Task, hands: Directory) -> list[Summary]:
        """Run any task over the ranges; a summary each. `hands`: where it notes its records in hand. Raises
        `JobFailed`.
        """
        planned = largest_first(ranges)
        through = self.spark.sparkContext.accumulator(0)
        self._observed = Observed(through, hands, planned)
        numbers = self.spark.range(0, len(planned), 1, len(planned))
        return summaries(self._collect(numbers.mapInArrow(FromNumbers(planned, task, through), SUMMARY)))

    def tasks(self) -> Tasks:
        """Tasks of the round underway. Caller: a thread that watches; see `kunicorn.pipeline.report`."""
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
    """Records that processes died with, for the end of a message; empty if none did. Reads files."""
    if not (found := died_in_hand(outcomes)):
        return ""
    return (
        f". In hand at the end: {', '.join(found)}. After workers.max_crashes deaths a record is kept from the "
        f"handler; going on gives it its next try"
    )


def asked_of_spark(ask: Callable[[], list[Any]]) -> list[Any]:
    """Rows of a query. Raises `JobFailed` with the message of a failed task, without Spark's stack around it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return ask()
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise JobFailed(f"Spark gave the round up, and nothing of it counts: {said_by_task(str(error))}") from error
