"""Encoders that ask no registry, and the handler with its outputs encoded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from kunicorn import NotEncodableYet, Send, Skip, Unencodable
from kunicorn.handler.config import Encoding, OutputEncoding
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.load import Handler
from kunicorn.handler.outputs import Made, sending


@dataclass
class Total:
    """A model."""

    amount: int


class Line(msgspec.Struct):
    """A model."""

    sku: str


class Note(BaseModel):
    """A model."""

    text: str


def shouted(item: object) -> bytes:
    """An encoder of the user's."""
    if item == "away":
        raise NotEncodableYet("the vault is away")
    return str(item).upper().encode()


def careless(item: object) -> object:
    """One that returns no bytes."""
    return item


def encoder(value: str = "json", topic: str | None = "totals", **more: Any) -> Encoder:
    """Encoder by [producing], where the topic `raw` takes bytes."""
    encoding = Encoding(OutputEncoding(value, **more), {"raw": OutputEncoding()})
    return Encoder(encoding, topic)


def made(handle: Callable[..., Any], by: Encoder | None = None, *, is_async: bool = False, yields: bool = False) -> Any:
    """What is made of the outputs of one call."""
    handler = (by or encoder()).around(Handler("m:h", handle, is_async=is_async, yields=yields))
    returned = sending(handler, "totals").call("record")
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned


def test_topics_that_never_repeat_do_not_fill_the_memory_with_their_encoders() -> None:
    by = encoder()
    for number in range(5000):
        by.encoded(Send(f"to-{number}", Total(7)))
    assert len(by._made) <= 1000


@pytest.mark.parametrize(
    ("model", "written"),
    [
        (Total(7), b'{"amount":7}'),
        (Line("a"), b'{"sku":"a"}'),
        (Note(text="x"), b'{"text":"x"}'),
        ({"nan": float("nan"), "infinite": float("-inf")}, b'{"nan":null,"infinite":null}'),
        ({"total": Total(7), "note": Note(text="x")}, b'{"total":{"amount":7},"note":{"text":"x"}}'),
    ],
)
def test_models_are_sent_to_the_default_topic_as_json(model: Any, written: bytes) -> None:
    for handle in (lambda record: model, lambda record: [model], lambda record: Send(value=model)):
        (output,) = made(handle).outputs
        assert (output.topic, output.value) == ("totals", written)


def test_handlers_that_yield_wait_or_both_are_encoded_alike() -> None:
    def yielding(record: object) -> Iterator[object]:
        yield Total(1)
        yield Send("raw", b"2")

    async def waiting(record: object) -> object:
        return [Total(1), Send("raw", b"2")]

    async def both(record: object) -> AsyncIterator[object]:
        yield Total(1)
        yield Send("raw", b"2")

    for found in (
        made(yielding),
        made(waiting, is_async=True),
        made(both, is_async=True, yields=True),
    ):
        assert [(each.topic, each.value) for each in found.outputs] == [("totals", b'{"amount":1}'), ("raw", b"2")]


def test_of_a_call_with_one_output_that_cannot_be_encoded_nothing_is_sent() -> None:
    def yielding(record: object) -> Iterator[object]:
        yield Total(1)
        yield Send(value={"at": object()})

    with pytest.raises(Unencodable, match="topic 'totals': its value cannot be written as JSON: Encoding objects of"):
        made(yielding)


def test_outcomes_none_and_other_values_are_what_they_were() -> None:
    assert made(lambda record: None) is None
    skip = Skip("x")
    assert made(lambda record: skip) is skip
    assert made(lambda record: 5) == 5
    # Where values are bytes, a model that is returned says nothing, as ever.
    total = Total(1)
    assert made(lambda record: total, encoder(topic="raw")) is total


def test_bytes_tombstones_and_what_is_encoded_already_are_sent_as_they_are() -> None:
    sends = [Send(value=b"x"), Send(value=None), Send(value="text", encoded=True), Send(value="text")]
    found = made(lambda record: sends, encoder(key="json"))
    assert [each.value for each in found.outputs] == [b"x", None, b"text", b'"text"']


class Packed(bytes):
    """Bytes of a library's."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, Packed])
@pytest.mark.parametrize("value", ["json", f"{__name__}:shouted"])
def test_what_is_like_bytes_is_encoded_already(value: str, kind: Callable[[bytes], Any]) -> None:
    sends = [Send(value=kind(b"raw"), key=kind(b"k"))]
    (output,) = made(lambda record: sends, encoder(value, key="json")).outputs
    assert (output.value, output.key) == (b"raw", b"k")
    assert (type(output.value), type(output.key)) == (bytes, bytes), "as the client takes them"


def test_keys_and_headers_are_encoded_too() -> None:
    send = Send(value=Total(1), key={"id": 7}, headers={"total": Total(2), "plain": "x", "none": None})
    (output,) = made(lambda record: send, encoder(key="json", headers="json")).outputs
    assert output.key == b'{"id":7}'
    assert output.headers == [("total", b'{"amount":2}'), ("plain", b"x"), ("none", None)]
    bad = Send(value=Total(1), headers={"at": object()})
    with pytest.raises(Unencodable, match=r"its header 'at' cannot be written as JSON"):
        made(lambda record: bad, encoder(headers="json"))


def test_a_function_of_the_users_encodes_or_makes_wait() -> None:
    by = encoder(f"{__name__}:shouted")
    assert made(lambda record: Send(value="ada"), by).outputs[0].value == b"ADA"
    with pytest.raises(NotEncodableYet, match="the vault is away"):
        made(lambda record: Send(value="away"), by)
    with pytest.raises(Unencodable, match="the encoder returned int; it returns bytes"):
        made(lambda record: Send(value=5), encoder(f"{__name__}:careless"))


def test_the_handler_looks_from_outside_as_it_did() -> None:
    def handle(total: Total) -> Any: ...

    around = encoder().around(Handler("m:h", handle, is_async=False))
    assert inspect.signature(around.call) == inspect.signature(handle)


def test_without_an_encoder_a_model_is_refused_with_the_setting_that_would_take_it() -> None:
    with pytest.raises(TypeError, match=r"value is Total: .* to have other objects encoded, set \[producing\] value"):
        sending(Handler("m:h", lambda record: Send(value=Total(1)), is_async=False), "a").call("r")
    assert isinstance(made(lambda record: Total(1)), Made)
