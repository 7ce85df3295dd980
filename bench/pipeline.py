"""What Spark costs: rounds of backfills and exports, by columns and by messages, against bare clients and against
Spark's own connector. `make bench-pipeline`

    python -m bench.pipeline [--records N] [--rounds N] [--write]

Start-up apart: every form runs once before it counts, and a little at the start of each round. The forms are measured
in turns, so that a noisy neighbour disturbs all of them alike; of each the median counts, and a ratio is the median of
the ratios within a round. Forms that are compared call the same handler, or write the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from bench.bare import drain, tune_collector
from bench.pages import write_section
from bench.processors import cpu_ns_of_family
from bench.quick import PARTITIONS, ROOT, fill
from kunicorn.clients.config import consumer_properties
from kunicorn.clients.range_reader import RangeReader
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.export import ExportRanges
from kunicorn.pipeline.lake.columns import Form as LakeForm
from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file
from kunicorn.pipeline.tasks.limits import NO_LIMITS, TaskLimits
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import HandleRanges, Task
from kunicorn.positions import OffsetRange, total
from kunicorn.settings import Settings, load
from tests.deploy.tools import tools
from tests.kafka import KafkaCluster
from tests.kafka.artifacts import DEPENDENCY_PLUGIN, cache_directory, locked, project_of
from tests.system.members import group_settings, merged, toml

CORES = 2
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
"""All that Spark does not bring itself. The token provider, which nothing here calls, is older: mirrors that lag
behind have that one."""
BATCH_RECORDS = 10_000
"""In a batch of columns: as many as Spark has in one of its own (spark.sql.execution.arrow.maxRecordsPerBatch)."""
FEW = 1000
"""Records of a partition in a round that only starts processes: Spark ends those that had nothing to do for a minute,
as during the connector's turns."""
HANDLER, ARROW_HANDLER = "tests.system.pipeline.handlers:nothing", "tests.system.pipeline.handlers:no_column"
TUNED = {
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(50 * 1024 * 1024),
    "kafka.max.poll.records": "50000",
}
"""For Spark's connector: as much at once as our own jobs ask for."""

BACKFILL, ARROW, EXPORT = "backfill, a record a call", "backfill, columns", "export"
BY_MESSAGES = " by messages, as without kunicorn_columns"
CONNECTOR_ROWS, CONNECTOR_FILES = "Spark's connector, a record a call", "Spark's connector, to Parquet"
CONNECTOR_COLUMNS = "Spark's connector, columns"
WITH_TUNED = ", tuned"
BARE = f"{CORES} bare clients"
GOALS: tuple[tuple[str, str, float | None], ...] = (
    (BACKFILL, BARE, 0.8),
    (BACKFILL, BACKFILL + BY_MESSAGES, None),
    (BACKFILL, CONNECTOR_ROWS, 2.5),
    (BACKFILL, CONNECTOR_ROWS + WITH_TUNED, None),
    (ARROW, ARROW + BY_MESSAGES, 3.0),
    (ARROW, CONNECTOR_COLUMNS, None),
    (ARROW, CONNECTOR_COLUMNS + WITH_TUNED, None),
    (EXPORT, EXPORT + BY_MESSAGES, 3.0),
    (EXPORT, CONNECTOR_FILES, None),
    (EXPORT, CONNECTOR_FILES + WITH_TUNED, None),
)
"""The first is to be so many times as fast as the second."""


class Cost(NamedTuple):
    """One run of a form."""

    rate: float
    """Records a second, of all its processes together, until the last one is through."""
    cpu_ns: float
    """CPU nanoseconds a record, of all its processes."""
    broker_ns: float = 0.0
    """Likewise of the broker."""


Form = Callable[[], Cost]


def connector_jars() -> list[Path]:
    """Spark's own Kafka connector and what it needs, fetched once with Maven; none where that is not to be had."""
    home = cache_directory() / "-".join(CONNECTOR[0][1:])
    maven = shutil.which("mvn")
    with locked(home.name):
        if not home.is_dir() and maven is not None:
            with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
                pom = Path(scratch) / "pom.xml"
                pom.write_text(project_of(*CONNECTOR, alone=True))
                arguments = ["-q", "-B", "-f", str(pom), DEPENDENCY_PLUGIN, f"-DoutputDirectory={scratch}/jars"]
                if subprocess.run([maven, *arguments], check=False).returncode == 0:
                    (Path(scratch) / "jars").rename(home)
    return sorted(home.glob("*.jar"))


@dataclass(frozen=True, slots=True)
class ByMessages(SettingsFile):
    """Settings of a process in which jobs read as they do without kunicorn_columns."""

    def records(self, limits: TaskLimits = NO_LIMITS, **_: Any) -> RangeReader:
        """Messages, which become columns one by one."""
        return self.reader()


_LONGEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of one round, and the session they run in."""

    spark: Any
    file: SettingsFile
    ranges: Sequence[OffsetRange]

    def through(self, task: Task, hands: Directory) -> list[Summary]:
        """All of them through the task, one range a task."""
        job = Job(self.spark, self.file)
        job.submit(self.ranges, task, hands)
        return job.ended(_LONGEST_SECONDS)


def pipeline_cost(of: Ranges, task: Task, hands: Directory) -> Cost:
    """One round of a job: the driver, its JVM and the Python processes of the tasks."""
    gateway: Any = of.spark.sparkContext._gateway
    jvm = gateway.proc.pid
    began, used = time.perf_counter(), cpu_ns_of_family(jvm) + time.process_time_ns()
    found = of.through(task, hands)
    seconds = time.perf_counter() - began
    assert sum(each.records for each in found) == total(of.ranges), "every record once"
    spent = cpu_ns_of_family(jvm) + time.process_time_ns() - used
    return Cost(total(of.ranges) / seconds, spent / total(of.ranges))


def connector(bootstrap: str, topic: str, records: str, jars: str) -> None:
    """In a process of its own, in a session as Spark makes it: print a cost for each form that is read."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.jars", jars)
    spark = builder.config("spark.log.level", "FATAL").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    for line in sys.stdin:
        print(*connector_cost(spark, bootstrap, topic, int(records), line.strip()), flush=True)
    spark.stop()


def connector_cost(spark: Any, bootstrap: str, topic: str, records: int, form: str) -> Cost:
    """The JVM's connector: its rows handled by a `mapInArrow`, or written by Spark."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    if form.endswith(WITH_TUNED):
        source = source.options(**TUNED)
    began, used = time.perf_counter(), cpu_ns_of_family(os.getpid())
    if form.startswith(CONNECTOR_FILES):
        frame = source.option("includeHeaders", "true").load().selectExpr("*", "date_format(timestamp, 'y-MM-dd') date")
        with tempfile.TemporaryDirectory() as target:
            frame.write.partitionBy("date").option("compression", "zstd").mode("overwrite").parquet(target)
    else:
        handle = handle_columns if form.startswith(CONNECTOR_COLUMNS) else handle_values
        (counts,) = source.load().select("value").mapInArrow(handle, "n bigint").groupBy().sum("n").collect()
        assert counts[0] == records
    return Cost(records / (time.perf_counter() - began), (cpu_ns_of_family(os.getpid()) - used) / records)


def handle_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Likewise, a batch a call."""
    from tests.system.pipeline.handlers import no_column

    for batch in batches:
        no_column(batch)
        yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})


def handle_values(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the handler's module does, for rows that have come through the JVM."""
    from tests.system.pipeline.handlers import nothing

    for batch in batches:
        for value in batch.column(0).to_pylist():
            nothing(value)
        yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})


def bare_cost(settings: Settings, topic: str, records: int) -> Cost:
    """As many bare clients as Spark has cores, each with its share of the partitions; from the first record of one to
    the last record of all."""
    properties = json.dumps(dict(consumer_properties(settings, "bench")))
    shares = [range(number, PARTITIONS, CORES) for number in range(CORES)]
    each = str(records // CORES)
    commands = [["bench.pipeline", "--bare", properties, topic, json.dumps(list(share)), each] for share in shares]
    running = [
        subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    told = [list(map(float, process.communicate()[0].split())) for process in running]
    began, ended, cpu_ns = zip(*told, strict=True)
    return Cost(records / (max(ended) - min(began)), sum(cpu_ns) / CORES)


def bare(properties: str, topic: str, partitions: str, records: str) -> None:
    """In a process of its own: print when it had its first and its last record, and CPU nanoseconds a record."""
    consumer = Consumer(json.loads(properties))
    consumer.list_topics(topic, timeout=10)
    tune_collector()
    consumer.incremental_assign([TopicPartition(topic, number, 0) for number in json.loads(partitions)])
    rate, cpu_ns = drain(consumer, int(records))
    ended = time.perf_counter()  # CLOCK_MONOTONIC, which processes share; see clock_gettime(2).
    print(ended - int(records) / rate, ended, cpu_ns)
    consumer.close()


def in_turns(
    forms: dict[str, Form], warm: Collection[Form], rounds: int, broker: int, records: int
) -> dict[str, list[Cost]]:
    """Every form once without counting, then `rounds` times, each begun by `warm`; `broker` is its pid."""
    costs: dict[str, list[Cost]] = {name: [] for name in forms}
    for number in range(rounds + 1):
        for form in warm:
            form()
        for name, form in forms.items():
            used = cpu_ns_of_family(broker)
            cost = form()
            if number:
                costs[name].append(cost._replace(broker_ns=(cpu_ns_of_family(broker) - used) / records))
        if number:
            told = ", ".join(
                f"{name} {found[-1].rate / 1e6:.2f} ({found[-1].cpu_ns:.0f} + {found[-1].broker_ns:.0f})"
                for name, found in costs.items()
            )
            print(f"round {number}, million records/s (CPU ns a record + the broker's): {told}", flush=True)
    return costs


def measured(kafka: KafkaCluster, records: int, rounds: int, directory: Path) -> list[str]:
    """All of it; the section's lines."""
    topic = f"bench-{time.time_ns()}"
    bootstrap, broker = kafka.bootstrap, kafka.broker(1).pid
    fill(bootstrap, topic, records)
    settings, plain = settings_of(directory / "config.toml", bootstrap, topic, {"entrypoint": HANDLER})
    by_columns = {"entrypoint": ARROW_HANDLER, "mode": "arrow", "batch_max_records": BATCH_RECORDS}
    _, arrow = settings_of(directory / "arrow.toml", bootstrap, topic, by_columns)
    jars = connector_jars()
    with ExitStack() as stack:
        spark = open_session(settings, f"local[{CORES}]", "bench")
        stack.callback(spark.stop)
        ranges = [OffsetRange(topic, number, 0, records // PARTITIONS) for number in range(PARTITIONS)]
        whole = Ranges(spark, plain, ranges)
        few = replace(whole, ranges=[each._replace(stop=FEW) for each in ranges])
        forms, warm = ours(whole, arrow, directory), ours(few, arrow, directory).values()
        forms[BARE] = lambda: bare_cost(settings, topic, records)
        if jars:
            forms |= stack.enter_context(rivals_of(bootstrap, topic, records, jars))
        return [*table(in_turns(forms, warm, rounds, broker, records)), "", *grown(whole, directory)]


def cost_in(lines: Iterable[str]) -> Cost:
    """The first that is one: a JVM that is short of memory warns on its standard output."""
    for line in lines:
        with suppress(ValueError, TypeError):
            return Cost(*map(float, line.split()))
    raise SystemExit("the process with Spark's connector has ended")


def settings_of(path: Path, bootstrap: str, topic: str, handler: Mapping[str, Any]) -> tuple[Settings, SettingsFile]:
    """Settings for jobs with that handler, and their file."""
    given = group_settings(bootstrap, [topic], topic, HANDLER)
    path.write_text(toml(merged(given, {"handler": dict(handler), "workers": {"allocator": tools().jemalloc}})))
    settings = load(path, {})
    return settings, settings_file(path, settings)


def ours(of: Ranges, arrow: SettingsFile, directory: Path) -> dict[str, Form]:
    """Rounds of our own jobs."""
    outcomes = Directory(str(directory / "outcomes"))

    def handling(file: SettingsFile) -> Form:
        task = HandleRanges(file, outcomes)
        return lambda: pipeline_cost(of, task, outcomes)

    def exporting(file: SettingsFile) -> Form:
        target = Directory(str(directory / "lake"))
        task = ExportRanges(file, target, LakeForm(), SCHEMA, {})
        return lambda: pipeline_cost(of, task, target / "_own")

    return {
        BACKFILL: handling(of.file),
        BACKFILL + BY_MESSAGES: handling(ByMessages(of.file.path, of.file.fingerprint)),
        ARROW: handling(arrow),
        ARROW + BY_MESSAGES: handling(ByMessages(arrow.path, arrow.fingerprint)),
        EXPORT: exporting(of.file),
        EXPORT + BY_MESSAGES: exporting(ByMessages(of.file.path, of.file.fingerprint)),
    }


@contextmanager
def rivals_of(bootstrap: str, topic: str, records: int, jars: list[Path]) -> Iterator[dict[str, Form]]:
    """Spark's connector, in a JVM of its own: ours has settings that suit a backfill."""
    arguments = ["--connector", bootstrap, topic, str(records), ",".join(map(str, jars))]
    command = [sys.executable, "-m", "bench.pipeline", *arguments]
    paths = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    told, said = process.stdin, process.stdout
    assert told is not None
    assert said is not None

    def cost(form: str) -> Cost:
        print(form, file=told, flush=True)
        return cost_in(said)

    names = [
        each + tuning for each in (CONNECTOR_ROWS, CONNECTOR_COLUMNS, CONNECTOR_FILES) for tuning in ("", WITH_TUNED)
    ]
    try:
        yield {name: partial(cost, name) for name in names}
    finally:
        told.close()
        process.wait(60)


def table(costs: Mapping[str, Sequence[Cost]]) -> list[str]:
    """Each form, and what is compared with what."""
    lines = ["| form | million records/s | CPU ns a record | the broker's |", "|---|--:|--:|--:|"]
    for name, found in costs.items():
        rate, cpu, brokers = (median(column) for column in zip(*found, strict=True))
        lines.append(f"| {name} | {rate / 1e6:.2f} | {cpu:.0f} | {brokers:.0f} |")
    lines += ["", "| is so many times as fast | as | ratio | goal | ratio of CPU |", "|---|---|--:|--:|--:|"]
    for ours, theirs, goal in GOALS:
        if theirs not in costs:
            continue
        pairs = list(zip(costs[ours], costs[theirs], strict=True))
        ratio = median(mine.rate / other.rate for mine, other in pairs)
        cpu = median(other.cpu_ns / mine.cpu_ns for mine, other in pairs)
        lines.append(f"| {ours} | {theirs} | {ratio:.2f} | {'' if goal is None else f'≥ {goal:g}'} | {cpu:.2f} |")
    return lines


def grown(of: Ranges, directory: Path) -> list[str]:
    """How the rate of a backfill grows with partitions."""
    outcomes = Directory(str(directory / "outcomes"))
    found = {
        count: pipeline_cost(replace(of, ranges=of.ranges[:count]), HandleRanges(of.file, outcomes), outcomes).rate
        for count in (1, 2, 4, 8)
    }
    lines = ["| partitions | " + " | ".join(map(str, found)) + " |", "|---|" + "--:|" * len(found)]
    return [*lines, "| million records/s | " + " | ".join(f"{rate / 1e6:.2f}" for rate in found.values()) + " |"]


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the section in docs/benchmarks.md")
    options = parser.parse_args()
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lines = measured(kafka, options.records, options.rounds, directory)
    text = "\n".join(
        [
            f"`make bench-pipeline`: {options.records:,} records of 200 bytes on {PARTITIONS} partitions, {CORES} "
            f"cores shared by the broker, Spark on local[{CORES}] and whatever else ran; handlers that do nothing; "
            f"files of Parquet with zstd; medians of {options.rounds} rounds, start-up apart. The ratios count: the "
            "forms run in turns, and what else ran beside them disturbed all alike.",
            "",
            *lines,
        ]
    )
    print(text)
    if options.write:
        write_section("The handler on Spark", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        bare(*sys.argv[2:])
    elif sys.argv[1:2] == ["--connector"]:
        connector(*sys.argv[2:])
    else:
        main()
