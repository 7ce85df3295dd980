"""Spark as a job's driver uses it: its session, and ranges underway on it.

A range underway is noted in its task's mapped file (`kunicorn.pipeline.tasks.in_hand_file`), which the driver reads
where it can see it: on the same machine, or on a volume that both have. Elsewhere only ranges that have ended count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark
from pyspark.accumulators import AccumulatorParam

from kunicorn.allocator import library_of, with_library
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, ServiceError
from kunicorn.pipeline.report import Say, Tasks, said_by_task, tasks_of
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.beside import beside
from kunicorn.pipeline.tasks.executor_process import CHECKED, CheckExecutor, SettingsFile
from kunicorn.pipeline.tasks.in_hand_file import died_in_hand, noted_so_far
from kunicorn.pipeline.tasks.in_hand_notes import TRIES
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import NOTHING_DONE, Done, FromRows, Task, ranges_text
from kunicorn.positions import OffsetRange, largest_first
from kunicorn.settings import PipelineSettings, Settings
from kunicorn.settings.pipeline import has_secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SUBMITTED = "submitted"
"""`--master` of a driver that spark-submit or an operator has started: the master is settled."""
_OLDEST = (3, 5)
"""Version of Spark that jobs and `transform` run on, and every later one."""
_WITH_SOURCE = (4, 0)
"""The first with data sources in Python."""
_WITH_FILTERS = (4, 1)
_WITH_STREAMS = (4, 2)
"""The first that tells a stream's reader where the next micro-batch begins: an older one could not find out what was
lost since the checkpoint, nor keep to a limit."""
_JAVA = 17
"""Oldest version of Java that Spark 4 runs on, and that anybody is told to install."""
_JAVA_OF_SPARK_3 = 8
"""What clusters of Spark 3.5 may still have."""
_JAVA_REMEDY = (
    f"install Java {_JAVA} or later (Debian and Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
)
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
    # A job of ranges is one scan and one `mapInArrow`: Java made and compiled for it costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    # Ranges are rows that the driver has, each a task of its own.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.leafNodeDefaultParallelism": "1000000",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.metrics.namespace": "kunicorn",
    "spark.metrics.conf.*.sink.prometheusServlet.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}

_LOCAL_SETTINGS: Mapping[str, str] = {
    # The JVM shares the machine with the tasks, and no record passes through it: the optimising compiler alone took
    # half a second of processors for each job of ranges.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def check_installed() -> None:
    """Raise `ConfigError` with what to install where PySpark is too old, or a Java is missing. Runs `java -version`."""
    if _version() < _OLDEST:
        raise ConfigError(
            f"PySpark is {pyspark.__version__}, and jobs need Spark 3.5 or later: install the cluster's version"
        )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs a Java, and there is none in PATH: {_JAVA_REMEDY}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Spark needs a Java, and {java} cannot be run ({error}): {_JAVA_REMEDY}") from error
    # Java 8 calls itself 1.8.
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    oldest = _JAVA if _version() >= (4,) else _JAVA_OF_SPARK_3
    if told.returncode != 0 or version is None or int(version[1]) < oldest:
        found = (told.stderr or told.stdout).strip().partition("\n")[0]
        raise ConfigError(f"Spark needs Java {oldest} or later, and {java} is {found or 'silent'}: {_JAVA_REMEDY}")


def check_master(master: str) -> None:
    """Raise `ConfigError` for a master that no job runs on. Asks nobody: whether it is there only Spark finds out."""
    if master.startswith("sc:"):
        raise ConfigError(
            f"--master {master} is a server of Spark Connect, where jobs cannot see their tasks: name the cluster "
            f"itself (spark://, k8s://, yarn), or use the source and transform from a connected session"
        )


def _version() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2]))


def has_source() -> bool:
    """Whether this PySpark has what the source `kunicorn` is made of."""
    return _version() >= _WITH_SOURCE


def _check(oldest: tuple[int, ...], who: str) -> None:
    if _version() < oldest:
        raise ConfigError(
            f"{who} needs Spark {'.'.join(map(str, oldest))} or later, and PySpark is {pyspark.__version__}: backfill, "
            f"catch-up, export, reconcile and transform run on this one"
        )


check_source, check_filters, check_streams = (
    partial(_check, oldest) for oldest in (_WITH_SOURCE, _WITH_FILTERS, _WITH_STREAMS)
)
"""Each raises `ConfigError`, for whom it is given, where this PySpark lacks that."""


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
    """The master, a local one with as many tries of a task as a cluster has: `local[*]` alone has one, and a broker's
    restart would end the run. Pure.
    """
    if master == "local":
        return f"local[1,{TRIES}]"
    return re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{TRIES}]", master)


def open_session(settings: Settings, master: str, name: str) -> SparkSession:
    """Start Spark, or connect to a cluster's, and register the source. Blocks for seconds. Raises `ConfigError`."""
    check_installed()
    check_master(master)
    if master.startswith("local"):
        _share_python()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for setting, value in (told := spark_settings(settings.pipeline, master, name)).items():
        builder = builder.config(setting, value)
    try:
        _launch(told)
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        # Of a master that the JVM refuses, or a port that it does not get, there is a stack around what and why.
        why = re.findall(r"^(?:: |Caused by: )(.+)$", text := str(error), re.MULTILINE)
        said = "; ".join(dict.fromkeys([why[0], why[-1]])) if why else text
        raise ConfigError(f"Spark does not start with --master {master}: {said}") from error
    if not hasattr(spark, "sparkContext"):
        # Of an environment that connects every session by itself, whatever the master: SPARK_REMOTE, Databricks.
        raise ConfigError(
            f"with --master {master} the session here is one of Spark Connect, where jobs cannot see their tasks: run "
            f"them where Spark's own context is (on Databricks: access mode Dedicated), or use the source and transform"
        )
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        # Of a session that was there already, such as a notebook's: its own settings were not asked for.
        raise ConfigError(
            "Spark runs with spark.speculation = true, and a range that two tasks handle at once is handled twice: "
            "start the cluster, or the session that is there already, without it"
        )
    # Of Spark's Python processes alone: `spark.executorEnv` would be the JVMs', too.
    spark.sparkContext.environment.update(with_library({}, library_of(settings.workers.allocator, os.environ)))
    if has_source():
        from kunicorn.pipeline.source import KunicornDataSource

        spark.dataSource.register(KunicornDataSource)
    return spark


_AT_THE_START = re.compile(r"spark\.driver\.extra|spark\.(kerberos|yarn)\.keytab$")
"""Settings that count only where a JVM starts: its own options, and the keytab's path, by which it logs in."""


def _launch(settings: Mapping[str, str]) -> None:
    """Start the JVM without the secrets among the settings, which it is told once it runs: PySpark would make arguments
    of them, which everybody on this machine sees.
    """
    from pyspark import SparkConf, SparkContext

    plain = [each for each in settings.items() if _AT_THE_START.match(each[0]) or not has_secret(*each)]
    if len(plain) < len(settings):
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(plain))


def _share_python() -> None:
    """Make Spark's Python processes on this machine use this Python and this process's search path.

    By default they take the first `python3` in PATH, and know nothing of this process's search path.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    entries = [os.getcwd(), *filter(None, sys.path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))


_MOST_NOTES = 500
"""Ranges underway whose notes are looked at: on a shared volume more would take longer than the pause between two
looks, and so many ranges that end tell enough.
"""
_BUSY = 2
"""Tasks underway for each core of the executors: a core that is free has its next one at once."""


_MOST_CHECKS = 64
_FEW = 8
"""Ranges may be underway in any case: Spark counts its executors only once they have come."""


class _Collected(NamedTuple):
    """A Spark job that is over."""

    ranges: Sequence[OffsetRange]
    error: Exception | None


class Arrivals:
    """Value of the accumulator in the driver: what arrives is put into a queue. Caller: Spark's own thread."""

    def __init__(self, queue: Queue[Any]) -> None:
        self._queue = queue

    def extend(self, summaries: Iterable[Summary]) -> None:
        """Take in what a task has told."""
        for each in summaries:
            self._queue.put(each)


class Told(AccumulatorParam):  # type: ignore[type-arg]
    """Accumulator of summaries: a list in a task, which Spark sends to the driver when the task has ended."""

    def zero(self, value: Any) -> list[Summary]:
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        value1.extend(value2)
        return value1


NOTHING = "nothing boolean"


def rows_frame(spark: SparkSession, texts: Sequence[str], column: str) -> DataFrame:
    """Frame with a row for each text, and a task for each row."""
    from pandas import DataFrame as Rows  # type: ignore[import-untyped]

    return spark.createDataFrame(Rows({column: list(texts)}), f"{column} string")


def shared_out(ranges: Sequence[OffsetRange], cores: int, at_once: int) -> list[list[OffsetRange]]:
    """The ranges of each task, the largest first; a task has several, `at_once` at most, if there are more than cores.
    Of a partition that was cut no two pieces are in one task. Pure.
    """
    planned = largest_first(ranges)
    if at_once == 1:
        return [[each] for each in planned]
    count = min(len(planned), max(cores, -(-len(planned) // at_once)))
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    for number, each in enumerate(planned):
        first = tasks[number % count]
        if any(other.tp == each.tp for other in first):
            tasks.append([each])
        else:
            first.append(each)
    return tasks


_EXECUTORS_SECONDS = 30.0


@contextmanager
def told_without_executors(say: Say, every: float = _EXECUTORS_SECONDS) -> Iterator[None]:
    """Say every so many seconds that no executor has come, while the block waits for the first ones: of Spark's own
    warnings none is shown. `say` is called in a thread of its own. Caller: a driver.
    """

    def tell(over: threading.Event) -> None:
        waited = 0.0
        while not over.wait(every):
            waited += every
            say(
                f"no executor has done anything for {waited:.0f} s: see that the cluster has room for them, that their "
                f"image can be pulled, and that they reach this driver"
            )

    with beside(tell, "executors"):
        yield


class JobFailed(ServiceError):
    """Spark gave up; nothing that is underway counts."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


class Job:
    """Spark session that runs ranges through a task. Caller: the driver's main thread.

    Ranges are submitted as Spark jobs, several at the same time, each collected by a thread. What a range has come to
    is told by an accumulator when its task has ended, however long the others of its Spark job take. Spark adds what a
    task has told once, that of the try that it counts.
    """

    def __init__(self, spark: SparkSession, file: SettingsFile) -> None:
        self._spark = spark
        self._file = file
        # Asked for now: where it is told, behind a failure, the JVM may have died.
        self.tries = int(spark.sparkContext.getConf().get("spark.task.maxFailures", str(TRIES)))
        """How many a task has."""
        self._arrived: Queue[Summary | _Collected] = Queue()
        # One for all that is submitted: PySpark keeps each accumulator for as long as the driver lives.
        self._told = spark.sparkContext.accumulator(Arrivals(self._arrived), Told())
        self._underway: set[OffsetRange] = set()
        self._hands: Directory | None = None
        self._failed_tries: dict[int, set[int]] = {}
        """By stage; see `tasks_of`."""

    def check_executors(self, directory: Directory, *, handler: bool = True) -> None:
        """Check that executors have settings, handler and directory. Raises `ConfigError`, `HandlerLoadError`.

        One task for each is all that can be asked for: Spark decides which executor runs it, and some may come later.
        What matters for their records every task looks at again: settings and versions.
        """
        # Of another driver's it must not be: each removes its own.
        directory.write(probe := f"_probe-{uuid.uuid4().hex}", b"")
        tasks = min(_MOST_CHECKS, self.cores())
        check = CheckExecutor(self._file, directory, probe, handler)
        try:
            found = collected(self._spark.range(0, tasks, 1, tasks).mapInArrow(check, CHECKED))
        finally:
            directory.delete(probe)
        for row in found:
            raise (HandlerLoadError if row["handler"] else ConfigError)(row["problem"])

    def room(self, at_once: int = 1) -> int:
        """How many ranges may be underway, with so many in each task: enough for every core that Spark has now."""
        return max(_FEW, _BUSY * self.cores()) * at_once

    def submit(
        self,
        ranges: Sequence[OffsetRange],
        task: Task,
        hands: Directory,
        *,
        at_once: int = 1,
        done: Done = NOTHING_DONE,
    ) -> None:
        """Begin to run the task over the ranges, the largest first. `hands`: where it notes its records in hand.
        `at_once`: so many ranges a task, where there are more than cores. `done`: what it leaves out. Does not block.
        """
        self._underway.update(ranges)
        self._hands = hands
        tasks = shared_out(ranges, self.cores(), at_once)
        # A row for each task, with its own ranges: a closure with all of them would travel to every task.
        frame = rows_frame(self._spark, [ranges_text(each, done) for each in tasks], "ranges")
        work = frame.mapInArrow(FromRows(task, self._told), NOTHING)
        threading.Thread(target=self._collected, args=(work, tuple(ranges)), name="spark-job", daemon=True).start()

    def _collected(self, work: DataFrame, ranges: Sequence[OffsetRange]) -> None:
        """Body of a thread: wait for one Spark job."""
        error: Exception | None = None
        try:
            collected(work)
        except Exception as raised:
            error = raised
        self._arrived.put(_Collected(ranges, error))

    def ended(self, seconds: float) -> list[Summary]:
        """What ranges have come to that have ended: waits for the first one, and so long for others behind it. Empty if
        none has within that time. Raises `JobFailed` where Spark gives ranges up.
        """
        found: list[Summary] = []
        until = time.monotonic() + seconds
        while self._underway:
            try:
                each = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if isinstance(each, Summary):
                # Of two that tell of one range Spark counts one; neither does anybody else count twice.
                if each.range in self._underway:
                    self._underway.discard(each.range)
                    found.append(each)
            elif (error := self._failure(each)) is not None:
                if found:
                    self._arrived.put(each)
                    break
                raise error
        return found

    def _failure(self, each: _Collected) -> Exception | None:
        if isinstance(each.error, JobFailed) and self._hands is not None:
            return JobFailed(f"{each.error}{in_hand_text(self._hands, self.tries, frozenset(each.ranges))}")
        if each.error is None and not self._underway.isdisjoint(each.ranges):
            return JobFailed("Spark says that all tasks have ended, and not all have told what they came to")
        return each.error

    def tasks(self) -> Tasks:
        """Spark's tasks underway. Caller: a thread that watches; see `kunicorn.pipeline.report`."""
        found, underway = tasks_of(self._spark, self._failed_tries), frozenset(self._underway)
        if self._hands is None or len(underway) > _MOST_NOTES:
            return found
        return replace(found, offsets=noted_so_far(self._hands, underway))

    def cores(self) -> int:
        """See `cores_of`."""
        return cores_of(self._spark)


def cores_of(spark: SparkSession) -> int:
    """How many tasks Spark can run at once now, on all executors that have come; while none has, what Spark takes for
    it. Asks the JVM.
    """
    from py4j.protocol import Py4JError

    context: Any = spark.sparkContext
    # Not `defaultParallelism`: where spark.default.parallelism is set, as clusters do, it is that number.
    with suppress(Py4JError):
        java = context._jsc.sc()
        if found := java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()):
            return int(found)
    return max(1, int(context.defaultParallelism))


def in_hand_text(outcomes: Directory, tries: int = TRIES, given_up: Collection[OffsetRange] | None = None) -> str:
    """Records that processes died with, for the end of a message; empty if none did. `tries` and `given_up` as
    `died_in_hand` has them. Reads files.
    """
    try:
        found = died_in_hand(outcomes, tries, given_up)
    except ConfigError as error:
        return f". What was in hand is not known: {error}"
    if not found:
        return ""
    return (
        f". In hand at the end: {', '.join(found)}. After workers.max_crashes deaths a record is kept from the "
        f"handler; going on gives it its next try"
    )


def collected(frame: DataFrame) -> list[Any]:
    """Rows of a query. Raises `JobFailed` with the message of a failed task, without Spark's stack around it."""
    from pyspark.errors import PySparkException

    try:
        with _jvm_answers():
            return list(frame.collect())
    except PySparkException as error:
        raise JobFailed(_gave_up(error)) from error


@contextmanager
def stopped_behind(spark: SparkSession) -> Iterator[None]:
    """Stop Spark behind the block. Raises `JobFailed` where its JVM dies within the block, as when memory runs out."""
    from py4j.protocol import Py4JError

    try:
        with _jvm_answers():
            yield
    finally:
        # Of a JVM that has died nothing is to be stopped, and its refusal would be told in place of what ends the job.
        with suppress(Py4JError, ConnectionError):
            spark.stop()


@contextmanager
def _jvm_answers() -> Iterator[None]:
    """Raise `JobFailed` where a question to the JVM fails within the block."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise JobFailed(_gave_up(error)) from error
    except (Py4JError, ConnectionError) as error:  # Also "… does not exist in the JVM", of whatever is asked for first.
        raise JobFailed(
            f"Spark's JVM does not answer any more, and nothing that is underway counts: it has died, most likely as "
            f"memory ran out (spark.driver.memory). {said_by_task(str(error))}"
        ) from error


def _gave_up(error: Exception) -> str:
    return f"Spark gave up, and nothing that is underway counts: {said_by_task(str(error))}"
