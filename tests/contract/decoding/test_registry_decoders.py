"""Decoders of a schema registry, against one that speaks its REST API over a real connection."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.decode.decoders import Part, one
from kunicorn.handler.decode.forms import decoder_of, form_of
from kunicorn.handler.decode.schema_registry import _kept
from kunicorn.handler.retry import Policies, RetryPolicy, TryAgain
from tests.contract.decoding.shop_schemas import SCHEMAS, SHOP_ORDER, avro, framed, message
from tests.fakes.schema_registry import registry
from tests.waiting import wait_until


class Order(msgspec.Struct):
    """What the schema describes."""

    id: int
    by: str


def take(order: Order) -> None: ...


def decoded(name: str, properties: Any, value: bytes | None) -> Any:
    return one(decoder_of(name, Part.VALUE, Decoding(schema_registry=properties)), message(value), Part.VALUE)


def decoded_if_served(properties: Any, value: bytes) -> Any:
    """None while the registry is away."""
    with contextlib.suppress(NotDecodableYet):
        return decoded("avro", properties, value)


PROXIES = [
    [404, "404 page not found: 4111"],
    [302, ""],
    [200, "<h1>4111</h1>"],
    [404, '{"message": "no Route matched"}'],
]


def test_values_are_decoded_by_the_schema_they_name_which_is_asked_for_once(
    properties: dict[str, Any], schemas: Path
) -> None:
    order = {"id": 7, "by": "me"}
    decoder = decoder_of("avro", Part.VALUE, Decoding(schema_registry=properties))
    assert list(decoder.each([message(framed(1, avro(order)))] * 5)) == [order] * 5
    assert one(decoder, message(None), Part.VALUE) is None
    assert decoded("jsonschema", properties, framed(2, b'{"id": 7}')) == {"id": 7}
    shop_order = decoded(SHOP_ORDER, properties, framed(3, b"\0\x0a\x02me"))
    assert shop_order.by == "me"
    asked = schemas.with_suffix(".requests").read_text().splitlines()
    assert sorted(path.partition("?")[0] for path in asked) == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/3"]


def test_what_a_schema_decodes_can_go_on_to_a_model(properties: dict[str, Any]) -> None:
    form = form_of(take, "record", Decoding("avro", schema_registry=properties))
    assert next(form.each([message(framed(1, avro({"id": 7, "by": "me"})))])) == Order(7, "me")
    with pytest.raises(Undecodable, match="is no Order, or avro of a registered schema: it is null"):
        form.blame(message(None))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("avro", b"4111", "This message was not produced with a Confluent Schema Registry serializer"),
        ("avro", b"\x07" + b"4111" * 4, "no avro of a registered schema: "),
        ("avro", framed(9, b"4111 1111"), "Schema 9 not found (HTTP status code 404, SR code 40403)"),
        ("avro", framed(1, b"\xff\xff4111"), "no avro of a registered schema: "),
        ("jsonschema", framed(2, b'{"id": "4111"}'), "$.id breaks the rule 'type' of its schema"),
        ("jsonschema", framed(2, b"4111 x"), "no jsonschema of a registered schema: "),
    ],
)
def test_what_does_not_fit_its_schema_is_undecodable_and_its_content_is_not_told(
    properties: dict[str, Any], name: str, value: bytes, why: str
) -> None:
    with pytest.raises(Undecodable) as refused:
        decoded(name, properties, value)
    assert why in str(refused.value)
    assert "4111" not in str(refused.value)


@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_while_the_registry_does_not_serve_records_wait_and_are_decoded_once_it_does(
    properties: dict[str, Any], schemas: Path, status: int
) -> None:
    value = framed(1, avro({"id": 7, "by": "me"}))
    schemas.write_text(str(status))
    with pytest.raises(NotDecodableYet, match=f"the schema registry cannot be asked: .*{status}") as waits:
        decoded("avro", properties, value)
    verdict = Policies(RetryPolicy(1, 100, 100)).verdict(waits.value, 1000, 10**15, 0.5)
    assert isinstance(verdict, TryAgain)
    schemas.write_text(json.dumps(SCHEMAS))
    assert wait_until(lambda: decoded_if_served(properties, value), "the registry to be asked again")["id"] == 7


@pytest.mark.parametrize("answer", PROXIES, ids=str)
def test_what_answers_in_the_registrys_place_does_not_say_that_a_schema_is_unknown(
    properties: dict[str, Any], schemas: Path, answer: list[Any]
) -> None:
    value = framed(1, avro({"id": 7, "by": "me"}))
    schemas.write_text(json.dumps(answer))
    with pytest.raises(NotDecodableYet, match="the schema registry cannot be asked: it") as waits:
        decoded("avro", properties, value)
    assert "4111" not in str(waits.value)
    schemas.write_text(json.dumps(SCHEMAS))
    assert wait_until(lambda: decoded_if_served(properties, value), "the registry to be asked again")["id"] == 7


def test_a_registry_that_is_not_there_is_waited_for_too() -> None:
    _kept.cache_clear()
    with pytest.raises(NotDecodableYet, match="ConnectError"):
        decoded("avro", {"url": "http://127.0.0.1:9", "timeout": 1.0, "max.retries": 0}, framed(1, b"x" * 9))


def test_a_registry_that_asks_for_a_login_gets_the_one_of_the_settings(schemas: Path) -> None:
    with registry(schemas, "hush") as url:
        properties = {"url": url, "timeout": 5.0, "max.retries": 0, "basic.auth.user.info": "orders:hush"}
        assert decoded("avro", properties, framed(1, avro({"id": 7, "by": "me"})))["by"] == "me"
        with pytest.raises(NotDecodableYet, match="Unauthorized"):
            decoded("avro", {**properties, "basic.auth.user.info": "orders:guess"}, framed(1, b"x" * 9))


@pytest.mark.parametrize(
    ("name", "properties", "why"),
    [
        ("protobuf:shop.no_such:Order", {}, "names a class that is not there"),
        ("protobuf:builtins:int", {}, "names no message's class"),
        ("avro", {"ssl.ca.location": "/no/such/ca.pem"}, "the schema registry's client refuses [schema_registry]"),
    ],
)
def test_a_decoder_that_cannot_be_made_is_refused_at_the_start(name: str, properties: dict[str, Any], why: str) -> None:
    _kept.cache_clear()
    with pytest.raises(HandlerLoadError) as refused:
        decoder_of(name, Part.VALUE, Decoding(schema_registry={"url": "http://127.0.0.1:9", **properties}))
    assert why in str(refused.value)


def test_without_the_libraries_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka.schema_registry.avro", None)
    with pytest.raises(HandlerLoadError, match=r"extra schema-registry .*\.whl\[schema-registry\]'"):
        decoder_of("avro", Part.VALUE, Decoding(schema_registry={"url": "http://127.0.0.1:9"}))
