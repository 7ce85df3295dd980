"""`kunicorn pipeline export`: topics into a lake (Parquet files, or a Delta table), each record once.

1. A range becomes files whose names are its own; written again they are replaced. The ranges of the round underway are
   in the target's manifest before the round, so that one that was cut off is repeated under the same names.
2. The manifest belongs to the target, not to a run: each export brings the target up to now, from where the last one
   ended. Of two exports at once the one that moves it on second ends.
3. Columns are those of Spark's own Kafka source. The type of value and key follows from their decoder's name alone,
   never from the records: schemas change from one record to the next, and a table whose columns follow them cannot be
   appended to. `bytes` is binary, `text` is string. `json` is string, the record's own characters once they have been
   found to be JSON: parsed and written again, numbers would lose digits. Any other decoder's result is kept as JSON in
   a string, which every engine can look into.
4. In a Delta table a file counts once the table's log names it. Each attempt of a task has names of its own, so that a
   late one never replaces what is committed; files that no transaction names are rubbish for VACUUM.
5. The Delta transaction carries the export's id and the round's number (`txn` in Delta's protocol). A duplicate is
   accepted by the format, so the number is looked up before: a round whose commit went through before a crash is not
   repeated.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from kunicorn.clients.access import Access
from kunicorn.clients.config import decoding_of
from kunicorn.clients.questions import Log
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.handler.call import following_offsets
from kunicorn.handler.columns import SCHEMA, records_batch
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.decode.decoders import Decoder, Part
from kunicorn.handler.decode.forms import BYTES, decoded_columns, decoder_of
from kunicorn.handler.record import milliseconds_of
from kunicorn.pipeline.executors import SettingsFile
from kunicorn.pipeline.in_hand_file import NEXT, take_up
from kunicorn.pipeline.plan import Bounds, Everywhere, as_json, check_same_topics, created_anew, plan, resumed
from kunicorn.pipeline.report import DryRun, Exposed, FinishedRun, Say
from kunicorn.pipeline.rounds import Steps, run_rounds, stopping
from kunicorn.pipeline.spark import Job, open_session
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, Manifest
from kunicorn.pipeline.task import Batches, Summary, summary_batch
from kunicorn.positions import OffsetRange, Offsets
from kunicorn.settings import Settings

_REMEDY = (
    "handler.value and handler.key say how records are decoded; --value bytes and --key bytes take them as they are"
)
_PAUSE_SECONDS = 1.0
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


class NotExportable(ServiceError):
    """A record does not fit the lake's columns; none is left out silently."""


@dataclass(frozen=True, slots=True)
class Form:
    """Columns of the lake; travels to the tasks, and is kept in the lake's manifest."""

    delta: bool = False
    value: str = BYTES
    """A decoder's name, as in `handler.value`."""
    key: str = BYTES

    @property
    def schema(self) -> pa.Schema:
        """Schema of the files."""
        schema = SCHEMA
        for part in self.decoded:
            at = schema.get_field_index(part.value)
            schema = schema.set(at, pa.field(part.value, pa.string()))
        return schema

    def columns(self, decoding: Decoding) -> LakeColumns:
        """Maker of the columns, in the calling process. Raises `HandlerLoadError`."""
        decoders = (decoder_of(self.value, Part.VALUE, decoding), decoder_of(self.key, Part.KEY, decoding))
        return LakeColumns(self.schema, *decoders, self.decoded)

    @property
    def decoded(self) -> Mapping[Part, str]:
        """Columns that are not bytes, with their decoders' names."""
        return {part: name for part, name in ((Part.VALUE, self.value), (Part.KEY, self.key)) if name != BYTES}


LAKES = ("parquet", "delta")
_NAMED = ("bytes", "text", "json")
"""What the command line names; other decoders have more to say than fits there."""


def form_asked(settings: Settings, to: str, value: str | None, key: str | None) -> Form:
    """Form that the command line asks for, completed from the settings. Pure. Raises `ConfigError`."""
    if to not in LAKES:
        raise ConfigError(f"--to {to!r} is neither parquet nor delta; choose one")
    return Form(to == "delta", _decoder(settings, Part.VALUE, value), _decoder(settings, Part.KEY, key))


def _decoder(settings: Settings, part: Part, asked: str | None) -> str:
    name = part.value
    if asked is not None:
        if asked not in _NAMED:
            raise ConfigError(f"--{name} {asked!r} is none of bytes, text and json; handler.{name} names any decoder")
        return asked
    found = sorted({str(getattr(each, name)) for each in settings.every_handler})
    if len(found) > 1:
        raise ConfigError(
            f"the [[handlers]] decode {name}s in different ways ({', '.join(found)}), and an export has one form of "
            f"columns: say --{name}, or export each topic with settings of its own"
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Makes columns of messages."""

    schema: pa.Schema
    value: Decoder
    key: Decoder
    decoded: Mapping[Part, str]
    """As `Form.decoded`."""
    patience: float = 60.0
    """Seconds to wait for a schema registry that does not answer."""

    def batch(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """Messages as rows. Raises `NotExportable`, naming the record. Blocks while the schema registry is away."""
        plain = records_batch(messages)
        if not self.decoded:
            return plain
        (values, keys), failure = self._decoded(messages)
        if failure is not None:
            raise NotExportable(f"{failure}; {_REMEDY}")
        found = {Part.VALUE: values, Part.KEY: keys}
        columns = plain.columns
        for part, name in self.decoded.items():
            texts = pa.array(map(_text_of(name, part), messages, found[part]), pa.string())
            columns[self.schema.get_field_index(part.value)] = texts
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _decoded(self, messages: Sequence[Message]) -> tuple[tuple[list[Any], list[Any]], Undecodable | None]:
        """As `decoded_columns`, waiting while the schema registry is away: otherwise Spark's four tries of a task would
        be over within a second.
        """
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return decoded_columns(messages, self.value, self.key)
            except NotDecodableYet as away:
                if time.monotonic() >= deadline:
                    raise NotExportable(
                        f"{away}, for {self.patience:g} s; see [schema_registry] and whether it serves, then export "
                        f"again: it goes on where it ended"
                    ) from away
            time.sleep(min(_PAUSE_SECONDS, self.patience))


def _text_of(name: str, part: Part) -> Callable[[Message, Any], str | None]:
    """Function from a message and its decoded part to the column's text."""
    if name == "text":
        return lambda message, text: text
    if name == "json":
        return lambda message, _: None if (raw := part.of(message)) is None else raw.decode()
    return lambda message, decoded: None if decoded is None else _json(message, part, decoded)


def _json(message: Message, part: Part, decoded: Any) -> str:
    try:
        return orjson.dumps(decoded, _plain, _OPTIONS).decode()
    except orjson.JSONEncodeError as error:
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        raise NotExportable(f"{place}: its {part.value} cannot be written as JSON: {error}; {_REMEDY}") from error


def _plain(found: Any) -> Any:
    """JSON value for types that JSON lacks: bytes as base64 and decimals as text, as Protobuf's JSON has them."""
    if isinstance(found, bytes | bytearray | memoryview):
        return base64.b64encode(found).decode()
    if isinstance(found, Decimal):
        return str(found)
    if hasattr(found, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(found, preserving_proto_field_name=True)
    raise TypeError


APP_ID = "kunicorn-export"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"


class LakeFile(NamedTuple):
    """File that a task has written, below the target."""

    path: str
    size: int
    records: int


class DeltaLake:
    """One Delta table. Every method blocks. Raises `ConfigError` where it is none, or deltalake is not installed."""

    def __init__(self, target: Directory, schema: pa.Schema) -> None:
        """`schema`: of the files; the table has `date` besides."""
        try:
            import deltalake
        except ImportError as error:
            raise ConfigError("deltalake is not installed: pip install 'kunicorn[pipeline,delta]'") from error
        self._deltalake: Any = deltalake
        self._uri = target.url
        self._schema = schema.append(pa.field("date", pa.string()))
        self._table: Any = None

    def open(self) -> None:
        """Open the table, or make it, partitioned by date."""
        errors = self._deltalake.exceptions
        try:
            if self._deltalake.DeltaTable.is_deltatable(self._uri):
                self._table = self._deltalake.DeltaTable(self._uri)
            else:
                self._table = self._deltalake.DeltaTable.create(self._uri, self._schema, partition_by=["date"])
        except (errors.DeltaError, OSError) as error:
            raise ConfigError(f"{self._uri} cannot be used as a Delta table: {error}") from error
        found = set(pa.schema(self._table.schema().to_arrow()).names)
        if missing := [name for name in self._schema.names if name not in found]:
            raise ConfigError(f"the Delta table {self._uri} has no column {missing[0]!r}: name another directory")

    def rounds(self) -> int:
        """Number of the last round that is committed; 0 before the first."""
        self._table.update_incremental()
        return int(self._table.transaction_version(APP_ID) or 0)

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files in one transaction, unless that has happened already."""
        if self.rounds() >= number:
            return
        transaction = self._deltalake.transaction
        self._table.create_write_transaction(
            [self._added(each) for each in files],
            mode="append",
            schema=self._schema,
            partition_by=["date"],
            commit_properties=self._deltalake.CommitProperties(
                custom_metadata={"kunicorn.offsets": json.dumps(as_json(ends))},
                app_transactions=[transaction.Transaction(APP_ID, number)],
            ),
        )

    def _added(self, file: LakeFile) -> Any:
        day = file.path.partition("/")[0].removeprefix("date=")
        return self._deltalake.transaction.AddAction(
            path=file.path,
            size=file.size,
            partition_values={"date": None if day == NO_DATE else day},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps({"numRecords": file.records}),
        )


JOB = "export"
OWN = "_kunicorn"
"""What an export keeps for itself, below its target."""
_DAY_MS = 86_400_000
_ROW_GROUP = 100_000
"""Records that a writer holds back: a row group is what readers skip or read as a whole."""


@dataclass(frozen=True, slots=True)
class ExportRanges:
    """Task that writes the records of ranges to Parquet. Runs in an executor's Python process."""

    file: SettingsFile
    target: Directory
    form: Form
    topics: Mapping[str, str]
    """Ids of the topics, as far as they are known."""

    def __call__(self, ranges: Iterator[OffsetRange]) -> Batches:
        """One summary a range, with its files. An exception makes Spark try the task again."""
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
    """The fetched messages, with their progress noted for the driver."""
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
        """Append messages, in order."""
        self._held.append(self._columns.batch(messages))
        self._rows += len(messages)
        if self._rows >= _ROW_GROUP:
            self._flush()

    def close(self) -> LakeFile:
        """Finish the file."""
        self._flush()
        self._writer.close()
        return LakeFile(self._path, self._stream.tell(), self._records)

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._columns.schema))
        self._records += self._rows
        self._held, self._rows = [], 0


def day_of(message: Message) -> str:
    """Day of the record in UTC, as directories of a lake are named."""
    milliseconds = milliseconds_of(message)
    return NO_DATE if milliseconds is None else _day(milliseconds // _DAY_MS)


_days: dict[int, str] = {}


def _day(number: int) -> str:
    if (known := _days.get(number)) is None:
        known = _days[number] = f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"
    return known


def file_name(whole: OffsetRange, topic_id: str | None, attempt: str = "") -> str:
    """Name of a range's files, in the directory of each day. With the topic's id: a topic created anew replaces no
    files of its predecessor.
    """
    # Kafka writes ids in base64, whose slash would be a directory of its own that nobody reads.
    named = "" if not topic_id else "-" + topic_id.replace("/", "_").replace("+", "-")
    place = f"{whole.topic}-{whole.partition}{named}"
    return f"{place}-{whole.start:020}-{whole.stop:020}{attempt}.parquet"


def dry_run(settings: Settings, target: Directory, form: Form) -> DryRun:
    """Plan of an export. Starts no Spark and writes nothing. Raises `ConfigError`."""
    state, lost = _continued(settings, _Known(target, form), Log(Access(settings)))
    return DryRun(state.left, state.rate, lost)


def export(settings: Settings, file: SettingsFile, target: Directory, master: str, form: Form, say: Say) -> FinishedRun:
    """Bring the target up to now. Blocks. Raises a `ServiceError` where it ends early."""
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
    """The state with the round underway ended, if the table has it: a run was killed before it wrote that into its
    manifest.
    """
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
    """The target's state with all that is in the topics now, and what is lost in between. Raises `ConfigError`."""
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
    """Manifest of the target: its form and its progress. Methods raise `ConfigError`."""

    def __init__(self, target: Directory, form: Form) -> None:
        self._target, self._form = target, form
        self._manifest = Manifest(target / OWN)

    def save(self, state: RunState) -> None:
        """Write the state. Raises `Overtaken` where another export has moved it on."""
        self._manifest.write({**asdict(self._form), **state.as_json()})

    def check(self) -> None:
        """Raise `Overtaken` where another export has moved it on."""
        self._manifest.check()

    def read(self) -> RunState:
        """State of the target; that of a new one has nothing done."""
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
