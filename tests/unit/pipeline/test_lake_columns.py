"""What an export has for columns, by the names of the handler's decoders."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.handler.columns import SCHEMA, records_batch
from kunicorn.handler.config import Decoding
from kunicorn.pipeline.export import _Known
from kunicorn.pipeline.lake.columns import Asked, Form, NotExportable, form_asked
from kunicorn.pipeline.lake.files import NO_DATE, OWN, by_day
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, Manifest
from kunicorn.settings import Settings
from kunicorn.settings.load import load_tables
from tests.fakes.complete_settings import tables_of

PLAIN = Decoding()


def messages(*values: bytes | None, key: bytes | None = b"k") -> list[Message]:
    return [
        Message(topic="orders", partition=3, offset=at, key=key, value=value, timestamp=(1, 1_000), headers=[])
        for at, value in enumerate(values)
    ]


def values(form: Form, *given: bytes | None) -> list[Any]:
    return list(form.columns(PLAIN).batch(messages(*given))["value"].to_pylist())


def everything(raw: bytes) -> Any:
    """A decoder of the user's, with all that JSON has no word for."""
    return {
        "raw": raw,
        "price": decimal.Decimal("1.10"),
        "id": uuid.UUID(int=1),
        "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        1: "one",
    }


@dataclass
class Measured:
    """What a decoder may make, too."""

    at: float
    _inner: float = math.nan


def measured(raw: bytes) -> Any:
    """A decoder of the user's, with numbers that JSON lacks."""
    return {"a": [math.nan, 1.5, None], "b": (math.inf, -math.inf), "c": Measured(math.nan), "d": raw, math.inf: "null"}


def opaque(raw: bytes) -> Any:
    return object()


def test_bytes_and_their_schema_stay_as_they_are() -> None:
    batch = Form().columns(PLAIN).batch(messages(b"\xff", None, b""))
    assert batch["value"].to_pylist() == [b"\xff", None, b""]
    assert batch.schema == SCHEMA


def test_text_is_a_string_and_an_empty_one_is_not_null() -> None:
    assert values(Form(value="text"), "ä".encode(), b"", None) == ["ä", "", None]


def test_json_keeps_its_own_characters() -> None:
    """A number of more digits than a float has, a key that is there twice, and its white space."""
    given = b'{"n": 123456789012345678901234567890,  "a": 1, "a": 2}'
    assert values(Form(value="json"), given, None) == [given.decode(), None]


def test_what_a_decoder_makes_is_written_as_json() -> None:
    (told,) = values(Form(value=f"{__name__}:everything"), b"\x00\xff")
    assert json.loads(told) == {
        "raw": "AP8=",
        "price": "1.10",
        "id": "00000000-0000-0000-0000-000000000001",
        "at": "2026-01-02T00:00:00Z",
        "1": "one",
    }


def test_numbers_that_json_lacks_are_texts_and_not_null() -> None:
    (told,) = values(Form(value=f"{__name__}:measured"), b"")
    assert json.loads(told) == {
        "a": ["NaN", 1.5, None], "b": ["Infinity", "-Infinity"], "c": {"at": "NaN"}, "d": "", "Infinity": "null",
    }  # fmt: skip


def test_protobuf_is_written_as_its_own_json() -> None:
    from google.protobuf import struct_pb2

    (told,) = values(
        Form(value=f"{struct_pb2.Value.__module__}:Value.FromString"),
        struct_pb2.Value(bool_value=True).SerializeToString(),
    )
    assert json.loads(told) is True


def test_keys_have_a_decoder_of_their_own() -> None:
    form = Form(value="bytes", key="text")
    batch = form.columns(PLAIN).batch(messages(b"\xff"))
    assert (batch["key"].to_pylist(), batch["value"].to_pylist()) == (["k"], [b"\xff"])
    assert (batch.schema.field("key").type, batch.schema.field("value").type) == (pa.string(), pa.binary())


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("json", b"{", r"orders-3@1: its value is no JSON: "),
        ("text", b"\xff", r"orders-3@1: its value is no UTF-8 text: invalid start byte at byte 0"),
        (f"{__name__}:opaque", b"x", r"orders-3@0: its value cannot be written as JSON: .*object"),
    ],
)
def test_a_record_that_does_not_fit_is_named_with_the_way_out(name: str, value: bytes, why: str) -> None:
    with pytest.raises(NotExportable, match=why) as refused:
        values(Form(value=name), b"1", value)
    assert "--value bytes" in str(refused.value)


def test_a_decoder_that_is_not_there_is_told_before_any_record() -> None:
    with pytest.raises(HandlerLoadError, match=r"handler.value = 'nowhere:decode' cannot be imported"):
        Form(value="nowhere:decode").columns(PLAIN)


def settings_of(*handlers: dict[str, Any]) -> Settings:
    own = {"entrypoint": "tests.unit.pipeline.test_lake_columns:opaque"}
    every = [{**own, "topics": [f"topic-{at}"], **each} for at, each in enumerate(handlers)]
    return load_tables(Path("config.toml"), tables_of(handlers=every))


ONE = pa.schema([("value", pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))])


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([("id", pa.string()), ("tags", pa.list_(pa.string()))], "value.id was int64, and is string"),
        ([("id", pa.int64()), ("tags", pa.list_(pa.int32()))], r"value.tags\[\] was string, and is int32"),
        ([("id", pa.int64()), ("tags", pa.large_list(pa.string()))], "value.tags was list, and is large_list"),
        ([("id", pa.int64())], "value.tags is gone"),
        ([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.date32())], "value.at is new"),
        ([("tags", pa.list_(pa.string())), ("id", pa.int64())], "the fields are in another order"),
    ],
)
def test_a_directory_of_parquet_keeps_the_schema_that_it_was_begun_with(
    tmp_path: Path, now: list[tuple[str, pa.DataType]], why: str
) -> None:
    target, form = Directory(str(tmp_path)), Form(value="json", columns_of="shop.schemas:ORDER")
    _Known(target, form, ONE).save(RunState(()))
    _Known(target, form, ONE).read()
    with pytest.raises(ConfigError, match=f"columns than the records by shop.schemas:ORDER: {why}. Readers .* former"):
        _Known(target, form, pa.schema([("value", pa.struct(now))])).read()


def test_a_manifest_without_a_schema_takes_the_one_it_finds(tmp_path: Path) -> None:
    target = Directory(str(tmp_path))
    Manifest(target / OWN).write({**Form().as_json(), **RunState(()).as_json()})
    known = _Known(target, Form(), ONE)
    known.save(known.read())
    with pytest.raises(ConfigError, match="value was struct, and is binary"):
        _Known(target, Form(), SCHEMA).read()


def test_the_form_is_that_of_the_handlers_unless_the_command_line_says_another() -> None:
    settings = settings_of({"value": "json", "key": "text"}, {"value": "json", "key": "text"})
    assert form_asked(settings, Asked()) == Form(False, "json", "text")
    assert form_asked(settings, Asked("delta", "bytes")) == Form(True, "bytes", "text")


@pytest.mark.parametrize(
    ("handlers", "asked", "why"),
    [
        (({"value": "json"}, {"value": "text"}), ("parquet", None, None), r"values in .*\(json, text\).* say --value"),
        (({"key": "json"}, {}), ("parquet", "bytes", None), r"keys in different ways \(bytes, json\).* say --key"),
        (({},), ("csv", None, None), "--to 'csv' is none of parquet, delta, iceberg"),
        (({},), ("delta", "avro", None), "--value 'avro' is none of bytes, text and json; handler.value names any"),
        (({},), ("delta", None, "xml"), "--key 'xml' is none of bytes, text and json"),
    ],
)
def test_an_export_without_one_form_of_columns_is_refused(
    handlers: tuple[dict[str, Any], ...], asked: tuple[str, str | None, str | None], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        form_asked(settings_of(*handlers), Asked(*asked))


def test_a_partitioning_whose_directories_readers_pass_over_is_refused() -> None:
    by_hidden = Asked("parquet", "json", "bytes", "shop:ORDER", "value.place._region")
    with pytest.raises(ConfigError, match=r"pass over those whose names begin with '_'"):
        form_asked(settings_of({}), by_hidden)
    in_table = replace(by_hidden, to="delta")
    assert form_asked(settings_of({}), in_table).partition_by == "value.place._region", "its log names the files"


def test_what_the_command_line_says_need_not_be_agreed_on_by_the_handlers() -> None:
    settings = settings_of({"value": "json"}, {"value": "text"})
    assert form_asked(settings, Asked(value="bytes")).value == "bytes"


@pytest.mark.parametrize(
    ("timestamp", "day"),
    [
        (0, "1970-01-01"),
        (1_763_900_000_000, "2025-11-23"),
        # Microseconds where milliseconds belong: the year 57865.
        (1_763_900_000_000_000, NO_DATE),
        (2**63 - 1, NO_DATE),
    ],
)
def test_a_time_that_no_calendar_has_is_no_day_and_no_error(timestamp: int, day: str) -> None:
    record = Message(topic="orders", partition=0, offset=0, value=b"", timestamp=(1, timestamp), headers=[])
    ((found, batch),) = by_day(records_batch([record]))
    assert (found, batch.num_rows) == (f"date={day}", 1)
