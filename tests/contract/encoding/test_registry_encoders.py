"""Encoders by a schema registry, against one that speaks its REST API over a real connection. What they write is read
by confluent-kafka's own deserialisers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kunicorn import NotEncodableYet, Send, Unencodable
from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding, Encoding, OutputEncoding
from kunicorn.handler.decode.decoders import Part, one
from kunicorn.handler.decode.forms import decoder_of
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.record import Record
from kunicorn.handler.retry import Policies, RetryPolicy, TryAgain
from tests.contract.encoding.conftest import SCHEMAS
from tests.contract.encoding.shop_models import (
    AVRO,
    JSON,
    MODELS,
    NEWER,
    TOTAL,
    TOTALS,
    ProtoLine,
    ProtoRefund,
    ProtoTotal,
)
from tests.fakes.schema_registry import hanging, registry
from tests.waiting import wait_until

Make = Callable[..., Encoder]
MODULE = "tests.contract.encoding.shop_models"


def sent(encoder: Encoder, value: Any, topic: str | None = None, **more: Any) -> Any:
    """The output, as it goes to the client."""
    return encoder.encoded(Send(topic, value, **more))


def sent_if_served(encoder: Encoder, value: Any) -> Any:
    """None while the registry is away."""
    with contextlib.suppress(NotEncodableYet):
        return sent(encoder, value)


def context(topic: str = "totals", part: Any = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, part)


def client(properties: Any) -> Any:
    return SchemaRegistryClient({"url": properties["url"]})


BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_every_kind_of_model_is_written_so_that_confluents_reader_and_ours_read_it(
    encoder: Make, properties: Any, model: Any
) -> None:
    value = sent(encoder(), model).value
    assert value[:5] == b"\0\0\0\0\2"
    theirs = AvroDeserializer(client(properties), conf=BY_TOPIC)
    ours = decoder_of("avro", Part.VALUE, Decoding(schema_registry=properties))
    message = Message(topic="totals", partition=0, offset=0, value=value)
    assert theirs(value, context()) == one(ours, message, Part.VALUE) == TOTAL


def test_what_confluents_writer_writes_is_the_same_to_the_byte(encoder: Make, properties: Any) -> None:
    writes = AvroSerializer(client(properties), json.dumps(AVRO), conf={**BY_TOPIC, "auto.register.schemas": False})
    assert sent(encoder(), TOTAL).value == writes(TOTAL, context())


def test_a_model_that_is_returned_goes_to_the_default_topic(encoder: Make) -> None:
    made = encoder().encoded(MODELS[0])
    assert isinstance(made, Send)
    assert made.topic is None
    assert made.value[:5] == b"\0\0\0\0\2"


def test_keys_have_a_schema_of_their_own(encoder: Make, properties: Any) -> None:
    made = sent(encoder("avro", key="avro"), TOTAL, key={"id": 7})
    theirs = AvroDeserializer(client(properties), conf=BY_TOPIC)
    assert theirs(made.key, context(part=MessageField.KEY)) == {"id": 7}


def test_documents_are_checked_by_their_schema(encoder: Make, properties: Any) -> None:
    made = sent(encoder("jsonschema"), MODELS[1], "documents")
    theirs = JSONDeserializer(None, schema_registry_client=client(properties), conf=BY_TOPIC)
    assert theirs(made.value, context("documents"))["amount"] == "12.50"
    with pytest.raises(Unencodable, match=r"cannot be written as jsonschema .*: \$\.amount breaks the rule 'type'"):
        sent(encoder("jsonschema"), {"customer": "4111", "amount": 4111}, "documents")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_null_if_the_schema_allows_that(
    encoder: Make, tmp_path: Path, number: float
) -> None:
    def sent_as(kind: Any) -> Any:
        file = tmp_path / "measure.json"
        file.write_text(json.dumps({"type": "object", "title": "Measure", "properties": {"amount": {"type": kind}}}))
        by_file = encoder("jsonschema", value_schema=f"file:{file}", register_schemas=True)
        return sent(by_file, {"amount": number}, "measures")

    assert sent_as(["number", "null"]).value.endswith(b'{"amount":null}')
    with pytest.raises(Unencodable, match=r"\$\.amount breaks the rule 'type'"):
        sent_as("number")


def test_messages_of_several_classes_are_written_with_their_indexes(encoder: Make, properties: Any) -> None:
    by_record = encoder("protobuf", subject_name_strategy="record", register_schemas=True)
    for message in (ProtoTotal(customer="Ada", amount=7), ProtoRefund(customer="Ada"), ProtoLine(sku="a")):
        value = sent(by_record, message).value
        theirs = ProtobufDeserializer(type(message), {**BY_TOPIC}, schema_registry_client=client(properties))
        assert theirs(value, context()) == message
    assert sent(by_record, ProtoRefund()).value[5:6] == b"\0"  # The first of its file.
    assert sent(by_record, ProtoTotal()).value[5:7] == b"\x02\x02"


def test_a_dict_becomes_a_message_of_the_class_that_is_named(encoder: Make, properties: Any) -> None:
    value = sent(encoder(TOTALS, register_schemas=True), {"customer": "Ada", "amount": 7}).value
    message = Message(topic="totals", partition=0, offset=0, value=value)
    decoded = one(decoder_of(TOTALS, Part.VALUE, Decoding(schema_registry=properties)), message, Part.VALUE)
    assert decoded == ProtoTotal(customer="Ada", amount=7)
    with pytest.raises(Unencodable, match="Failed to parse amount field") as refused:
        sent(encoder(TOTALS, register_schemas=True), {"customer": "Ada", "amount": "4111 x"})
    assert "4111" not in str(refused.value)
    with pytest.raises(Unencodable, match=r"it is a totals\.Refund, not a totals\.Total"):
        sent(encoder(TOTALS), ProtoRefund())


@pytest.mark.parametrize("source", ["latest", "id:5", "version:1"])
def test_protobuf_goes_by_the_registrys_schema_too(encoder: Make, source: str) -> None:
    sent(encoder(TOTALS, register_schemas=True), ProtoTotal(), "new")
    made = sent(encoder(TOTALS, value_schema=source), ProtoTotal(customer="Ada"), "new")
    assert made.value[:6] == b"\0\0\0\0\5\2"


@pytest.mark.parametrize(("source", "number"), [("latest", 2), ("id:1", 1), ("version:1", 1), ("version:2", 2)])
def test_the_schema_is_the_latest_or_the_one_that_is_pinned(encoder: Make, source: str, number: int) -> None:
    assert sent(encoder(value_schema=source), TOTAL).value[:5] == b"\0" + number.to_bytes(4, "big")


def test_a_file_an_attribute_and_a_models_class_are_schemas(encoder: Make, tmp_path: Path) -> None:
    file = tmp_path / "total.avsc"
    file.write_text(json.dumps(AVRO))
    for source in (f"file:{file}", f"{MODULE}:AVRO", f"{MODULE}:AVRO_TEXT"):
        assert sent(encoder(value_schema=source), TOTAL).value[:5] == b"\0\0\0\0\2"
    by_class = encoder("jsonschema", value_schema=f"{MODULE}:StructTotal", register_schemas=True)
    assert b'"amount":"12.50"' in sent(by_class, MODELS[1], "others").value


@pytest.mark.parametrize(
    ("strategy", "subject"), [("topic", "new-value"), ("record", "shop.Total"), ("topic_record", "new-shop.Total")]
)
def test_where_it_is_allowed_our_schema_is_registered_under_the_strategys_subject(
    encoder: Make, schemas: Path, strategy: str, subject: str
) -> None:
    ours = {"value_schema": f"{MODULE}:AVRO", "subject_name_strategy": strategy}
    with pytest.raises(Unencodable, match=rf"'{subject}' does not have the schema .* Remedy: register it") as refused:
        sent(encoder(**ours), TOTAL, "new")
    assert "The registry's latest: none" in str(refused.value)
    assert sent(encoder(**ours, register_schemas=True), TOTAL, "new").value[:5] == b"\0\0\0\0\5"
    assert json.loads(schemas.read_text())["5"]["subject"] == subject


def test_an_incompatible_schema_is_told_with_both_and_what_to_do(encoder: Make, schemas: Path) -> None:
    told: list[tuple[str, str]] = []
    newer = encoder(failed=lambda *why: told.append(why), value_schema=f"{MODULE}:NEWER", register_schemas=True)
    with pytest.raises(Unencodable) as refused:
        sent(newer, {**TOTAL, "currency": "EUR"})
    for part in ("'totals'", "'totals-value'", "READER_FIELD_MISSING_DEFAULT_VALUE currency", json.dumps(NEWER)):
        assert part in str(refused.value)
    assert f"The registry's latest: version 2, {json.dumps(AVRO)}" in str(refused.value)
    assert "Remedy: give fields that are new a default" in str(refused.value)
    assert told == [("totals", "schema")]
    assert json.loads(schemas.read_text()) == SCHEMAS


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({**TOTAL, "paid_at": "4111"}, r"shop\.Total\.paid_at: expected .*, got str"),
        ({**TOTAL, "note": 4111}, r"shop\.Total\.note: expected null or string, got int"),
        ({"customer": "4111"}, r"shop\.Total\.amount: expected .*, got NoneType"),
        (4111, r"the whole: expected shop\.Total, got int"),
        ({**TOTAL, "note": object()}, "Encoding objects of type object is unsupported"),
        (b"4111", "bytes that do not begin with a schema's id"),
        (Record.of(Message(topic="a", partition=0, offset=0, value=b"4111")), r"return Send\.of\(record, topic\)"),
    ],
)
def test_what_does_not_fit_its_schema_is_told_by_field_and_without_its_content(
    encoder: Make, value: Any, why: str
) -> None:
    told: list[tuple[str, str]] = []
    with pytest.raises(Unencodable, match=why) as refused:
        sent(encoder(failed=lambda *why: told.append(why)), value)
    assert "an output for topic 'totals': its value cannot be written as avro" in str(refused.value)
    assert "4111" not in str(refused.value)
    assert told == [("totals", "content")]


def test_a_number_that_an_int_of_avro_does_not_hold_is_refused_though_fastavro_would_write_it(encoder: Make) -> None:
    encode = encoder(value_schema=f"{MODULE}:COUNT", register_schemas=True)
    assert sent(encode, {"n": 2**31 - 1}, "counts").value is not None
    with pytest.raises(Unencodable, match=r"Count\.n: expected int, got a number out of its range"):
        sent(encode, {"n": 2**31}, "counts")


@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_while_the_registry_does_not_serve_records_wait_and_are_sent_once_it_does(
    encoder: Make, schemas: Path, status: int
) -> None:
    schemas.write_text(str(status))
    encode = encoder()
    with pytest.raises(NotEncodableYet, match=f"the schema registry cannot be asked: .*{status}") as waits:
        sent(encode, TOTAL)
    assert isinstance(Policies(RetryPolicy(1, 100, 100)).verdict(waits.value, 1000, 10**15, 0.5), TryAgain)
    schemas.write_text(json.dumps(SCHEMAS))
    assert (
        wait_until(lambda: sent_if_served(encode, TOTAL), "the registry to be asked again").value[:5] == b"\0\0\0\0\2"
    )


def test_a_registry_that_was_away_during_the_first_write_is_asked_again(encoder: Make, schemas: Path) -> None:
    encode = encoder(value_schema=f"{MODULE}:AVRO")
    schemas.write_text("503")
    with pytest.raises(NotEncodableYet):
        sent(encode, TOTAL)
    schemas.write_text(json.dumps(SCHEMAS))
    assert (
        wait_until(lambda: sent_if_served(encode, TOTAL), "the registry to be asked again").value[:5] == b"\0\0\0\0\2"
    )


@pytest.mark.parametrize("answer", [[404, "404 page not found"], [302, ""], [200, "<h1>4111</h1>"]], ids=str)
def test_what_answers_in_the_registrys_place_fails_no_output(encoder: Make, schemas: Path, answer: list[Any]) -> None:
    schemas.write_text(json.dumps(answer))
    with pytest.raises(NotEncodableYet, match="the schema registry cannot be asked: it") as waits:
        sent(encoder(), TOTAL)
    assert "4111" not in str(waits.value)


def test_threads_do_not_take_the_time_out_of_a_registry_that_hangs_in_turn() -> None:
    with hanging() as silent, ThreadPoolExecutor(8) as threads:
        properties: dict[str, Any] = {"url": silent.url, "timeout": 1.0, "max.retries": 0}
        encode = Encoder(
            Encoding(OutputEncoding("avro"), schema_registry=properties), "totals", lambda topic, why: None
        )
        ends = [threads.submit(sent, encode, TOTAL) for _ in range(8)]
        for end in ends:
            with pytest.raises(NotEncodableYet, match="the schema registry cannot be asked: ReadTimeout"):
                end.result()
        # Each had to wait for those before it.
        assert silent.asked() < len(ends)


def test_each_schema_is_asked_for_once_by_the_client_that_decoders_have(encoder: Make, schemas: Path) -> None:
    encode = encoder()
    for _ in range(5):
        sent(encode, TOTAL)
    asked = schemas.with_suffix(".requests").read_text().splitlines()
    assert [path.partition("?")[0] for path in asked] == [
        "/subjects/totals-value/versions/latest",
        "/subjects/totals-value",
    ]


def test_the_settings_login_is_used(schemas: Path) -> None:
    with registry(schemas, "hush") as url:
        properties = {"url": url, "timeout": 5.0, "max.retries": 0, "basic.auth.user.info": "orders:hush"}
        encoding = Encoding(OutputEncoding("avro"), schema_registry=properties)  # type: ignore[arg-type]
        assert sent(Encoder(encoding, "totals"), TOTAL).value[:5] == b"\0\0\0\0\2"


def test_what_was_received_goes_on_as_it_was(encoder: Make) -> None:
    framed = b"\0\0\0\0\7rest"
    record = Record.of(
        Message(topic="orders", partition=1, offset=7, value=framed, key=b"bare", headers=[("a", b"1")],
                timestamp=(1, 1700))
    )  # fmt: skip
    made = encoder("avro", key="avro").encoded(Send.of(record, "copies"))
    assert made == Send("copies", framed, b"bare", [("a", b"1")], None, 1700, True)
    assert sent(encoder(), framed).value == framed  # Bytes with a schema's id in them are not written anew.
    assert sent(encoder(), None).value is None
    assert sent(encoder(), b"anything", encoded=True).value == b"anything"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"value": "protobuf:shop.no_such:Order"}, "the encoder 'protobuf:shop.no_such:Order' names a class that is"),
        ({"value_schema": "file:/no/such.avsc"}, "value_schema = 'file:/no/such.avsc' cannot be read"),
        ({"value_schema": f"{MODULE}:TOTALS"}, "is no schema of avro"),
        ({"value_schema": f"{MODULE}:StructTotal"}, "a schema is a text or a dict"),
        ({"value_schema": "shop.no_such:SCHEMA"}, "producing.value_schema = 'shop.no_such:SCHEMA' cannot be imported"),
        ({"value": "shop.no_such:encode"}, "producing.value = 'shop.no_such:encode' cannot be imported"),
        ({"value": f"{MODULE}:TOTALS"}, "is no plain function; name one that takes what is to be sent"),
    ],
)
def test_an_encoder_that_cannot_be_made_is_refused_at_the_start(encoder: Make, settings: Any, why: str) -> None:
    with pytest.raises(HandlerLoadError) as refused:
        encoder(**settings)
    assert why in str(refused.value)


def test_without_the_libraries_the_extra_to_install_is_named(encoder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka.schema_registry.avro", None)
    with pytest.raises(HandlerLoadError, match=r"producing.value = 'avro' needs .*\.whl\[schema-registry\]'"):
        encoder()


def test_check_is_told_what_the_registry_has_and_registers_nothing(encoder: Make, schemas: Path) -> None:
    def told(topic: str = "totals", **settings: Any) -> list[str]:
        return list(encoder(**settings)._maker(topic).verified(topic))

    assert told(key="avro") == [
        "totals: totals-value has the schema 2 for its values",
        "totals: totals-key has the schema 4 for its keys",
    ]
    ours = {"value_schema": f"{MODULE}:AVRO"}
    assert told(**ours) == ["totals: totals-value has our schema, 2, for its values"]
    assert told("new", **ours, register_schemas=True) == [
        "new: new-value is not there yet; the first output registers it"
    ]
    assert told(**ours, register_schemas=True) == ["totals: totals-value takes our schema"]
    with pytest.raises(Unencodable, match="refuses our schema as incompatible"):
        told(value_schema=f"{MODULE}:NEWER", register_schemas=True)
    with pytest.raises(Unencodable, match="'new-value' does not have the schema of its values"):
        told("new")
    assert json.loads(schemas.read_text()) == SCHEMAS
    assert JSON["title"] == "Total"
