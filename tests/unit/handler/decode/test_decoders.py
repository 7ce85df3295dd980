"""Values and keys by name, and what is said of those that cannot be decoded."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable, explained
from kunicorn.handler.decode.decoders import OfMessage, Part, Raw, one
from kunicorn.handler.decode.forms import Decoded, argument_of, decoded_columns, decoder_of, form_of

PLACE = "orders-3@7: its value is no "


def message(value: bytes | None, key: bytes | None = b"k", offset: int = 7) -> Message:
    """One record."""
    return Message(topic="orders", partition=3, offset=offset, value=value, key=key)


def decode(name: str, value: bytes | None) -> Any:
    """By the decoder of that name."""
    return one(decoder_of(name, Part.VALUE, Decoding()), message(value), Part.VALUE)


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("bytes", b"\xff", b"\xff"),
        ("text", "grün".encode(), "grün"),
        ("json", b'{"total": 2.5, "items": [1, null]}', {"total": 2.5, "items": [1, None]}),
        ("json", b'"\\ud83d\\ude00"', "😀"),
        ("builtins:int", b"42", 42),
        ("decimal:Decimal.from_float", b"1", None),
        ("text", b"", ""),
    ],
)
def test_a_value_is_decoded_as_it_is_named(name: str, value: bytes, data: object) -> None:
    if data is None:
        with pytest.raises(Undecodable, match=r"is no input of decimal:Decimal.from_float: TypeError"):
            decode(name, value)
    else:
        assert decode(name, value) == data


@pytest.mark.parametrize("name", ["bytes", "text", "json", "builtins:int"])
def test_a_tombstone_is_decoded_to_none(name: str) -> None:
    assert decode(name, None) is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("text", b"ab\xff", "UTF-8 text: invalid start byte at byte 2"),
        ("json", b"", "JSON: Input is a zero-length, empty document: line 1 column 1 (char 0)"),
        ("json", b'{"a": NaN}', "JSON: unexpected character, expected a JSON value: line 1 column 7 (char 6)"),
        ("json", b"Infinity", "JSON: unexpected character"),
        ("json", b'"\xff"', "JSON: str is not valid UTF-8"),
        ("json", b'"\\ud83d"', "JSON: "),
        ("json", b"[" * 100_000, "JSON: "),
        ("json", b'{"card": "4111 1111"', "JSON: unexpected end of data"),
        ("builtins:int", b"4111 1111", "input of builtins:int: ValueError"),
    ],
)
def test_what_cannot_be_decoded_is_told_with_place_and_reason_and_never_with_what_is_in_it(
    name: str, value: bytes, why: str
) -> None:
    with pytest.raises(Undecodable) as refused:
        decode(name, value)
    assert str(refused.value).startswith(PLACE + why)
    assert "4111" not in str(refused.value)


def test_json_numbers_that_no_machine_word_holds_become_floats() -> None:
    assert decode("json", b"123456789012345678901234567890") == pytest.approx(1.2345678901234568e29)
    with pytest.raises(Undecodable, match="number is infinity when parsed as double"):
        decode("json", b"1e999")


def test_a_record_before_one_that_cannot_be_decoded_is_decoded_all_the_same() -> None:
    decoder = decoder_of("json", Part.VALUE, Decoding())
    values = decoder.each([message(b"1"), message(None), message(b"x")])
    assert (next(values), next(values)) == (1, None)
    with pytest.raises(ValueError, match="unexpected character"):
        next(values)


def test_of_a_batch_what_comes_before_the_first_undecodable_one_is_there() -> None:
    form = form_of(print, "batch", Decoding("json", "text"))
    assert isinstance(form, Decoded)
    gathered = form.batch([message(b"1"), message(b"2", b"l"), message(b"3", b"\xff", 9), message(b"4")])
    assert gathered.records == 2
    assert (gathered.argument.data(), gathered.argument.key_data()) == ([1, 2], ["k", "l"])
    assert str(gathered.undecodable).startswith("orders-3@9: its key is no UTF-8 text")
    assert [record.data for record in gathered.argument] == [1, 2]
    assert gathered.argument[1:].data() == [2]


def test_a_function_that_ends_the_iteration_spoils_its_own_record_only() -> None:
    def stop(message: Message) -> Any:
        if message.offset() == 8:
            raise StopIteration
        return message.offset()

    decoder = OfMessage("number", stop)
    (values, _), failure = decoded_columns([message(b"", offset=7), message(b"", offset=8)], decoder, decoder)
    assert values == [7]
    assert isinstance(failure, Undecodable)


def test_what_cannot_be_decoded_yet_is_no_fault_of_the_record() -> None:
    def away(message: Message) -> Any:
        raise NotDecodableYet("the registry is away")

    with pytest.raises(NotDecodableYet):
        one(OfMessage("Avro", away), message(b"1"), Part.VALUE)


async def asynchronous(value: bytes) -> bytes:
    """No decoder."""
    return value


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_shop:decode", "handler.value = 'no_such_shop:decode' cannot be imported: ModuleNotFoundError"),
        ("builtins:no_such", "handler.value = 'builtins:no_such' cannot be imported: AttributeError"),
        ("math:pi", "handler.value = 'math:pi' is no plain function"),
        (f"{__name__}:asynchronous", "is no plain function"),
        ("os:getcwd", "handler.value = 'os:getcwd' is called with one argument"),
    ],
)
def test_a_function_that_cannot_be_a_decoder_is_refused_at_the_start(name: str, why: str) -> None:
    with pytest.raises(HandlerLoadError) as refused:
        decoder_of(name, Part.VALUE, Decoding())
    assert why in str(refused.value)


def test_a_decoder_whose_service_is_away_is_asked_once_for_a_record() -> None:
    asked = []

    def ask(message: Message) -> None:
        asked.append(message.offset())
        raise NotDecodableYet("the registry is away")

    form = Decoded(OfMessage("avro", ask), Raw(Part.KEY))
    with pytest.raises(NotDecodableYet):
        argument_of(form, message(b"\0\0\0\0\1abc"))
    assert asked == [7]


def test_of_what_breaks_a_json_schema_the_place_is_told_by_the_schemas_own_names() -> None:
    cards = {"type": "array", "items": {"properties": {"sum": {"type": "integer"}}}}
    schema = {"properties": {"cards": {"additionalProperties": {"$ref": "#/$defs/cards"}}}, "$defs": {"cards": cards}}
    with pytest.raises(jsonschema.ValidationError) as broken:
        jsonschema.validate({"cards": {"4111": [{"sum": 1}, {"sum": "x"}]}}, schema)
    assert explained(broken.value) == "$.cards.[...].1.sum breaks the rule 'type' of its schema"
