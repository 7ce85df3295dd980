"""A Spark Python process of a job: its settings, its reader and its handlers, and the check of every executor before
the first record is handled.

Spark's tasks are told the path of the settings' file and a fingerprint, nothing else: each process reads that file and
its own environment, as the driver did, and refuses to work if the two have read different things. A path that is
relative to where the driver runs is so to where a task runs, too: an archive that Spark unpacks for an application is
in another directory on every machine. So no secret is ever
in a closure, a partition, Spark's settings or its event log.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Message, libversion

from kunicorn import __version__
from kunicorn.clients.access import Access
from kunicorn.clients.column_reader import ColumnReader
from kunicorn.clients.config import configs_of_jobs
from kunicorn.clients.range_reader import FetchPositions, RangeReader
from kunicorn.columns.decoding import compiled
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, PeerError, ServiceError
from kunicorn.handler import load
from kunicorn.handler.call import Calls, arguments_of
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import find, handler_of
from kunicorn.handler.registry import HandlerRegistry, Handling, check_options
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.concurrent import SeveralCalls, calls_in_task, slots_of
from kunicorn.pipeline.tasks.in_hand_file import NEXT
from kunicorn.pipeline.tasks.limits import NO_LIMITS, TaskLimits
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings import load as load_settings
from kunicorn.settings.load import shown
from kunicorn.settings.rules import of_librdkafka_alone

_SHARED = ("kafka", "group", "handler", "handlers", "schema_registry", "dead_letters", "pipeline")
"""Sections that driver and executors must agree on; how many processors a machine has is its own affair."""
_OF_A_MACHINE = ("client_id", "client_rack")
"""Settings of [kafka] that may be another one on each machine: fetching from the nearest replica needs its rack."""


def versions() -> str:
    """What decides how this process fetches and handles records, by version."""
    return f"kunicorn {__version__} with librdkafka {libversion()[0]}"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Path of the settings, and their fingerprint in the driver. Travels to the executors."""

    path: str
    fingerprint: str
    versions: str = field(default_factory=versions)
    """Those of the driver: a task that begins with other ones, and is tried again there, would handle records by other
    rules."""
    relative: str | None = None
    """The path as the driver was given it, if it was a relative one: for a process that has no file at `path`."""
    any_age: bool = False
    """Whether `handler.max_age_ms` does not hold: the job is asked for old records."""

    def settings(self) -> Settings:
        """Settings as this process reads them; read once. Raises `ConfigError`, naming this machine."""
        if (known := _read.get(self)) is None:
            known = _read[self] = self._load()
        return known

    def _load(self) -> Settings:
        host = socket.gethostname()
        path = self._here()
        try:
            settings = load_settings(path, os.environ)
        except ConfigError as error:
            raise ConfigError(
                f"on {host}, where Spark runs a task: {error}\nThe executors need the driver's settings file under the "
                f"same path, or under the same relative one in an archive, and its KUNICORN_ variables: see "
                f"docs/pipeline.md"
            ) from error
        if (have := versions()) != self.versions:
            raise ConfigError(f"{host} has {have}, and the driver has {self.versions}: install the same on both")
        if (found := fingerprint(settings)) != self.fingerprint:
            raise ConfigError(
                f"on {host} the settings in {path} and KUNICORN_ variables are not the driver's ({found} instead "
                f"of {self.fingerprint}): bring the same ones to every executor"
            )
        return settings

    def _here(self) -> Path:
        """Where this process has the file: the driver's place before one of its own, as that is what most have."""
        path = Path(self.path)
        if self.relative is not None and not path.exists() and (ours := Path(self.relative).absolute()).exists():
            return ours
        return path

    def reader(self, limits: TaskLimits = NO_LIMITS, *, fail_on_data_loss: bool | None = None) -> RangeReader:
        """This process's range reader, with the current password; its client connects once, as tasks follow one
        another. `limits` say when. `fail_on_data_loss` is the settings' unless a caller has an own.

        Raises `ConfigError`.
        """
        settings = self.settings()
        access = Access(settings)
        strict = _is_strict(settings, fail_on_data_loss)
        if (known := _readers.get((self, strict))) is None:
            limits.spread()
            load.tune_gc()
            fetched = FetchPositions()
            consumer = access.consumer(fetched)
            known = _readers[self, strict] = RangeReader(consumer, passes_over_deleted=not strict, fetched=fetched)
        access.log_in(known.consumer)
        return known

    def records(
        self,
        limits: TaskLimits = NO_LIMITS,
        *,
        timestamp_types: bool = False,
        fail_on_data_loss: bool | None = None,
    ) -> RangeReader | ColumnReader:
        """This process's reader of records: by our own fetcher, or where that cannot be by librdkafka's consumer, whose
        messages become columns one by one for whoever takes columns. `timestamp_types` as the decoder has it,
        `fail_on_data_loss` as in `reader`.

        Raises `ConfigError`.
        """
        settings = self.settings()
        if without_columns(settings) is not None:
            return self.reader(limits, fail_on_data_loss=fail_on_data_loss)
        strict = _is_strict(settings, fail_on_data_loss)
        if (known := _columns.get((self, timestamp_types, strict))) is None:
            limits.spread()
            load.tune_gc()
            known = Access(settings).columns(timestamp_types=timestamp_types, passes_over_deleted=not strict)
            _columns[self, timestamp_types, strict] = known
        return known


def _is_strict(settings: Settings, own: bool | None) -> bool:
    """Whether what was deleted ends the reading. `own`: what a caller says; None: as the settings do."""
    return settings.pipeline.fail_on_data_loss if own is None else own


def without_columns(settings: Settings) -> str | None:
    """Why this process does not fetch by our own fetcher, in one sentence; None where it does."""
    if alone := of_librdkafka_alone(settings.kafka.librdkafka):
        return f"records are fetched by librdkafka, one by one, as [kafka.librdkafka] has {', '.join(alone)}"
    try:
        compiled()
    except ConfigError as error:
        return f"records are fetched by librdkafka, one by one, as {error}"
    return None


def told_of_differences(settings: Settings, say: Callable[[str], None]) -> None:
    """Say where records are not fetched by our own fetcher, and which settings of the live service do not hold in a
    job, where nothing stands in for them. Caller: a driver, once.
    """
    handlers = settings.every_handler
    if (why := without_columns(settings)) is not None:
        say(why)
    if settings.pipeline.max_records_per_second is None and any(each.rate_limit is not None for each in handlers):
        say(
            "warning: handler.rate_limit is the live service's, and this job calls the handler as fast as it can: "
            "pipeline.max_records_per_second limits a job"
        )
    if any(each.circuit_breaker is not None for each in handlers):
        say(
            "warning: handler.circuit_breaker is the live service's: while what the handler calls is away, this job "
            "tries its records as the retry rules say, and then on_failure decides"
        )
    if any(each.delay_ms for each in handlers):
        say("warning: handler.delay_ms is the live service's: this job handles records whatever their age")


_read: dict[SettingsFile, Settings] = {}
_readers: dict[tuple[SettingsFile, bool], RangeReader] = {}
"""By whether what was deleted ends the reading."""
_columns: dict[tuple[SettingsFile, bool, bool], ColumnReader] = {}
"""By whether the timestamps' types are wanted, and by whether what was deleted ends the reading."""


def settings_file(path: Path, settings: Settings) -> SettingsFile:
    """`SettingsFile` of the driver."""
    relative = None if path.is_absolute() else str(path)
    return SettingsFile(str(path.absolute()), fingerprint(settings), relative=relative)


def fingerprint(settings: Settings) -> str:
    """Hash of the settings that jobs go by, the same in driver and executors. Secrets have no part in it."""
    told = shown(settings)
    shared: dict[str, Any] = {section: told[section] for section in _SHARED if section in told}
    shared["kafka"] = {name: value for name, value in shared["kafka"].items() if name not in _OF_A_MACHINE}
    text = json.dumps(shared, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RangeFailed(ServiceError):
    """A task cannot go on in its range; Spark tries it again. The message names the place and the cause."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


@contextmanager
def named_by_place(*ranges: tuple[OffsetRange, memoryview | Mapping[int, int]]) -> Iterator[None]:
    """Name partition, offset and machine with what ends the block: one line of it is all that the driver is told.

    Of several ranges each may be the one that failed; with each its cells, as `kunicorn.pipeline.tasks.in_hand_file`
    has them. Raises `RangeFailed`.
    """
    with _named(
        lambda: " or ".join(
            f"{whole.tp} at offset {cells[NEXT]}, in {whole.start} to {whole.stop}" for whole, cells in ranges
        )
    ):
        yield


@contextmanager
def _named(what: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        where = os.environ.get("SPARK_EXECUTOR_ID")
        executor = f"executor {where} on {socket.gethostname()}" if where else socket.gethostname()
        raise RangeFailed(f"{what()}, on {executor}: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    """Last line of the traceback, with the code's place where the error is not worded for people."""
    if isinstance(error, ServiceError | PeerError):
        return " ".join(str(error).split())
    line = " ".join(traceback.format_exception_only(error)[-1].split())
    frames = traceback.extract_tb(error.__traceback__)
    return f"{line} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else line


InTask = Calls | SeveralCalls
"""How a task calls a handler."""
_MOST_AT_ONCE = 32
"""Ranges of one task: a client that fetches more at once keeps little of each."""


def at_once(settings: Settings) -> int:
    """How many ranges a task handles side by side: of handlers with several records in hand several, as a worker has
    several partitions. Imports the handlers. Raises `HandlerLoadError`, `ConfigError`.
    """
    most = 1
    for config in configs_of_jobs(settings):
        handler = handler_of(config.entrypoint, find(config.entrypoint))
        most = max(most, slots_of(handler, config).most)
    return min(most, _MOST_AT_ONCE)


@contextmanager
def set_up(file: SettingsFile) -> Iterator[HandlerRegistry[InTask]]:
    """This process's handlers, set up as a worker's are, for one task.

    They stay for the tasks that follow. Only handlers with a `teardown` and no `flush` are set up and torn down by each
    task: what they hold back would not be written before its offsets count, so that the caller ends its ranges behind
    this context. Spark ends its processes without a word, so that nobody can call `teardown` then. Raises
    `HandlerLoadError`, `ConfigError`.
    """
    handlings = _set_up.pop(file, None) or _loaded(file)
    yield handlings
    if handlings.holds_back:
        for handling in handlings.every:
            _tear_down(handling)
    else:
        _set_up[file] = handlings


def _tear_down(handling: Handling[InTask]) -> None:
    with _named(lambda: f"teardown of {handling.handler.entrypoint}"):
        handling.tear_down()


_set_up: dict[SettingsFile, HandlerRegistry[InTask]] = {}
"""Those that no task has right now: one that fails leaves none behind."""


def _loaded(file: SettingsFile) -> HandlerRegistry[InTask]:
    settings = file.settings()
    worker = Worker(0, os.getpid(), settings.group.id, settings.kafka.client_id)
    configs = configs_of_jobs(settings)
    if file.any_age:
        configs = [msgspec.structs.replace(each, max_age_ms=None) for each in configs]
    return HandlerRegistry.set_up(configs, worker, calls_in_task, on_filtered=lambda _: FILTERED.count)


class FilteredRecords:
    """How many records filters have passed by in this process, by partition."""

    def __init__(self) -> None:
        self._counts = Counter[TopicPartition]()
        self._lock = threading.Lock()

    def count(self, message: Message, name: str, *, saved: bool) -> None:
        """See `kunicorn.handler.filter.OnFiltered`. Caller: any thread of the handler's."""
        with self._lock:
            self._counts[TopicPartition(message.topic() or "", message.partition() or 0)] += 1

    def of(self, tp: TopicPartition) -> int:
        """Of that partition, since the process began."""
        return self._counts[tp]


FILTERED = FilteredRecords()
"""One for the process: handlers stay for the tasks that follow, and a task has one range of a partition at a time."""


def check_handlers(settings: Settings) -> None:
    """Raise `HandlerLoadError` for handlers that no job can run, and `ConfigError` for settings that no job can go by.
    Caller: the driver, before it starts anything.
    """
    _refuse_outputs(settings)
    for config in configs_of_jobs(settings):
        handler = handler_of(config.entrypoint, find(config.entrypoint))
        if handler.keeps_offsets:
            raise ConfigError(
                f"{config.entrypoint} keeps its offsets itself (load_offsets), but a job on Spark begins where its own "
                f"options say: what it handles would be applied again, or refused as a gap. Give the job a handler "
                f"without load_offsets, whose effects may come twice"
            )
        arguments_of(handler, config.mode, config.decoding, config.tracing)
        slots_of(handler, config)
        check_options(config)


def _refuse_outputs(settings: Settings) -> None:
    if settings.producing.delivery is not None:
        raise ConfigError(
            f'producing.delivery = "{settings.producing.delivery}", but jobs on Spark send nothing that a handler '
            f"yields: a task that Spark tries again would send it twice, and no transaction is theirs. Give the job "
            f"settings without [producing], and a handler that sends with a producer of its own and waits for it"
        )


CHECKED = "problem string, handler boolean"
_SCHEMA = pa.schema([("problem", pa.string()), ("handler", pa.bool_())])


@dataclass(frozen=True, slots=True)
class CheckExecutor:
    """Task that checks its executor: a row for each problem."""

    file: SettingsFile
    directory: Directory
    probe: str
    """A file that the driver has put there."""
    handler: bool
    """Whether the handler is checked, too."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark in an executor's Python process."""
        for _ in batches:
            pass
        problem, is_handlers = self._problem()
        if problem is not None:
            yield pa.RecordBatch.from_pylist([{"problem": problem, "handler": is_handlers}], schema=_SCHEMA)

    def _problem(self) -> tuple[str | None, bool]:
        try:
            settings = self.file.settings()
            if self.directory.read(self.probe) is None:
                return self._not_shared(), False
            if self.handler:
                check_handlers(settings)
        except ConfigError as error:
            return str(error), False
        except HandlerLoadError as error:
            return f"on {socket.gethostname()}, where Spark runs a task: {error}", True
        return None, False

    def _not_shared(self) -> str:
        return (
            f"{socket.gethostname()}, where Spark runs tasks, does not see {self.directory.url} as the driver does: "
            f"name a volume that all of them have, or a URL such as s3://bucket/runs, in pipeline.directory, or as the "
            f"DIR of an export"
        )
