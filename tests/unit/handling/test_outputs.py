"""From what handlers return to what is sent."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.errors import ConfigError
from kunicorn.handlers import Handler, handler_of
from kunicorn.handling.outputs import Outgoing, outgoing, outputs_of, sending
from kunicorn.outcomes import Done, Skip, heed
from kunicorn.pipes.orders import HandlerOrder
from kunicorn.producing import NotToBeSent, Send
from kunicorn.worker.outbox import Limits, Outbox
from kunicorn.worker.producing import Outputs

A = Outgoing("a", b"1", None, None, -1, 0)


def called(call: Callable[[Any], Any], *, is_async: bool = False, yields: bool = False) -> tuple[object, list[Any]]:
    """What the wrapped handler says, and what was put."""
    put: list[Any] = []
    handler = Handler("m:h", call, is_async, yields)
    returned = sending(handler, "a", put.append).call("r")
    return (asyncio.run(returned) if is_async else returned), put


def test_one_a_list_or_a_generator_are_sent_for_their_record() -> None:
    def yielding(_: object) -> Iterator[Send]:
        yield Send(value=b"1")

    for call in (lambda _: Send(value=b"1"), lambda _: [Send(value=b"1")], yielding):
        assert called(call) == (None, [[A]])


def test_async_handlers_return_or_yield() -> None:
    async def returning(_: object) -> Send:
        return Send(value=b"1")

    async def yielding(_: object) -> AsyncIterator[Send]:
        yield Send(value=b"1")

    assert called(returning, is_async=True) == (None, [[A]])
    assert called(yielding, is_async=True, yields=True) == (None, [[A]])


def test_of_a_generator_that_raises_nothing_is_sent() -> None:
    put: list[Any] = []

    def breaking(_: object) -> Iterator[Send]:
        yield Send(value=b"1")
        raise ValueError("no")

    wrapped = sending(Handler("m:h", breaking, False, True), "a", put.append)
    with pytest.raises(ValueError, match="no"):
        wrapped.call("r")
    assert put == []


def test_a_record_that_is_skipped_leaves_nothing_and_one_that_is_done_does() -> None:
    def saying(outcome: object) -> Callable[[object], Generator[Send, None, object]]:
        def handle(_: object) -> Generator[Send, None, object]:
            yield Send(value=b"1")
            return outcome

        return handle

    skip = Skip("empty")
    assert called(saying(skip)) == (skip, [])
    assert called(saying(Done()))[1] == [[A]]


def test_other_values_are_no_word_of_the_handlers() -> None:
    assert outputs_of(5, "a") == ([], 5)
    assert outputs_of([], "a") == ([], None)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ([Send(value=b"1"), 5], "returned int where kunicorn.producing.Send is wanted"),
        ([Skip("x")], "returned Skip among records to send: raise it instead"),
        (Send(value=5), "whose value is int"),  # type: ignore[arg-type]
        (Send(key=object()), "whose key is object"),  # type: ignore[arg-type]
        (Send(headers=[("a",)]), "pairs of name and value"),  # type: ignore[list-item]
        (Send(headers={5: b"x"}), "name is no text"),  # type: ignore[dict-item]
        (Send(partition=-1), "partition is -1"),
        (Send(timestamp=True), "timestamp is True"),
    ],
)
def test_what_no_record_can_be_is_refused_in_words(returned: object, why: str) -> None:
    with pytest.raises(NotToBeSent, match=why):
        outputs_of(returned, "a")


def test_without_a_topic_the_setting_is_named() -> None:
    with pytest.raises(NotToBeSent, match=r"set \[producing\] topic"):
        outgoing(Send(value=b"1"), None)


def test_text_is_sent_as_utf_8_and_headers_may_be_a_mapping() -> None:
    sent = outgoing(Send("b", "ä", "k", {"h": "v"}, 3, 17), "a")
    assert sent == Outgoing("b", "ä".encode(), b"k", [("h", b"v")], 3, 17)


@pytest.mark.parametrize("returned", [Send("a"), [Send("a")]])
def test_where_nothing_is_sent_a_send_is_a_failure_that_names_the_setting(returned: object) -> None:
    with pytest.raises(NotToBeSent, match=r"set \[producing\] delivery"):
        heed(returned)


def test_payloads_stay_out_of_texts() -> None:
    assert "secret" not in repr(Send("a", b"secret", b"secret"))


class Keeper:
    """Keeps its offsets beside its effects."""

    def handle(self, record: object) -> Send:
        return Send("a", b"v")

    def load_offsets(self, partitions: object) -> dict[object, int]:
        return {}


def _keeper() -> tuple[Handler, HandlerOrder]:
    order = HandlerOrder("shop:Keeper", "record", {}, 1, 1, 0, 0)
    return handler_of("shop:Keeper", Keeper()), order


def test_a_handler_that_keeps_its_offsets_is_refused_beside_transactions() -> None:
    outputs = Outputs(Outbox(Limits(10, 1000, 1.0)), None, "transactions")
    with pytest.raises(ConfigError, match=r"producing\.delivery .* load_offsets"):
        outputs.calls(*_keeper())


def test_what_a_handler_that_keeps_its_offsets_returns_is_a_failure_not_lost() -> None:
    outbox = Outbox(Limits(10, 1000, 1.0))
    calls = Outputs(outbox, None, "at_least_once").calls(*_keeper())
    cells = memoryview(array("q", [4]))
    with pytest.raises(NotToBeSent, match="load_offsets"):
        calls([Message(topic="t", partition=0, offset=4, value=b"")], [5], cells, 0, [])
    assert cells[0] == 4
