"""Who takes part, and how each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import kunicorn
from bench.peers.environments import HERE, franz_go, franz_go_version, python_of, version_of
from kunicorn.allocator import SYSTEM, with_library
from tests.deploy.tools import tools
from tests.kafka.artifacts import distribution, tools_version
from tests.kafka.cluster import VERSION
from tests.system.members import toml

CLIENTS = HERE / "clients"
PYTHON_KINDS = frozenset({"nothing", "work", "wait", "delay"})
JAVA_MAIN = "org.apache.kafka.tools.ConsumerPerformance"
JAVA_FLAGS = ("-server", "-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExplicitGCInvokesConcurrent")
"""What kafka-consumer-perf-test.sh and kafka-run-class.sh set."""


class Setting(NamedTuple):
    """What a run is about."""

    bootstrap: str
    topic: str
    group: str
    partitions: int
    records: int
    kind: str
    """Of handler: nothing, work, wait, delay."""
    loops: int
    """Of work."""
    directory: Path
    """For this run's files; `tallies` is in it."""


@dataclass(frozen=True)
class Contender:
    """A consumer and one way to use it."""

    title: str
    start: Callable[[Contender, Setting], list[str]]
    version: Callable[[], str]
    form: str = ""
    workers: int = 1
    kinds: frozenset[str] = PYTHON_KINDS
    audited: bool = True
    """Counts into shared memory; else its own report is read."""

    jemalloc: bool = False
    """Has it for its allocator: ours by its setting, another's process has it preloaded."""

    in_order: bool = True
    """Keeps the order of a partition; of handlers that wait nobody does by all means."""

    @property
    def ours(self) -> bool:
        """Whether it is kunicorn."""
        return self.title.startswith("kunicorn")

    def command(self, setting: Setting) -> list[str]:
        """What to run, in `clients/`. Makes its environment first if need be; raises `Unavailable`."""
        return self.start(self, setting)

    def environment(self, setting: Setting) -> dict[str, str]:
        """What `clients/tally.py` reads."""
        return {
            "BENCH_BOOTSTRAP": setting.bootstrap,
            "BENCH_TOPIC": setting.topic,
            "BENCH_GROUP": setting.group,
            "BENCH_PARTITIONS": str(setting.partitions),
            "BENCH_HANDLER": setting.kind,
            "BENCH_LOOPS": str(setting.loops),
            "BENCH_TALLIES": str(setting.directory / "tallies"),
            "BENCH_FORM": self.form,
            "BENCH_WORKERS": str(self.workers),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(with_library({}, tools().jemalloc) if self.jemalloc and not self.ours else {}),
        }


def _program(environment: str, script: str) -> Callable[[Contender, Setting], list[str]]:
    return lambda _who, _setting: [str(python_of(environment)), str(CLIENTS / script)]


def _faust(_who: Contender, setting: Setting) -> list[str]:
    data = str(setting.directory / "data")
    return [
        str(python_of("faust")),
        "-m",
        "faust",
        "-D",
        data,
        "-A",
        "with_faust",
        "worker",
        "-l",
        "error",
        "--without-web",
    ]


def _faststream(who: Contender, _setting: Setting) -> list[str]:
    command = [str(python_of("faststream")), "-m", "faststream", "run", "with_faststream:app", "--log-level", "error"]
    return command + (["--workers", str(who.workers)] if who.workers > 1 else [])


def _java(_who: Contender, setting: Setting) -> list[str]:
    kafka, properties = distribution(tools_version(VERSION)), setting.directory / "consumer.properties"
    properties.write_text("heartbeat.interval.ms=1000\nsession.timeout.ms=45000\n")
    told = {
        "--bootstrap-server": setting.bootstrap,
        "--topic": setting.topic,
        "--group": setting.group,
        "--num-records": str(setting.records),
        "--command-config": str(properties),
        "--reporting-interval": "10",
    }
    arguments = [*(word for pair in told.items() for word in pair), "--show-detailed-stats", "--hide-header"]
    return [kafka.java.command, *JAVA_FLAGS, "-cp", kafka.classpath, JAVA_MAIN, *arguments]


def _franz_go(_who: Contender, _setting: Setting) -> list[str]:
    return [str(franz_go())]


class Form(NamedTuple):
    """One way to have records handled by ours."""

    entrypoint: str
    settings: Mapping[str, Any] = {}
    special: Mapping[str, str] = {}
    """By kind: handlers of its own."""
    fetcher: str = "librdkafka"


_SINGLE = {"nothing": "count", "wait": "wait"}
_COLUMNS = {"mode": "arrow", "batch_max_records": 10_000}
FORMS: Mapping[str, Form] = {
    "record": Form("handle", {}, _SINGLE),
    "key": Form("handle", {"ordering": "key"}, _SINGLE),
    "batch": Form("handle_batch", {"mode": "batch"}),
    "record, own fetcher": Form("handle", {}, _SINGLE, "own"),
    "batch, own fetcher": Form("handle_batch", {"mode": "batch"}, {}, "own"),
    "arrow": Form("handle_columns", _COLUMNS, {}, "own"),
    "arrow summing": Form(
        "sum_columns", {**_COLUMNS, "value": "json", "value_schema": "with_kunicorn:SCHEMA"}, {}, "own"
    ),
}


def _kunicorn(who: Contender, setting: Setting) -> list[str]:
    """As its README has it: the group, the handler, so many workers; everything else is default, but that columns come
    by ten thousand rows. jemalloc is there, as in its image."""
    form = FORMS[who.form]
    handler = form.special.get(setting.kind, form.entrypoint)
    config = setting.directory / "kunicorn.toml"
    config.write_text(
        toml(
            {
                "kafka": {"bootstrap_servers": [setting.bootstrap], "fetcher": form.fetcher},
                "group": {"id": setting.group, "topics": [setting.topic]},
                "handler": {"entrypoint": f"with_kunicorn:{handler}", **form.settings},
                "workers": {"count": who.workers, "allocator": tools().jemalloc if who.jemalloc else SYSTEM},
                "http": {"host": "127.0.0.1", "port": 0},
            }
        )
    )
    return [sys.executable, "-m", "kunicorn", "run", "--config", str(config)]


def _pinned(environment: str, package: str) -> Callable[[], str]:
    return lambda: version_of(environment, package)


def _bare(title: str, form: str, *, jemalloc: bool = False) -> Contender:
    version = partial(metadata.version, "confluent-kafka")
    return Contender(title, _program("confluent", "with_confluent.py"), version, form, jemalloc=jemalloc)


def kunicorns(form: str, workers: int, kinds: frozenset[str] = PYTHON_KINDS) -> Contender:
    """Ours, as `kunicorn run`."""
    mode, _, fetched = form.partition(", ")
    title = f"kunicorn, {workers} worker{'s' * (workers > 1)}, {mode} handler{fetched and ', '}{fetched}"
    return Contender(title, _kunicorn, lambda: kunicorn.__version__, form, workers, kinds, jemalloc=True)


RECORD_1, BATCH_1, RECORD_2, BATCH_2 = (kunicorns(form, n) for n in (1, 2) for form in ("record", "batch"))
NOTHING = frozenset({"nothing"})
ARROW_1, ARROW_2, SUMMING_1 = (
    kunicorns(form, n, NOTHING) for form, n in (("arrow", 1), ("arrow", 2), ("arrow summing", 1))
)
OWN_RECORD_1 = kunicorns("record, own fetcher", 1, NOTHING | {"delay"})
OWN_BATCH_1, OWN_BATCH_2 = (kunicorns("batch, own fetcher", n, NOTHING) for n in (1, 2))
RECORD_1_GLIBC, BATCH_1_GLIBC, BATCH_2_GLIBC = (
    replace(who, title=f"{who.title}, glibc's malloc", kinds=NOTHING, jemalloc=False)
    for who in (RECORD_1, BATCH_1, BATCH_2)
)
KEYED_2 = Contender(
    "kunicorn, 2 workers, by key",
    _kunicorn,
    lambda: kunicorn.__version__,
    "key",
    2,
    frozenset({"wait"}),
    jemalloc=True,
    in_order=False,
)
BARE_POLL = _bare("confluent-kafka, poll()", "poll")
BARE = _bare("confluent-kafka, tuned", "tuned")
BARE_RUNS = _bare("confluent-kafka, tuned, by runs", "runs")
BARE_PRELOADED = _bare("confluent-kafka, tuned, jemalloc preloaded", "tuned", jemalloc=True)
BARE_RUNS_PRELOADED = _bare("confluent-kafka, tuned, by runs, jemalloc preloaded", "runs", jemalloc=True)
AIOKAFKA = Contender("aiokafka, getmany", _program("aiokafka", "with_aiokafka.py"), _pinned("aiokafka", "aiokafka"))
KAFKA_PYTHON = Contender(
    "kafka-python", _program("kafka-python", "with_kafka_python.py"), _pinned("kafka-python", "kafka-python")
)
FAUST = Contender("Faust", _faust, _pinned("faust", "faust-streaming"))
QUIX = Contender("Quix Streams", _program("quix", "with_quix.py"), _pinned("quix", "quixstreams"))
FASTSTREAM, FASTSTREAM_BATCH, FASTSTREAM_2 = (
    Contender(title, _faststream, _pinned("faststream", "faststream"), form, workers, kinds)
    for title, form, workers, kinds in (
        ("FastStream", "record", 1, PYTHON_KINDS),
        ("FastStream, batches", "batch", 1, PYTHON_KINDS - {"wait"}),
        ("FastStream, --workers 2", "record", 2, PYTHON_KINDS),
    )
)
ARROYO, ARROYO_PROCESSES, ARROYO_THREADS = (
    Contender(
        title, _program("arroyo", "with_arroyo.py"), _pinned("arroyo", "sentry-arroyo"), form, workers, frozenset(kinds)
    )
    for title, form, workers, kinds in (
        ("arroyo", "task", 1, PYTHON_KINDS - {"wait"}),
        ("arroyo, 2 processes", "processes", 2, PYTHON_KINDS),
        ("arroyo, 8 threads", "threads", 1, {"wait"}),
    )
)
PYRALLEL, PYRALLEL_PROCESSES = (
    Contender(
        title,
        _program("pyrallel", "with_pyrallel.py"),
        _pinned("pyrallel", "pyrallel-consumer"),
        form,
        workers,
        in_order=False,
    )
    for title, form, workers in (
        ("Pyrallel-Consumer, asyncio", "asyncio", 1),
        ("Pyrallel-Consumer, 2 processes", "processes", 2),
    )
)
JAVA = Contender(
    "Java ConsumerPerformance", _java, partial(tools_version, VERSION), kinds=frozenset({"nothing"}), audited=False
)
FRANZ_GO = Contender("franz-go", _franz_go, franz_go_version, kinds=frozenset({"nothing", "delay"}))

CONTENDERS = (
    ARROW_2,
    ARROW_1,
    SUMMING_1,
    OWN_BATCH_2,
    OWN_BATCH_1,
    OWN_RECORD_1,
    BATCH_2,
    RECORD_2,
    BATCH_1,
    RECORD_1,
    BATCH_2_GLIBC,
    BATCH_1_GLIBC,
    RECORD_1_GLIBC,
    KEYED_2,
    BARE_RUNS,
    BARE,
    BARE_RUNS_PRELOADED,
    BARE_PRELOADED,
    BARE_POLL,
    FRANZ_GO,
    JAVA,
    AIOKAFKA,
    KAFKA_PYTHON,
    FAUST,
    QUIX,
    FASTSTREAM,
    FASTSTREAM_BATCH,
    FASTSTREAM_2,
    ARROYO,
    ARROYO_PROCESSES,
    ARROYO_THREADS,
    PYRALLEL,
    PYRALLEL_PROCESSES,
)
"""In the order of the tables."""


def importable() -> str:
    """The path on which our own service is found, installed or not; the others' environments have their own."""
    return os.pathsep.join(filter(None, sys.path))
