"""One topic, its settings, and the commands about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.commands.demo.audit import SUFFIX, WORDS
from kunicorn.commands.demo.judge import Audit, Report
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.source import SourceOptions
from kunicorn.pipeline.stream_source import KunicornStreamReader
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import group_settings, merged, toml
from tests.system.producing import end_offsets, held, producer

MASTER = "local[2]"
QUICK_START = {
    # What a short job wants of a JVM, and no page for each of them.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
TIME = time.time_ns() // 1_000_000 - 60_000
"""Within what `--from 2h` asks for."""
_ROOT = Path(__file__).parents[3]


class Desk:
    """One topic, its settings, and the commands about it. The topic names the group."""

    def __init__(
        self, kafka: KafkaCluster, topic: str, directory: Path, audit: Path, settings: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.kafka, self.topic, self.directory = kafka, topic, directory
        self.runs = directory / "runs"
        self.config = directory / "config.toml"
        self._audit = audit
        self._started: list[subprocess.Popen[str]] = []
        own = group_settings(kafka.bootstrap, [topic], topic, "tests.system.pipeline.handlers:obedient")
        # Not the usual port: jobs of other processes' tests run beside these, and checks whether it is free.
        quiet = {"http": {"port": 0}}
        self.settings = merged(own, quiet, {"pipeline": {"directory": str(self.runs), "spark": QUICK_START}}, settings)
        self.configure({})

    def configure(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Other settings from now on."""
        self.settings = merged(self.settings, settings)
        self.config.write_text(toml(self.settings))

    def said(self, *arguments: str, code: int = 0) -> str:
        """What the command printed; run in this process, where the JVM stays for the next one."""
        result = CliRunner().invoke(app, ["pipeline", *arguments, "--config", str(self.config)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.stdout

    def told_by(self, *arguments: str) -> tuple[Any, str]:
        """The object that the command printed, and what it said beside."""
        result = CliRunner().invoke(app, ["pipeline", *arguments, "--config", str(self.config)])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout), result.stderr

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """The command as a process of its own, in a session of its own, for whoever kills it."""
        path = os.pathsep.join([str(_ROOT / "service"), str(_ROOT)])
        process = subprocess.Popen(
            [sys.executable, "-m", "kunicorn", "pipeline", *arguments, "--config", str(self.config)],
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Nothing that was started survives."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait(60)
            if process.stdout is not None:
                process.stdout.close()

    def report(self, partitions: int) -> Report:
        """The audit of everything that this topic holds; other tests write beside it."""
        judged = self.directory / "judged"
        if not (judged / self.topic).exists():
            judged.mkdir(exist_ok=True)
            (judged / self.topic).symlink_to(self._audit / self.topic)
        return Audit(judged).check(held(end_offsets(self.kafka.bootstrap, self.topic, partitions)))

    def audited(self) -> int:
        """Calls of the handler that have begun, and those that have ended."""
        return sum(file.stat().st_size for file in (self._audit / self.topic).glob(f"*{SUFFIX}")) // (8 * WORDS)

    def outcomes(self, run: str = "*") -> list[dict[str, Any]]:
        """All rows of the outcome tables of these runs, by place."""
        return outcome_rows(self.runs, run)

    def manifest(self, run: str) -> dict[str, Any]:
        """What the run's manifest says."""
        told = self.told(self.runs / run)
        assert told is not None
        return told

    @staticmethod
    def told(directory: Path) -> dict[str, Any] | None:
        """The newest manifest in there; None where there is none yet."""
        while True:
            newest = max(directory.glob("manifest-*.json"), default=None)
            try:
                return None if newest is None else json.loads(newest.read_text())
            except FileNotFoundError:
                continue  # Removed meanwhile, as newer ones are there.


def outcome_rows(runs: Path, run: str) -> list[dict[str, Any]]:
    """All rows of the outcome tables of the runs of that name or pattern in the directory, by place."""
    files = sorted(runs.glob(f"{run}/outcomes/**/[0-9]*.parquet"))
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files]).to_pylist() if files else []
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"], row["until"]))


def lake_rows(lake: Path, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of all that a lake's files have, whatever their directories, by the first of them."""
    tables = [pq.ParquetFile(file).read(list(columns)) for file in lake.rglob("[!_]*.parquet")]
    rows = [tuple(row[column] for column in columns) for table in tables for row in table.to_pylist()]
    return sorted(rows, key=itemgetter(0))


def tiles(rows: list[dict[str, Any]], whole: Mapping[TopicPartition, range]) -> bool:
    """Whether the rows cover every offset once, without gap or overlap."""
    at = {tp: offsets.start for tp, offsets in whole.items()}
    for row in rows:
        tp = TopicPartition(row["topic"], row["partition"])
        if row["offset"] != at[tp] or row["until"] < row["offset"]:
            return False
        at[tp] = row["until"]
    return at == {tp: offsets.stop for tp, offsets in whole.items()}


def send(bootstrap: str, topic: str, values: Mapping[int, list[str]]) -> None:
    """Values by partition, in order."""
    sender = Producer({"bootstrap.servers": bootstrap})
    for number, each in values.items():
        for value in each:
            sender.produce(topic, value, "key", partition=number, headers=[("trace", b"1")], timestamp=TIME)
    assert sender.flush(60) == 0


def send_values(desk: Desk, values: Sequence[bytes | None]) -> None:
    """Values as they are, in order, to partition 0 of the desk's topic."""
    sender = producer(desk.kafka.bootstrap)
    for value in values:
        sender.produce(desk.topic, value, partition=0)
    assert sender.flush(60) == 0


def reader(desk: Desk, **options: str) -> KunicornStreamReader:
    """As after a restart of the stream."""
    given = {"config": str(desk.config), "startingOffsets": "earliest", **options}
    return KunicornStreamReader(SourceOptions.of(given), bounds_of(given, batch=False))
