"""`kunicorn pipeline export`: topics into a lake, each record once.

1. A range becomes files whose names are its own; written again they are replaced. The ranges of the round underway are
   in the target's manifest before the round, so that one that was cut off is repeated under the same names.
2. The manifest belongs to the target, not to a run: each export brings the target up to now, from where the last one
   ended. Of two exports at once the one that moves it on second ends.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from kunicorn.clients import decoding_of
from kunicorn.errors import ConfigError
from kunicorn.handling.calls import following_offsets
from kunicorn.pipeline.access import Access
from kunicorn.pipeline.bounds import Bounds, Everywhere
from kunicorn.pipeline.delta import NO_DATE, DeltaLake, LakeFile
from kunicorn.pipeline.dry_run import DryRun
from kunicorn.pipeline.executors import SettingsFile
from kunicorn.pipeline.finished import FinishedRun
from kunicorn.pipeline.hands import NEXT, take_up
from kunicorn.pipeline.jobs import Job
from kunicorn.pipeline.lake_columns import Form, LakeColumns
from kunicorn.pipeline.log import Log
from kunicorn.pipeline.metrics import Exposed
from kunicorn.pipeline.planning import check_same_topics, created_anew, plan, resumed
from kunicorn.pipeline.progress import Say
from kunicorn.pipeline.ranges import OffsetRange
from kunicorn.pipeline.rounds import Steps, run_rounds
from kunicorn.pipeline.session import open_session
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.stopping import stopping
from kunicorn.pipeline.storage import Directory, Manifest
from kunicorn.pipeline.tasks import Batches, Summary, summary_batch
from kunicorn.records import milliseconds_of
from kunicorn.settings import Settings

JOB = "export"
OWN = "_kunicorn"
"""What an export keeps for itself, below its target."""
_DAY_MS = 86_400_000
_ROW_GROUP = 100_000
"""Records that a writer holds back: a row group is what readers skip or read as a whole."""


@dataclass(frozen=True, slots=True)
class ExportRanges:
    """Write the records of the ranges to Parquet. Runs in an executor's Python process."""

    file: SettingsFile
    target: Directory
    form: Form
    topics: Mapping[str, str]
    """Ids of the topics, as far as they are known."""

    def __call__(self, ranges: Iterator[OffsetRange]) -> Batches:
        """One summary a range, its files in it. Raises what makes Spark try again."""
        settings = self.file.settings()
        for whole in ranges:
            began = time.monotonic()
            hand = take_up(whole, self.target / OWN)
            columns = self.form.columns(decoding_of(settings, settings.handler_of(whole.topic)))
            files = self._write(whole, _noted(self.file.reader().read(whole), hand.cells), columns)
            hand.over()
            records = sum(each.records for each in files)
            told, seconds = json.dumps(files), time.monotonic() - began
            yield summary_batch(Summary(*whole, whole.stop, records, 0, 0, None, told, seconds))

    def _write(self, whole: OffsetRange, fetched: Iterator[list[Message]], columns: LakeColumns) -> list[LakeFile]:
        attempt = f"-{uuid.uuid4().hex}" if self.form.delta else ""
        with ExitStack() as files:
            days: dict[str, _Day] = {}
            for messages in fetched:
                for day, some in groupby(messages, day_of):
                    if day not in days:
                        path = f"date={day}/{file_name(whole, self.topics.get(whole.topic), attempt)}"
                        days[day] = _Day(path, files.enter_context(self.target.writing(path)), columns)
                    days[day].add(list(some))
            return [each.close() for each in days.values()]


def _noted(fetched: Iterator[list[Message]], cells: memoryview) -> Iterator[list[Message]]:
    """What was fetched, with a note for the driver of how much of it is through."""
    for messages in fetched:
        yield messages
        cells[NEXT] = following_offsets(messages[-1:])[0]


class _Day:
    """One file: the records of a range that are of one day."""

    def __init__(self, path: str, stream: Any, columns: LakeColumns) -> None:
        self._path, self._stream, self._columns = path, stream, columns
        self._writer = pq.ParquetWriter(stream, columns.schema, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._rows = self._records = 0

    def add(self, messages: list[Message]) -> None:
        """Some more, in order."""
        self._held.append(self._columns.batch(messages))
        self._rows += len(messages)
        if self._rows >= _ROW_GROUP:
            self._flush()

    def close(self) -> LakeFile:
        """Nothing more comes; what the file is then."""
        self._flush()
        self._writer.close()
        return LakeFile(self._path, self._stream.tell(), self._records)

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._columns.schema))
        self._records += self._rows
        self._held, self._rows = [], 0


def day_of(message: Message) -> str:
    """The record's day in UTC, as directories of a lake are named."""
    milliseconds = milliseconds_of(message)
    return NO_DATE if milliseconds is None else _day(milliseconds // _DAY_MS)


_days: dict[int, str] = {}


def _day(number: int) -> str:
    if (known := _days.get(number)) is None:
        known = _days[number] = f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"
    return known


def file_name(whole: OffsetRange, topic_id: str | None, attempt: str = "") -> str:
    """Of a range's files, in the directory of each day. With the topic's id: one that is created anew replaces none."""
    # Kafka writes ids in base64, whose slash would be a directory of its own that nobody reads.
    named = "" if not topic_id else "-" + topic_id.replace("/", "_").replace("+", "-")
    place = f"{whole.topic}-{whole.partition}{named}"
    return f"{place}-{whole.start:020}-{whole.stop:020}{attempt}.parquet"


def dry_run(settings: Settings, target: Directory, form: Form) -> DryRun:
    """What an export would do. Starts no Spark and writes nothing. Raises `ConfigError`."""
    state, lost = _continued(settings, _Known(target, form), Log(Access(settings)))
    return DryRun(state.left, state.rate, lost)


def export(settings: Settings, file: SettingsFile, target: Directory, master: str, form: Form, say: Say) -> FinishedRun:
    """Bring the target up to now. Blocks. Raises what ends it: `ServiceError`s."""
    for handler in settings.every_handler:
        form.columns(decoding_of(settings, handler))  # That its decoders can be had is found out here, not by tasks.
    known, log = _Known(target, form), Log(Access(settings))
    state, lost = _continued(settings, known, log)
    for each in lost:
        say(f"warning: {each}")
    lake = DeltaLake(target, form.schema) if form.delta else None
    if lake is not None:
        state = _settled(lake, state)
        known.save(state)
    if not state.left:
        return FinishedRun(JOB, None, state, notes=[f"{target.url} has everything already"])

    def ended(now: RunState, summaries: Sequence[Summary]) -> None:
        check_same_topics(now.topics, log.topic_ids(now.topics))
        known.check()
        if lake is not None:
            files = [LakeFile(*each) for one in summaries for each in json.loads(one.file)]
            lake.commit(now.rounds, files, now.positions)
        known.save(now)

    spark = open_session(settings, master, JOB)
    try:
        job = Job(spark, file)
        job.check_executors(target / OWN, handler=False)
        steps = Steps(
            run=lambda ranges: job.run(ranges, ExportRanges(file, target, form, state.topics), target / OWN),
            begun=known.save,
            ended=ended,
            size=lambda now: settings.pipeline.max_offsets_per_trigger or _default_round(now),
            tasks=job.tasks,
            pieces=settings.pipeline.min_partitions,
        )
        with stopping() as stop:
            state = run_rounds(state, steps, Exposed(settings.http, JOB, say), stop, say)
    finally:
        spark.stop()
    return FinishedRun(JOB, None, state, "the same command")


def _settled(lake: DeltaLake, state: RunState) -> RunState:
    """With the round underway through, if the table has it: a run was killed before it wrote that into its manifest."""
    lake.open()
    if (committed := lake.rounds()) <= state.rounds:
        return state
    through = state.end([Summary(*each, each.stop, 0, 0, 0, None, "", 0.0) for each in state.underway], 0.0)
    return replace(through, rounds=committed)


_FILE_RECORDS = 1_000_000
"""Offsets of a range, unless a setting says otherwise: a file of a day is about as large as readers like it."""


def _default_round(state: RunState) -> int:
    return _FILE_RECORDS * max(1, len(state.left))


def _continued(settings: Settings, target: _Known, log: Log) -> tuple[RunState, list[str]]:
    """What the target has, and all that is in the topics now; and what is lost in between. Raises `ConfigError`."""
    before = target.read()
    topics = settings.group.topics or settings.assign.wanted.topics
    strict = settings.pipeline.fail_on_data_loss
    found = plan(log.partitions(topics), Bounds(Everywhere(-2), Everywhere(-1)), log, fail_on_data_loss=strict)
    anew = created_anew(before.topics, found.topics)
    first = {each.tp: each.start for each in before.ranges}
    known = {tp: at for tp, at in {**first, **before.positions}.items() if tp in found.edges.end}
    positions, lost = resumed(known, found.edges, anew, fail_on_data_loss=strict)
    starts = {tp: at for tp, at in first.items() if tp.topic not in anew}
    state = replace(
        before,
        ranges=tuple(each._replace(start=starts.get(each.tp, each.start)) for each in found.ranges),
        positions={tp: at for tp, at in {**before.positions, **positions}.items() if at != starts.get(tp)},
        underway=tuple(each for each in before.underway if each.topic not in anew),
        topics={**before.topics, **found.topics},
    )
    return state, lost


class _Known:
    """What the target knows of itself: in which form it is, and how far. Methods raise `ConfigError`."""

    def __init__(self, target: Directory, form: Form) -> None:
        self._target, self._form = target, form
        self._manifest = Manifest(target / OWN)

    def save(self, state: RunState) -> None:
        """Raises `Overtaken` where another export goes on."""
        self._manifest.write({**asdict(self._form), **state.as_json()})

    def check(self) -> None:
        """Raises `Overtaken` where another export goes on."""
        self._manifest.check()

    def read(self) -> RunState:
        """How far it is; a new one is nowhere."""
        told, form = self._manifest.read(), self._form
        if told is None:
            if self._target.names(".parquet"):
                raise ConfigError(f"{self._target.url} has Parquet files of another's; name another directory")
            return RunState(())
        if (before := Form(told["delta"], told["value"], told["key"])) != form:
            raise ConfigError(
                f"{self._target.url} was begun with {_shown(before)}, and this is {_shown(form)}: go on with the same "
                f"--to, --value and --key (handler.value and handler.key where those are left out), or name another "
                f"directory"
            )
        return RunState.from_json(told)


def _shown(form: Form) -> str:
    return f"{'delta' if form.delta else 'parquet'} of {form.value} values and {form.key} keys"
