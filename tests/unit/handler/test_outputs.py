"""From what handlers return to what is sent."""

from __future__ import annotations

import asyncio
from array import array
from collections import UserList, deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from msgspec.structs import replace

from kunicorn.errors import ConfigError
from kunicorn.handler.call import OfSome
from kunicorn.handler.config import Encoding, HandlerConfig, OutputEncoding
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.load import Handler, handler_of
from kunicorn.handler.outcome import BatchError, DeadLetter, Done, NotToBeSent, Send, Skip, raise_outcome
from kunicorn.handler.outputs import Made, Outgoing, calls_sending, outgoing, outputs_of, sending, size_of
from kunicorn.worker.produce.sender import Outputs

A = Outgoing("a", b"1", None, None, -1, 0)


def called(
    call: Callable[[Any], Any], *, is_async: bool = False, yields: bool = False, put: list[Any] | None = None
) -> tuple[object, list[Any]]:
    """What the wrapped handler says, and what was put."""
    put = [] if put is None else put
    handler = Handler("m:h", call, is_async, yields)
    returned = sending(handler, "a").call("r")
    returned = asyncio.run(returned) if is_async else returned
    if isinstance(returned, Made):
        put.append(list(returned.outputs))
        returned = returned.said
    return returned, put


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

    handler, order = Handler("m:h", breaking, False, True), HandlerConfig("m:h", "record", {}, 1, 1, 0, 0)
    calls = calls_sending(handler, order, "a", lambda *whole: put.append(whole))
    with pytest.raises(ValueError, match="no"):
        calls([Message(topic="t", partition=0, offset=0, value=b"v")], [1], memoryview(array("q", [0])), 0, [])
    assert put == []


def holding(item: object, is_open: list[str]) -> dict[str, Handler]:
    """Handlers that yield that, with something open around it, as a database transaction."""

    def plain(_: object) -> Iterator[object]:
        is_open.append("open")
        try:
            yield item
        finally:
            is_open.clear()

    async def on_a_loop(_: object) -> AsyncIterator[object]:
        is_open.append("open")
        try:
            yield item
        finally:
            await asyncio.sleep(0)
            is_open.clear()

    return {"plain": Handler("m:h", plain, False, True), "async": Handler("m:h", on_a_loop, True, True)}


@pytest.mark.parametrize("how", ["plain", "async"])
@pytest.mark.parametrize(
    ("item", "encoded"), [(Send(value={1}), False), (Skip("why"), False), (Send(value=object()), True)]
)
def test_what_a_generator_holds_open_is_closed_when_what_it_yields_fails_its_record(
    item: object, encoded: bool, how: str
) -> None:
    is_open: list[str] = []
    handler = holding(item, is_open)[how]
    if encoded:
        handler = Encoder(Encoding(OutputEncoding("json")), "a").around(handler)
    order = HandlerConfig("m:h", "record", {}, 1, 1, 0, 0)
    calls = calls_sending(handler, order, "a", lambda *whole: None)
    with pytest.raises(NotToBeSent) as raised:
        calls([Message(topic="t", partition=0, offset=0, value=b"v")], [1], memoryview(array("q", [0])), 0, [])
    assert is_open == [], "its next try may wait for the lock"
    del raised
    calls.close()


@pytest.mark.parametrize("encoded", [False, True])
def test_a_generator_that_waits_when_its_call_is_given_up_by_its_loops_end_sees_that(encoded: bool) -> None:
    seen: list[str] = []

    async def waiting(_: object) -> AsyncIterator[Send]:
        try:
            await Never()
            yield Send(value=b"1")
        finally:
            seen.append("given up")

    handler = Handler("m:h", waiting, True, True)
    if encoded:
        handler = Encoder(Encoding(OutputEncoding("json")), "a").around(handler)
    call = sending(handler, "a").call("r")
    call.send(None)
    call.close()
    assert seen == ["given up"]


class Never:
    """Something to await that does not come."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def test_an_iterator_that_cannot_be_closed_is_sent_all_the_same() -> None:
    assert called(lambda _: iter([Send(value=b"1")])) == (None, [[A]])


def yielding_then(error: BatchError, how: str) -> Handler:
    """Of a batch it yields one, then raises or returns."""

    def raising(batch: object) -> Iterator[Send]:
        yield Send(value=b"1")
        raise error

    def returning(batch: object) -> Generator[Send, None, BatchError]:
        yield Send(value=b"1")
        return error

    async def on_a_loop(batch: object) -> AsyncIterator[Send]:
        yield Send(value=b"1")
        raise error

    ways: dict[str, Callable[[object], Any]] = {"raises": raising, "returns": returning, "async": on_a_loop}
    return Handler("m:h", ways[how], how == "async", True)


@pytest.mark.parametrize("how", ["raises", "returns", "async"])
@pytest.mark.parametrize(
    "error",
    [
        BatchError(done=2),
        BatchError(done=[0, 2]),
        BatchError(failed=1),
        BatchError(outcomes=[(DeadLetter("bad"), [False, True, False, False])]),
    ],
)
def test_no_record_of_a_batch_counts_as_done_whose_yielded_outputs_are_not_sent(error: BatchError, how: str) -> None:
    put: list[Any] = []
    handler = yielding_then(error, how)
    calls = calls_sending(handler, HandlerConfig("m:h", "batch", {}, 4, 1, 0, 0), "a", lambda *whole: put.append(whole))
    batch = [Message(topic="t", partition=0, offset=offset, value=b"v") for offset in range(4)]
    cells = memoryview(array("q", [0]))
    with pytest.raises(NotToBeSent, match="yielded 1 to send, and then said BatchError"):
        calls(batch, range(1, 5), cells, 0, [])
    calls.close()
    assert (cells[0], put) == (0, [])


@pytest.mark.parametrize("how", ["raises", "returns", "async"])
@pytest.mark.parametrize("outcomes", [[], [(DeadLetter("bad"), [False] * 4)], [(Done(), [True] * 4)]])
def test_what_a_batch_has_yielded_is_sent_where_it_says_that_no_record_has_failed(outcomes: Any, how: str) -> None:
    put: list[Any] = []
    handler = yielding_then(BatchError(outcomes=outcomes), how)
    calls = calls_sending(handler, HandlerConfig("m:h", "batch", {}, 4, 1, 0, 0), "a", lambda *whole: put.append(whole))
    batch = [Message(topic="t", partition=0, offset=offset, value=b"v") for offset in range(4)]
    cells = memoryview(array("q", [0]))
    calls(batch, range(1, 5), cells, 0, [])
    calls.close()
    assert (cells[0], put) == (4, [(None, 0, 4, [A])])


@pytest.mark.parametrize("how", ["raises", "returns", "async"])
def test_a_batch_of_which_nothing_is_done_may_say_which_record_failed_after_yielding(how: str) -> None:
    handler = yielding_then(BatchError(done=0), how)
    calls = calls_sending(handler, HandlerConfig("m:h", "batch", {}, 4, 1, 0, 0), "a", lambda *whole: None)
    batch = [Message(topic="t", partition=0, offset=offset, value=b"v") for offset in range(4)]
    with pytest.raises(OfSome):
        calls(batch, range(1, 5), memoryview(array("q", [0])), 0, [])
    calls.close()


def test_a_record_that_is_skipped_leaves_nothing_and_one_that_is_done_does() -> None:
    def saying(outcome: object) -> Callable[[object], Generator[Send, None, object]]:
        def handle(_: object) -> Generator[Send, None, object]:
            yield Send(value=b"1")
            return outcome

        return handle

    put: list[Any] = []
    with pytest.raises(NotToBeSent):
        called(saying(Send(value=b"2")), put=put)
    assert put == [], "it should have been yielded: the record has failed"
    skip = Skip("empty")
    assert called(saying(skip)) == (skip, [])
    assert called(saying(Done()))[1] == [[A]]


def test_other_values_are_no_word_of_the_handlers() -> None:
    assert outputs_of(5, "a") == ([], 5)
    assert outputs_of([], "a") == ([], None)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ([Send(value=b"1"), 5], "returned int where kunicorn.Send is wanted"),
        ([Skip("x")], "returned Skip among records to send: raise it instead"),
        (Send(value=5), "whose value is int"),
        (Send(key=object()), "whose key is object"),
        (Send(headers=[("a",)]), "pairs of name and value"),  # type: ignore[list-item]
        (Send(headers={5: b"x"}), "name is no text"),  # type: ignore[dict-item]
        (Send("a\0b"), "topic has a NUL"),
        (Send("a\ud83d"), r"topic cannot be sent as UTF-8 \(a lone surrogate\): 'a\\ud83d'"),
        (Send("a" * 250), "topic has 250 characters: 249 are the most"),
        (Send("€" * 249), "topic is '€€.*: Kafka takes ASCII's letters and digits"),
        (Send(headers={"a\0b": b"x"}), "header's name has a NUL"),
        (Send(headers=[("é", b"x"), ("a\ud83d", b"x")]), "header's name cannot be sent as UTF-8"),
        (Send(partition=-1), "partition is -1"),
        (Send(timestamp=True), "timestamp is True"),
    ],
)
def test_what_no_record_can_be_is_refused_in_words(returned: object, why: str) -> None:
    with pytest.raises(NotToBeSent, match=why):
        outputs_of(returned, "a")


def test_headers_count_for_the_memory_that_outputs_take() -> None:
    bare = Outgoing("a", b"12", b"3", None, -1, 0)
    assert size_of([replace(bare, headers=[("name", b"12345"), ("none", None)])]) - size_of([bare]) == 13


def test_without_a_topic_the_setting_is_named() -> None:
    with pytest.raises(NotToBeSent, match=r"set \[producing\] topic"):
        outgoing(Send(value=b"1"), None)


def test_text_is_sent_as_utf_8_and_headers_may_be_a_mapping() -> None:
    sent = outgoing(Send("b", "ä", "k", {"h": "v"}, 3, 17), "a")
    assert sent == Outgoing("b", "ä".encode(), b"k", [("h", b"v")], 3, 17)


def _table() -> object:
    return pytest.importorskip("pyarrow").table({"value": [b"1"]})


COLLECTIONS: list[Callable[[], object]] = [
    {1: Send(value=b"1")}.values,
    lambda: deque([Send(value=b"1")]),
    lambda: UserList([Send(value=b"1")]),
    _table,
]


@pytest.mark.parametrize("made", COLLECTIONS)
def test_records_to_send_in_what_is_no_list_are_refused_not_lost(made: Callable[[], object]) -> None:
    with pytest.raises(NotToBeSent, match="return a list of them"):
        outputs_of(made(), "a")
    with pytest.raises(NotToBeSent, match=r"set \[producing\] delivery"):
        raise_outcome(made())


class _Ungone:
    """A collection that cannot be gone through, like an array without dimensions."""

    def __len__(self) -> int:
        return 1

    def __contains__(self, item: object) -> bool:
        return True

    def __iter__(self) -> Iterator[object]:
        raise TypeError("iteration over a 0-d array")


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, {1, 2}, deque[int](), _Ungone()])
def test_other_collections_are_values_that_say_nothing(value: object) -> None:
    assert outputs_of(value, "a") == ([], value)
    assert raise_outcome(value)


@pytest.mark.parametrize("returned", [Send("a"), [Send("a")]])
def test_where_nothing_is_sent_a_send_is_a_failure_that_names_the_setting(returned: object) -> None:
    with pytest.raises(NotToBeSent, match=r"set \[producing\] delivery"):
        raise_outcome(returned)


def test_a_batch_error_that_is_returned_counts_as_raised() -> None:
    error = BatchError(done=2)
    with pytest.raises(BatchError) as raised:
        raise_outcome(error)
    assert raised.value is error


def test_payloads_stay_out_of_texts() -> None:
    assert "secret" not in repr(Send("a", b"secret", b"secret"))


class Keeper:
    """Keeps its offsets beside its effects."""

    def handle(self, record: object) -> Send:
        return Send("a", b"v")

    def load_offsets(self, partitions: object) -> dict[object, int]:
        return {}


def _keeper() -> tuple[Handler, HandlerConfig]:
    order = HandlerConfig("shop:Keeper", "record", {}, 1, 1, 0, 0)
    return handler_of("shop:Keeper", Keeper()), order


def test_a_handler_that_keeps_its_offsets_is_refused_beside_transactions() -> None:
    keeper, _ = _keeper()
    with pytest.raises(ConfigError, match=r"producing\.delivery .* load_offsets"):
        Outputs(None, "transactions").check(keeper)


def test_what_a_handler_that_keeps_its_offsets_returns_is_a_failure_not_lost() -> None:
    calls = Outputs(None, "at_least_once").calls(*_keeper())
    cells = memoryview(array("q", [4]))
    with pytest.raises(NotToBeSent, match="load_offsets"):
        calls([Message(topic="t", partition=0, offset=4, value=b"")], [5], cells, 0, [])
    assert cells[0] == 4
