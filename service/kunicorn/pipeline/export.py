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
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Message

from kunicorn.clients.config import decoding_of
from kunicorn.clients.session import JOB_PATIENCE, cluster_session
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.columns import SCHEMA, records_batch
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.decode.decoders import Decoder, Part
from kunicorn.handler.decode.forms import BYTES, decoded_columns, decoder_of
from kunicorn.handler.extras import install_extra
from kunicorn.handler.rows import following_offsets
from kunicorn.kafka.stored_positions import Loss, Lost
from kunicorn.pipeline.executors import SettingsFile, named_by_place
from kunicorn.pipeline.in_hand_file import NEXT, take_up
from kunicorn.pipeline.lake_files import NO_DATE, DayFiles, LakeFile
from kunicorn.pipeline.plan import Bounds, Everywhere, as_json, check_nothing_lost, created_anew, plan, resumed
from kunicorn.pipeline.range_outcomes import Summary
from kunicorn.pipeline.report import DryRun, FinishedRun, Say
from kunicorn.pipeline.rounds import RangeJob
from kunicorn.pipeline.shares import WholeRounds
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, Manifest
from kunicorn.positions import EARLIEST, LATEST, OffsetRange, Offsets
from kunicorn.settings import Settings

_REMEDY = (
    "handler.value and handler.key say how records are decoded; --value bytes and --key bytes take them as they are"
)
_PAUSE_SECONDS = 1.0
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


class NotExportable(ServiceError):
    """A record does not fit the lake's columns; none is left out silently."""


class NotCommitted(ServiceError):
    """The lake refuses a round, as when another export has committed it."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


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


class DeltaLake:
    """One Delta table. Every method blocks. Raises `ConfigError` where it is none, or deltalake is not installed."""

    def __init__(self, target: Directory, schema: pa.Schema) -> None:
        """`schema`: of the files; the table has `date` besides."""
        try:
            import deltalake
        except ImportError as error:
            raise ConfigError(f"deltalake is not installed: {install_extra('pipeline', 'delta')}") from error
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
        transaction, errors = self._deltalake.transaction, self._deltalake.exceptions
        try:
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
        except (errors.DeltaError, OSError) as error:
            raise NotCommitted(
                f"the Delta table {self._uri} does not take round {number}: {error}. Nothing of it is in the table; "
                f"see whether another export writes there, then export again: it goes on where it ended"
            ) from error

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


@dataclass(frozen=True, slots=True)
class ExportRanges:
    """Task that writes the records of ranges to Parquet. Runs in an executor's Python process."""

    file: SettingsFile
    target: Directory
    form: Form
    topics: Mapping[str, str]
    """Ids of the topics, as far as they are known."""

    def __call__(self, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        """One summary a range, with its files. An exception makes Spark try the task again."""
        settings = self.file.settings()
        for whole in ranges:
            began = time.monotonic()
            hand = take_up(whole, self.target / OWN)
            with named_by_place(whole, hand.cells):
                columns = self.form.columns(decoding_of(settings, settings.handler_of(whole.topic)))
                files = self._write(whole, _noted(self.file.reader().read(whole), hand.cells), columns)
            hand.over()
            records = sum(each.records for each in files)
            told, seconds = json.dumps(files), time.monotonic() - began
            yield Summary(*whole, whole.stop, records, 0, 0, None, told, seconds)

    def _write(self, whole: OffsetRange, fetched: Iterator[list[Message]], columns: LakeColumns) -> list[LakeFile]:
        attempt = f"-{uuid.uuid4().hex}" if self.form.delta else ""
        name = file_name(whole, self.topics.get(whole.topic), attempt)
        with DayFiles(self.target, lambda day: f"date={day}/{name}", columns) as files:
            for messages in fetched:
                files.add(messages)
            return files.close()


def _noted(fetched: Iterator[list[Message]], cells: memoryview) -> Iterator[list[Message]]:
    """The fetched messages, with their progress noted for the driver."""
    for messages in fetched:
        yield messages
        cells[NEXT] = following_offsets(messages[-1:])[0]


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
    state, lost, _ = _continued(settings, _Known(target, form).read())
    return DryRun(state.left, state.rate, list(map(str, lost)))


def export(settings: Settings, file: SettingsFile, target: Directory, master: str, form: Form, say: Say) -> FinishedRun:
    """Bring the target up to now. Blocks. Raises a `ServiceError` where it ends early."""
    for handler in settings.every_handler:
        form.columns(decoding_of(settings, handler))  # That its decoders can be had is found out here, not by tasks.
    known = _Known(target, form)
    lake = DeltaLake(target, form.schema) if form.delta else None
    before = known.read()
    settled = before if lake is None else _settled(lake, before)
    state, lost, dropped = _continued(settings, settled)
    for each in lost:
        say(f"warning: {each}")
    if dropped:
        _remove(target, dropped)
    if lost or settled is not before:
        # What is accepted once is not asked for again.
        known.save(state)
    if not state.left:
        return FinishedRun(JOB, None, state, notes=[f"{target.url} has everything already"])

    def ended(now: RunState, summaries: Sequence[Summary]) -> None:
        known.check()
        if lake is not None:
            files = [LakeFile(*each) for one in summaries for each in json.loads(one.file)]
            lake.commit(now.rounds, files, now.positions)
        known.save(now)

    task, pipeline = ExportRanges(file, target, form, state.topics), settings.pipeline
    job = RangeJob(
        name=JOB,
        settings=settings,
        file=file,
        directory=target / OWN,
        handler=False,
        task=lambda again: task,
        next=WholeRounds(pipeline.max_offsets_per_trigger, _FILE_RECORDS, pipeline.min_partitions),
        begun=known.save,
        ended=ended,
        together=True,
    )
    state = job(state, master, JOB, say)
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


def _remove(target: Directory, names: Collection[str]) -> None:
    """Delete the files of these names, whatever their day."""
    for path in target.names(".parquet"):
        if path.rpartition("/")[2] in names:
            target.delete(path)


def _continued(settings: Settings, before: RunState) -> tuple[RunState, list[Loss], set[str]]:
    """The target's state with all that is in the topics now, what is lost in between, and the names of files that do
    not count: of ranges underway whose offsets are other records now, or none. Raises `ConfigError`.
    """
    topics = settings.group.topics or settings.assign.wanted.topics
    strict = settings.pipeline.fail_on_data_loss
    everything = Bounds(Everywhere(EARLIEST), Everywhere(LATEST))
    with cluster_session(settings, patience=JOB_PATIENCE) as session:
        found = plan(session.partitions(topics), everything, session, fail_on_data_loss=strict)
    anew = created_anew(before.topics, found.topics)
    first = {each.tp: each.start for each in before.ranges}
    stored = {**first, **before.positions}
    deleted = {tp for tp in stored if tp not in found.edges and _is_wanted(tp.topic, topics)}
    known = {tp: at for tp, at in stored.items() if tp in found.edges or tp in deleted}
    positions, lost = resumed(known, found.edges, anew, fail_on_data_loss=strict)
    cut_off = [each for each in before.underway if each.tp in found.edges and each.stop > found.edges[each.tp].end]
    short = [Loss(each.tp, Lost.TRUNCATED, each.stop, found.edges[each.tp].end) for each in cut_off]
    lost += [each for each in short if each.tp.topic not in anew]
    if strict:
        check_nothing_lost(lost)
    dropped = [each for each in before.underway if each.topic in anew or each.tp in deleted or each in cut_off]
    starts = {tp: at for tp, at in first.items() if tp.topic not in anew}
    state = replace(
        before,
        ranges=tuple(each._replace(start=starts.get(each.tp, each.start)) for each in found.ranges),
        positions={
            tp: at for tp, at in {**before.positions, **positions}.items() if at != starts.get(tp) and tp not in deleted
        },
        underway=tuple(each for each in before.underway if each not in dropped),
        topics={**before.topics, **found.topics},
    )
    return state, lost, {file_name(each, before.topics.get(each.topic)) for each in dropped}


def _is_wanted(topic: str, wanted: Collection[str]) -> bool:
    """Whether the settings ask for the topic: one that they do not ask for any more is no loss."""
    return any(topic == each or (each.startswith("^") and re.match(each, topic)) for each in wanted)


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
