"""What Spark costs: a backfill's rounds against bare clients and against Spark's own connector. `make bench-pipeline`

    python -m bench.pipeline [--records N] [--rounds N] [--write]

Start-up apart: every form runs once before it counts. The forms are measured in turns, so that a noisy neighbour
disturbs all of them alike; of each the median counts. Both Spark forms call the same handler for every record.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from kunicorn.pipeline.executors import settings_file
from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange, total
from kunicorn.settings import Settings, load
from tests.deploy.tools import tools
from tests.kafka import KafkaCluster
from tests.kafka.artifacts import DEPENDENCY_PLUGIN, cache_directory, locked, project_of
from tests.system.members import group_settings, toml

CORES = 2
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
"""All that Spark does not bring itself. The token provider, which nothing here calls, is older: mirrors that lag
behind have that one."""
CONNECTOR_GOAL, BARE_GOAL = 2.5, 0.8
HANDLER = "tests.system.pipeline.handlers:nothing"


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


def pipeline_cost(job: Job, ranges: Sequence[OffsetRange], outcomes: Directory) -> Cost:
    """One round of a backfill: the driver, its JVM and the Python processes of the tasks."""
    gateway: Any = job.spark.sparkContext._gateway
    jvm = gateway.proc.pid
    began, used = time.perf_counter(), cpu_ns_of_family(jvm) + time.process_time_ns()
    found = job.handle(ranges, outcomes)
    seconds = time.perf_counter() - began
    assert sum(each.records for each in found) == total(ranges), "every record once"
    spent = cpu_ns_of_family(jvm) + time.process_time_ns() - used
    return Cost(total(ranges) / seconds, spent / total(ranges))


def connector(bootstrap: str, topic: str, records: str, jars: str) -> None:
    """In a process of its own, in a session as Spark makes it: print a cost for each line that is read."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.jars", jars)
    spark = builder.config("spark.log.level", "FATAL").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    for _ in sys.stdin:
        print(*connector_cost(spark, bootstrap, topic, int(records)), flush=True)
    spark.stop()


def connector_cost(spark: Any, bootstrap: str, topic: str, records: int) -> Cost:
    """The JVM's connector, its rows handled by a `mapInArrow` of one Python call a record."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    began, used = time.perf_counter(), cpu_ns_of_family(os.getpid())
    (counts,) = source.load().select("value").mapInArrow(handle_values, "n bigint").groupBy().sum("n").collect()
    assert counts[0] == records
    return Cost(records / (time.perf_counter() - began), (cpu_ns_of_family(os.getpid()) - used) / records)


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


def in_turns(forms: dict[str, Form], rounds: int, broker: int, records: int) -> dict[str, list[Cost]]:
    """Every form once without counting, then `rounds` times; `broker` is its pid."""
    costs: dict[str, list[Cost]] = {name: [] for name in forms}
    for number in range(rounds + 1):
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
    config = directory / "config.toml"
    ours = {**group_settings(bootstrap, [topic], topic, HANDLER), "workers": {"allocator": tools().jemalloc}}
    config.write_text(toml(ours))
    settings = load(config, {})
    jars = connector_jars()
    with ExitStack() as stack:
        spark = open_session(settings, f"local[{CORES}]", "bench")
        stack.callback(spark.stop)
        rival = stack.enter_context(rival_of(bootstrap, topic, records, jars)) if jars else None
        return table(Job(spark, settings_file(config, settings)), settings, topic, records, rounds, broker, rival)


@contextmanager
def rival_of(bootstrap: str, topic: str, records: int, jars: list[Path]) -> Iterator[Form]:
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

    def cost() -> Cost:
        print("go", file=told, flush=True)
        return Cost(*map(float, said.readline().split()))

    try:
        yield cost
    finally:
        told.close()
        process.wait(60)


def table(
    job: Job, settings: Settings, topic: str, records: int, rounds: int, broker: int, rival: Form | None
) -> list[str]:
    """The comparison, and how the rate grows with partitions."""
    outcomes = Directory(str(Path(job.file.path).parent / "outcomes"))
    ranges = [OffsetRange(topic, number, 0, records // PARTITIONS) for number in range(PARTITIONS)]
    forms: dict[str, Form] = {
        "backfill": lambda: pipeline_cost(job, ranges, outcomes),
        f"{CORES} bare clients": lambda: bare_cost(settings, topic, records),
    }
    if rival is not None:
        forms["Spark's connector"] = rival
    costs = in_turns(forms, rounds, broker, records)
    ours = costs["backfill"]
    lines = [
        "| form | million records/s | a backfill is so many times as fast | goal | CPU ns a record | the broker's |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    goals = {"Spark's connector": CONNECTOR_GOAL, f"{CORES} bare clients": BARE_GOAL}
    for name, found in costs.items():
        ratio = median(mine.rate / other.rate for mine, other in zip(ours, found, strict=True))
        rate, cpu, brokers = (median(column) for column in zip(*found, strict=True))
        goal = f"≥ {goals[name]}" if name in goals else ""
        lines.append(f"| {name} | {rate / 1e6:.2f} | {ratio:.2f} | {goal} | {cpu:.0f} | {brokers:.0f} |")
    grown = {count: pipeline_cost(job, ranges[:count], outcomes).rate for count in (1, 2, 4, 8)}
    lines += ["", "| partitions | " + " | ".join(map(str, grown)) + " |", "|---|" + "--:|" * len(grown)]
    return [*lines, "| million records/s | " + " | ".join(f"{rate / 1e6:.2f}" for rate in grown.values()) + " |"]


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
            f"cores shared by the broker, Spark on local[{CORES}] and whatever else ran; a handler that does nothing; "
            f"medians of {options.rounds} rounds, start-up apart.",
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
