"""Columns of a lake: what an export makes of records, by the form that the lake was begun with.

They are those of Spark's own Kafka source. The type of value and key follows from their decoder's name alone, or from a
schema that is given, never from the records: schemas change from one record to the next, and a table whose columns
follow them cannot be appended to. `bytes` is binary, `text` is string. `json` is string, the record's own characters
once they have been found to be JSON: parsed and written again, numbers would lose digits. Any other decoder's result is
kept as JSON in a string, which every engine can look into. By a schema (`columns_of`) values become structs.
"""

from __future__ import annotations

import base64
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import msgspec
import orjson
import pyarrow as pa
from confluent_kafka import Message

from kunicorn.errors import ConfigError, ServiceError
from kunicorn.handler.columns import SCHEMA, records_batch
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.decode.decoders import Decoder, Part
from kunicorn.handler.decode.forms import BYTES, decoded_columns, decoder_of
from kunicorn.handler.decode.typed import TypedValues, typed_values
from kunicorn.handler.messages import Run
from kunicorn.pipeline.lake.files import DAY, Partitioning, changes, hidden_partitioning, partitioning
from kunicorn.pipeline.storage import visible
from kunicorn.settings import Settings

T = TypeVar("T")

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
    columns_of: str | None = None
    """Where the schema is, package.module:NAME, by which values become a column of structs; None: they do not."""
    partition_by: str = DAY
    """As `lake_files.partitioning` has it."""
    merge_by: str | None = None
    """"key": the table has the newest row of each key; None: a row for each record."""
    iceberg: str | None = None
    """Name of the Iceberg table in its catalog; None: it is none."""

    @property
    def partitioning(self) -> Partitioning:
        """How files are laid out. Raises `ConfigError`."""
        if self.merge_by is not None:
            return changes()
        cut = partitioning if self.iceberg is None else hidden_partitioning
        return cut(self.partition_by, typed=self.columns_of is not None)

    @property
    def logged(self) -> bool:
        """Whether a table's log says which files count, so that each try of a task may have names of its own."""
        return self.delta or self.iceberg is not None

    def as_json(self) -> dict[str, Any]:
        """The form for a lake's manifest: what is not asked for is not written."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: told for name, told in every.items() if name in _ALWAYS or told != getattr(Form(), name)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Form:
        """Form in a lake's manifest."""
        return cls(**{each.name: told[each.name] for each in fields(cls) if each.name in told})

    def columns(self, decoding: Decoding) -> LakeColumns:
        """Maker of the columns, in the calling process. Raises `HandlerLoadError`."""
        typed = None
        if self.columns_of is not None:
            written = msgspec.structs.replace(decoding, value=self.value)
            typed = typed_values(written, self.columns_of)
        schema, decoded = SCHEMA, self.decoded
        for part in decoded:
            kind = typed.kind if typed is not None and part is Part.VALUE else pa.string()
            schema = schema.set(schema.get_field_index(part.value), pa.field(part.value, kind))
        of_value = BYTES if typed is not None else self.value
        decoders = (decoder_of(of_value, Part.VALUE, decoding), decoder_of(self.key, Part.KEY, decoding))
        return LakeColumns(schema, *decoders, decoded, typed)

    @property
    def decoded(self) -> Mapping[Part, str]:
        """Columns that are not bytes, with their decoders' names."""
        return {part: name for part, name in ((Part.VALUE, self.value), (Part.KEY, self.key)) if name != BYTES}


def kinds(schema: pa.Schema) -> dict[str, str]:
    """Types of the columns and of all fields in them, by their paths: a schema as a manifest keeps it. Pure."""
    found: dict[str, str] = {}

    def enter(path: str, field: pa.Field) -> None:
        kind = field.type
        text, inner = str(kind), dict[str, pa.Field]()
        if pa.types.is_struct(kind):
            text, inner = "struct", {f"{path}.{each.name}": each for each in kind}
        elif pa.types.is_map(kind):
            text, inner = "map", {f"{path}.key": kind.key_field, f"{path}.value": kind.item_field}
        elif pa.types.is_fixed_size_list(kind):
            text, inner = f"list of {kind.list_size}", {f"{path}[]": kind.value_field}
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            text, inner = text.partition("<")[0], {f"{path}[]": kind.value_field}
        found[path] = text if field.nullable else f"{text}{NOT_NULL}"
        for name, each in inner.items():
            enter(name, each)

    for column in schema:
        enter(column.name, column)
    return found


def kinds_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What is other in the second one, in words; "" where nothing is. Pure."""
    told = [f"{path} was {kind}, and is {now[path]}" for path, kind in before.items() if now.get(path, kind) != kind]
    told += [f"{path} is gone" for path in _outermost(path for path in before if path not in now)]
    told += [f"{path} is new" for path in _outermost(path for path in now if path not in before)]
    return "; ".join(told) or ("" if list(before) == list(now) else "the fields are in another order")


def _outermost(paths: Iterable[str]) -> Iterator[str]:
    """The paths, in `kinds`' order, without the fields within one of them."""
    last = None
    for path in paths:
        if last is None or not path.startswith((f"{last}.", f"{last}[")):
            last = path
            yield path


def nullable(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The first one, where a field may be null in it and not in the second: with what the second has. Pure."""
    return {path: now[path] if now.get(path) == f"{kind}{NOT_NULL}" else kind for path, kind in before.items()}


NOT_NULL = " not null"
_ALWAYS = ("delta", "value", "key")
LAKES = ("parquet", "delta", "iceberg")
_NAMED = ("bytes", "text", "json")
"""What the command line names; other decoders have more to say than fits there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of a lake's form; None where it is left to the settings."""

    to: str = "parquet"
    value: str | None = None
    key: str | None = None
    columns: str | None = None
    partition_by: str = DAY
    merge_by: str | None = None
    table: str | None = None
    """Of an Iceberg table."""


def form_asked(settings: Settings, asked: Asked) -> Form:
    """Form that the command line asks for, completed from the settings. Raises `ConfigError`."""
    if asked.to not in LAKES:
        raise ConfigError(f"--to {asked.to!r} is none of {', '.join(LAKES)}; choose one")
    _check_table(asked)
    _check_merging(asked)
    _check_partitioning(asked)
    value, key = _decoder(settings, Part.VALUE, asked.value), _decoder(settings, Part.KEY, asked.key)
    return Form(asked.to == "delta", value, key, asked.columns, asked.partition_by, asked.merge_by, asked.table)


def _check_partitioning(asked: Asked) -> None:
    for column in partitioning(asked.partition_by, typed=asked.columns is not None).columns:
        if asked.to == "parquet" and column != visible(column):
            raise ConfigError(
                f"--partition-by {asked.partition_by!r}: readers of Parquet directories pass over those whose names "
                f"begin with {column[0]!r}; choose another field, or say --to delta or --to iceberg"
            )


def _check_table(asked: Asked) -> None:
    if asked.to != "iceberg":
        if asked.table is not None:
            raise ConfigError(f"--table {asked.table!r} names an Iceberg table: say --to iceberg, too, or leave it out")
        return
    if asked.table is None:
        raise ConfigError("--to iceberg: say which table of the catalog, as in --table shop.orders")
    if "." not in asked.table or not all(asked.table.split(".")):
        raise ConfigError(f"--table {asked.table!r} is no name of a namespace and a table, as shop.orders is")


def _check_merging(asked: Asked) -> None:
    if asked.merge_by is None:
        return
    if asked.merge_by != "key":
        raise ConfigError(f"--merge-by {asked.merge_by!r}: rows are merged by key, as topics are compacted")
    if asked.to == "iceberg":
        raise ConfigError(
            "--merge-by key: to replace a row of an Iceberg table pyiceberg reads and writes whole files of it anew; "
            "say --to delta, or merge the exported rows by MERGE INTO in the engine that reads them"
        )
    if asked.to != "delta":
        raise ConfigError("--merge-by key: Parquet has no transactions that replace rows; say --to delta, too")
    if asked.partition_by != DAY:
        raise ConfigError("--merge-by key: a row moves with its key's newest record; leave out --partition-by")


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
    typed: TypedValues | None = None
    """Of values that become a column of structs."""
    patience: float = 60.0
    """Seconds to wait for a schema registry that does not answer."""

    def batch(self, run: Run) -> pa.RecordBatch:
        """Records as rows. Raises `NotExportable`, naming the record. Blocks while the schema registry is away."""
        plain = records_batch(run)
        if not self.decoded:
            return plain
        columns = plain.columns
        if self.typed is not None:
            at = self.schema.get_field_index(Part.VALUE.value)
            columns[at] = self._patiently(partial(self.typed.read, run, columns[at]))
        texts = {part: name for part, name in self.decoded.items() if self.typed is None or part is not Part.VALUE}
        if texts:
            for part, text in self._texts(run, plain, texts).items():
                columns[self.schema.get_field_index(part.value)] = text
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _texts(self, run: Run, plain: pa.RecordBatch, names: Mapping[Part, str]) -> dict[Part, pa.Array]:
        """Columns of texts, by the decoders of these names."""
        if set(names.values()) <= {"text", "json"}:
            with contextlib.suppress(pa.ArrowInvalid, ValueError):
                return {part: _as_text(plain.column(part.value), name) for part, name in names.items()}
            # Below, the record is named.
        messages = list(run)
        (values, keys), failure = self._patiently(partial(decoded_columns, messages, self.value, self.key))
        if failure is not None:
            raise NotExportable(f"{failure}; {_REMEDY}")
        found = {Part.VALUE: values, Part.KEY: keys}
        return {
            part: pa.array(map(_text_of(name, part), messages, found[part]), pa.string())
            for part, name in names.items()
        }

    def _patiently(self, decode: Callable[[], T]) -> T:
        """What is decoded, waiting while the schema registry is away: otherwise Spark's four tries of a task would be
        over within a second.
        """
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return decode()
            except NotDecodableYet as away:
                if time.monotonic() >= deadline:
                    raise NotExportable(
                        f"{away}, for {self.patience:g} s; see [schema_registry] and whether it serves, then export "
                        f"again: it goes on where it ended"
                    ) from away
            except Undecodable as error:
                raise NotExportable(f"{error}; {_REMEDY}") from error
            time.sleep(min(_PAUSE_SECONDS, self.patience))


def _as_text(column: pa.Array, name: str) -> pa.Array:
    """The bytes as text, without an object a record; of `json` each is parsed. Raises `ArrowInvalid` for what is not
    UTF-8, `ValueError` for what is not JSON.
    """
    if name == "json":
        for each in column.drop_null().to_pylist():
            orjson.loads(each)
    return column.cast(pa.string())


def _text_of(name: str, part: Part) -> Callable[[Message, Any], str | None]:
    """Function from a message and its decoded part to the column's text."""
    if name == "text":
        return lambda message, text: text
    if name == "json":
        return lambda message, _: None if (raw := part.of(message)) is None else raw.decode()
    return lambda message, decoded: None if decoded is None else _json(message, part, decoded)


def _json(message: Message, part: Part, decoded: Any) -> str:
    try:
        text = orjson.dumps(decoded, _plain, _OPTIONS)
        # Among the nulls may be numbers that JSON has no word for.
        return (orjson.dumps(_in_words(decoded), _plain, _OPTIONS) if b"null" in text else text).decode()
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


def _in_words(found: Any) -> Any:
    """The object with texts in place of numbers that JSON lacks, as Protobuf's JSON has them."""
    if isinstance(found, float):
        return found if math.isfinite(found) else "NaN" if math.isnan(found) else f"{'-' * (found < 0)}Infinity"
    if isinstance(found, dict):
        return {_in_words(key): _in_words(each) for key, each in found.items()}
    if isinstance(found, list | tuple):
        return list(map(_in_words, found))
    if is_dataclass(found):
        names = [each.name for each in fields(found)] if (held := getattr(found, "__dict__", None)) is None else held
        return {name: _in_words(getattr(found, name)) for name in names if not name.startswith("_")}
    return found
