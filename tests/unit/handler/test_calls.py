"""Calling the handler: what of a chunk is handled, and what its failure says."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from confluent_kafka import Message

from kunicorn.handler import cancellation
from kunicorn.handler.call import OfSome, OwnLoop, calls_of
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.load import DrainDeadline, Handler
from kunicorn.handler.outcome import BatchError
from kunicorn.handler.record import Batch, Record
from kunicorn.handler.rows import following_offsets

JSON = Decoding(value="json")


def messages(*values: bytes | None) -> list[Message]:
    return [Message(topic="t", partition=0, offset=4 + at, value=value, key=b"k") for at, value in enumerate(values)]


def called(handle: Callable[..., Any], mode: str, decoding: Decoding, *values: bytes | None) -> tuple[int, Any]:
    """How many records are done, and what came out."""
    calls = calls_of(Handler("x:y", handle, inspect.iscoroutinefunction(handle)), mode, decoding)
    cells = memoryview(array("q", [4]))
    some = messages(*values)
    try:
        calls(some, following_offsets(some), cells, 0, [])
    except Exception as error:
        return cells[0] - 4, error
    finally:
        calls.close()
    return cells[0] - 4, None


def asynchronous(handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def awaited(argument: Any) -> Any:
        return handle(argument)

    return awaited


@pytest.mark.parametrize("wrap", [lambda handle: handle, asynchronous])
def test_records_before_one_that_cannot_be_decoded_are_handled(wrap: Callable[[Any], Any]) -> None:
    seen: list[Any] = []

    def handle(record: Record) -> None:
        seen.append(record.data)

    done, error = called(wrap(handle), "record", JSON, b"1", b"2", b"x", b"4")
    assert (done, seen) == (2, [1, 2])
    assert isinstance(error, Undecodable)
    assert str(error).startswith("t-0@6: its value is no JSON")


@pytest.mark.parametrize("wrap", [lambda handle: handle, asynchronous])
def test_an_error_of_the_handlers_own_is_no_matter_of_decoding(wrap: Callable[[Any], Any]) -> None:
    def handle(record: Record) -> None:
        raise ValueError(record.data)

    done, error = called(wrap(handle), "record", JSON, b"1", b"x")
    assert (done, error.args) == (0, (1,))
    assert type(error) is ValueError


@pytest.mark.parametrize("wrap", [lambda handle: handle, asynchronous])
def test_a_batch_ends_before_what_cannot_be_decoded_which_fails_alone(wrap: Callable[[Any], Any]) -> None:
    seen: list[Any] = []

    def handle(batch: Batch) -> None:
        seen.append(batch.data())

    done, error = called(wrap(handle), "batch", JSON, b"1", b"2", b"x", b"4")
    assert (done, seen) == (2, [[1, 2]])
    assert isinstance(error, OfSome)
    assert isinstance(error.error, Undecodable)
    assert called(wrap(handle), "batch", JSON, b"x", b"4")[0] == 0
    assert seen == [[1, 2]], "nothing is called with no record at all"


@pytest.mark.parametrize("wrap", [lambda handle: handle, asynchronous])
def test_what_a_batch_handler_says_is_done_is_done(wrap: Callable[[Any], Any]) -> None:
    def handle(batch: Batch) -> None:
        raise BatchError(done=[4, 6]) from KeyError("who")

    done, error = called(wrap(handle), "batch", Decoding(), b"1", b"2", b"3")
    assert done == 1
    assert isinstance(error, OfSome)
    assert (repr(error.error), error.ahead) == ("KeyError('who')", {6})


@dataclass
class Order:
    """A model."""

    id: int
    total: float


def away(value: bytes) -> bytes:
    """A decoder whose registry is away for some values."""
    if value == b"away":
        raise NotDecodableYet("later")
    return value


def test_a_batch_waits_as_a_whole_for_what_cannot_be_decoded_yet() -> None:
    seen: list[Batch] = []
    done, error = called(seen.append, "batch", Decoding(value=f"{__name__}:away"), b"1", b"away")
    assert (done, seen) == (0, [])
    assert isinstance(error, NotDecodableYet)


asked: list[bytes] = []


def noting(value: bytes) -> bytes:
    """`away`, whose calls are noted."""
    asked.append(value)
    return away(value)


@pytest.mark.parametrize("mode", ["record", "batch"])
@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize("wrap", [lambda handle: handle, asynchronous])
def test_a_decoder_whose_service_is_away_is_asked_once_for_each_try(
    wrap: Callable[[Any], Any], part: str, mode: str
) -> None:
    asked.clear()
    noted = f"{__name__}:noting"
    decoding = Decoding(value=noted) if part == "value" else Decoding(key=noted)
    calls = calls_of(Handler("x:y", wrap(lambda _: None), wrap is asynchronous), mode, decoding)
    some = [Message(topic="t", partition=0, offset=at, value=each, key=each) for at, each in enumerate((b"1", b"away"))]
    with pytest.raises(NotDecodableYet):
        calls(some, following_offsets(some), memoryview(array("q", [0])), 0, [])
    calls.close()
    assert asked.count(b"away") == 1


def test_a_batch_goes_on_to_a_key_that_cannot_be_decoded_before_what_cannot_be_decoded_yet() -> None:
    seen: list[Batch] = []
    decoding = Decoding(value=f"{__name__}:away", key="json")
    calls = calls_of(Handler("x:y", seen.append, False), "batch", decoding)
    places = enumerate([(b"1", b"1"), (b"2", b"x"), (b"away", b"3")])
    some = [Message(topic="t", partition=0, offset=at, value=value, key=key) for at, (value, key) in places]
    with pytest.raises(OfSome) as failed:
        calls(some, following_offsets(some), memoryview(array("q", [0])), 0, [])
    assert isinstance(failed.value.error, Undecodable)
    assert [each.offsets() for each in seen] == [[0]]


def test_a_handler_of_a_model_and_the_record_gets_both() -> None:
    seen: list[tuple[Any, int]] = []

    def handle(order: Order, record: Record) -> None:
        seen.append((order, record.offset))

    assert called(handle, "record", Decoding(), b'{"id": 1, "total": 2}')[0] == 1
    assert seen == [(Order(1, 2.0), 4)]


@pytest.mark.parametrize("mode", ["record", "batch"])
@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_handler_that_cancels_its_own_task_and_returns_has_handled_its_records_and_fails_no_other(
    mode: str, last: int
) -> None:
    async def handle(argument: Record | Batch) -> None:
        if isinstance(argument, Record) and argument.offset != 4 + last:
            await asyncio.sleep(0)
            return
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    assert called(handle, mode, Decoding(), b"1", b"2", b"3") == (3, None)


def test_a_hook_that_cancels_its_own_task_and_returns_has_succeeded() -> None:
    async def hook() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "set up"

    loop = OwnLoop()
    try:
        assert loop.run(hook()) == "set up"
    finally:
        loop.close()


def test_a_handler_that_waits_on_after_it_has_cancelled_its_own_task_has_failed() -> None:
    async def handle(record: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    calls = calls_of(Handler("x:y", handle, is_async=True), "record")
    cells = memoryview(array("q", [4]))
    with pytest.raises(asyncio.CancelledError):
        calls(messages(b"1"), [5], cells, 0, [])
    calls.close()
    assert cells[0] == 4


def test_a_signal_that_comes_while_a_call_begins_leaves_nothing_that_the_next_call_would_go_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[bytes | None] = []
    signals: list[Callable[[], None]] = []

    class SignalledLoop(uvloop.Loop):
        """At which a signal arrives that was sent, as soon as a task is made: Python's handler runs there."""

        def create_task(self, *args: Any, **options: Any) -> Any:
            task = super().create_task(*args, **options)
            while signals:
                signals.pop()()
            return task

    async def handle(record: Record) -> None:
        handled.append(record.value)

    monkeypatch.setattr(uvloop, "new_event_loop", SignalledLoop)
    calls = calls_of(Handler("x:y", handle, is_async=True), "record")
    cells = memoryview(array("q", [4, 4]))
    deadline = DrainDeadline()
    signals.append(lambda: calls.interrupt(deadline))
    some = messages(b"given up")
    with pytest.raises(DrainDeadline) as raised:
        calls(some, following_offsets(some), cells, 0, [])
    assert raised.value is deadline
    others = messages(b"another")
    calls(others, following_offsets(others), cells, 1, [])
    calls.close()
    assert (handled, cells.tolist()) == ([b"another"], [4, 5])


# -- what stops the loop beside a call ---------------------------------------------------------------------------------


@pytest.fixture
def sigint_as_in_a_worker() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def sigint_as_python_has_it() -> Iterator[None]:
    """Not so where the tests were started in a shell's background: it has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def a_moment() -> None:
    """Longer than whatever was begun before takes to stop the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def leave(error: type[BaseException]) -> None:
    raise error


def in_the_background(error: type[BaseException]) -> object:
    """The task, which somebody has to keep."""
    task = asyncio.create_task(leave(error))
    task.add_done_callback(lambda done: done.exception())
    return task


STOPPING: dict[str, Callable[[], object]] = {
    "a task leaves": lambda: in_the_background(SystemExit),
    "a task is interrupted": lambda: in_the_background(KeyboardInterrupt),
    "two tasks leave": lambda: [in_the_background(SystemExit), in_the_background(SystemExit)],
    "a callback leaves": lambda: asyncio.get_running_loop().call_soon(sys.exit),
    "the loop is stopped": lambda: asyncio.get_running_loop().stop(),
}


@pytest.mark.usefixtures("sigint_as_in_a_worker")
@pytest.mark.parametrize("mode", ["record", "batch"])
@pytest.mark.parametrize("stop", STOPPING.values(), ids=STOPPING)
def test_a_call_goes_on_until_its_records_are_handled_whatever_stops_the_loop_beside_it(
    stop: Callable[[], object], mode: str
) -> None:
    kept, trace = list[object](), list[str]()

    async def handle(argument: Record | Batch) -> None:
        trace.append("begun")
        kept.append(stop())
        await a_moment()
        trace.append("handled")

    calls = calls_of(Handler("x:y", handle, is_async=True), mode)
    cells = memoryview(array("q", [4, 4]))
    some = messages(b"1", b"2")
    for cell in (0, 1):
        calls(some, following_offsets(some), cells, cell, [])
        assert (cells[cell], trace[-1]) == (6, "handled")
        cells[cell] = 100  # The slot is another partition's now.
    calls.close()
    assert cells.tolist() == [100, 100]
    assert trace == ["begun", "handled"] * (4 if mode == "record" else 2)


async def below_gather() -> None:
    await asyncio.gather(leave(SystemExit), a_moment())


async def below_wait_for() -> None:
    await asyncio.wait_for(leave(SystemExit), 60)


async def below_task_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(leave(SystemExit))
        await a_moment()


@pytest.mark.parametrize("mode", ["record", "batch"])
@pytest.mark.parametrize("exits", [below_gather, below_wait_for, below_task_group, lambda: leave(SystemExit)])
def test_an_exit_in_a_task_that_the_handler_waits_for_is_its_own_records_failure_and_no_others(
    exits: Callable[[], Coroutine[Any, Any, None]], mode: str
) -> None:
    async def handle(argument: Record | Batch) -> None:
        first = argument if isinstance(argument, Record) else argument[0]
        await a_moment()
        if first.value == b"bad":
            try:
                await exits()
            finally:
                await a_moment()

    calls = calls_of(Handler("x:y", handle, is_async=True), mode)
    cells = memoryview(array("q", [4, 4]))
    bad, good = messages(b"bad", b"1"), messages(b"1", b"2")
    with pytest.raises(SystemExit):
        calls(bad, following_offsets(bad), cells, 0, [])
    assert cells.tolist() == [4, 4]
    calls(good, following_offsets(good), cells, 1, [])
    calls.close()
    assert cells.tolist() == [4, 6]


@pytest.mark.parametrize("swallows", [False, True])
def test_an_interruption_ends_a_call_beside_which_another_task_has_left(swallows: bool) -> None:
    deadline, kept = DrainDeadline(), list[object]()

    async def handle(record: Record) -> None:
        kept.append(in_the_background(SystemExit))
        asyncio.get_running_loop().call_later(0, calls.interrupt, deadline)
        with suppress(*[asyncio.CancelledError] if swallows else []):
            await asyncio.get_running_loop().create_future()

    calls = calls_of(Handler("x:y", handle, is_async=True), "record")
    cells = memoryview(array("q", [4]))
    with nullcontext() if swallows else pytest.raises(DrainDeadline) as raised:
        calls(messages(b"1"), [5], cells, 0, [])
    calls.close()
    assert (cells[0], raised and raised.value) == ((5, None) if swallows else (4, deadline))


@pytest.mark.usefixtures("sigint_as_python_has_it")
def test_ctrl_c_ends_the_call_that_waits_where_no_worker_has_told_python_otherwise() -> None:
    trace = list[str]()

    async def handle(record: Record) -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            trace.append("cancelled")
            raise

    calls = calls_of(Handler("x:y", handle, is_async=True), "record")
    cells = memoryview(array("q", [4]))
    with pytest.raises(KeyboardInterrupt):
        calls(messages(b"1"), [5], cells, 0, [])
    calls.close()
    assert (cells[0], trace) == (4, ["cancelled"])


def test_a_task_that_leaves_as_the_loop_is_closed_keeps_no_other_from_its_end() -> None:
    trace, kept = list[str](), list[object]()

    async def stays(leaves: bool) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            trace.append("cancelled")
            if leaves:
                sys.exit()
            await a_moment()
            trace.append("ended")

    async def hook() -> None:
        for leaves in (True, False):
            task = asyncio.create_task(stays(leaves))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            kept.append(task)
        await asyncio.sleep(0)

    loop = OwnLoop()
    loop.run(hook())
    loop.close()
    assert sorted(trace) == ["cancelled", "cancelled", "ended"]


async def reads(trace: list[str], ends: Callable[[], Awaitable[object]]) -> AsyncIterator[int]:
    """A source of a handler's own, such as a cursor of a database: its `finally` gives back what it holds."""
    try:
        while True:
            yield 1
    finally:
        await ends()
        trace.append("closed")


def test_an_asynchronous_generator_that_a_handler_keeps_is_closed_with_its_loop() -> None:
    trace = list[str]()
    source = reads(trace, a_moment)

    async def handle(record: Record) -> None:
        await anext(source)

    calls = calls_of(Handler("x:y", handle, is_async=True), "record")
    calls(messages(b"1"), [5], memoryview(array("q", [4])), 0, [])
    assert trace == []
    calls.close()
    assert trace == ["closed"]


def test_a_generator_that_does_not_end_keeps_the_loop_from_its_end_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancellation, "CLOSING_SECONDS", 0.01)
    trace = list[str]()
    source = reads(trace, asyncio.Event().wait)

    async def hook() -> None:
        await anext(source)

    loop = OwnLoop()
    loop.run(hook())
    loop.close()
    assert trace == []
