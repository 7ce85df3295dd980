"""Handlers that do what the name of their record's topic says, one for each form in which a handler can be called."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import Any

from kunicorn import Batch, BatchError, DeadLetter, HandlerTimeout, Record, Retry, Send, Skip

HOSTILE = b"hostile"
"""The value of the records that do something."""
SURROGATE = "Anna \ud83d"
"""Half an emoji, as `json.loads` makes it of a text that was cut."""

begun: Counter[tuple[str, int]] = Counter()
"""Calls by topic and offset."""


class Unspeakable(Exception):
    """Cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Deadly(Exception):
    """Whoever asks what it says is to leave."""

    def __str__(self) -> str:
        raise SystemExit(9)


class Odd(Exception):
    """Says it in a text of its own kind."""

    def __str__(self) -> str:
        return _Text(SURROGATE)


class _Text(str):
    def __getitem__(self, place: Any) -> Any:
        raise RuntimeError("not to be cut")


class Worse(BaseException):
    """None of those that programs expect."""


def raising(make: Callable[[], BaseException]) -> Callable[[Record], object]:
    def deed(record: Record) -> object:
        raise make()

    return deed


async def a_coroutine(record: Record) -> None:
    """Never runs where nobody awaits it."""
    raise AssertionError("nobody awaits this")


def a_generator(record: Record) -> Iterator[None]:
    """Never runs but where its outputs are sent."""
    yield None


async def an_async_generator(record: Record) -> AsyncIterator[None]:
    """Likewise."""
    yield None


def recurse(record: Record) -> object:
    """Until the interpreter has enough."""
    return recurse(record)


async def cancelled_within(record: Record) -> None:
    """As when a pool of connections cancels the task that others wait for."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


DEEDS: Mapping[str, Callable[[Record], object]] = {
    "surrogate": raising(lambda: ValueError(SURROGATE)),
    "huge": raising(lambda: ValueError("\x00\x1b[31m" + "x" * 5_000_000)),
    "unspeakable": raising(Unspeakable),
    "deadly": raising(Deadly),
    "odd-text": raising(Odd),
    "named-oddly": raising(type("oddly named\n", (Exception,), {"__module__": None})),
    "group": raising(lambda: ExceptionGroup(SURROGATE, [ValueError(SURROGATE)])),
    "base-group": raising(lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), Unspeakable()])),
    "cancelled": raising(asyncio.CancelledError),
    "leave": raising(lambda: SystemExit(7)),
    "interrupt": raising(KeyboardInterrupt),
    "generator-exit": raising(GeneratorExit),
    "worse": raising(Worse),
    "recursion": recurse,
    "memory": raising(MemoryError),
    "number-of-seconds": lambda record: Retry("locked", after=5),  # type: ignore[arg-type]
    "coroutine": a_coroutine,
    "generator": a_generator,
    "async-generator": an_async_generator,
    "lazy": lambda record: map(print, [record]),
    "returns-error": lambda record: ValueError("returned, and meant to be raised"),
    "skips": lambda record: Skip(SURROGATE),
    "gives-up": lambda record: DeadLetter(SURROGATE),
    "says-odd": lambda record: {"anything": object()},
}


def obey(record: Record) -> object:
    """One record."""
    begun[record.topic, record.offset] += 1
    return DEEDS[record.topic](record) if record.value == HOSTILE else None


async def obey_async(record: Record) -> object:
    """Likewise."""
    return obey(record)


def obey_batch(batch: Batch) -> object:
    """One after another."""
    return next((said for record in batch if (said := obey(record)) is not None), None)


async def obey_batch_async(batch: Batch) -> object:
    """Likewise."""
    return obey_batch(batch)


def fail_one(batch: Batch) -> None:
    """The hostile one, by what cannot be told."""
    for at, record in enumerate(batch):
        begun[record.topic, record.offset] += 1
        if record.value == HOSTILE:
            raise BatchError(done=at) from Unspeakable()


def output_of(record: Record) -> Send:
    """One for each record that is handled."""
    return Send(value=f"{record.topic}@{record.offset}")


def obey_and_send(record: Record) -> object:
    """With an output."""
    said = obey(record)
    return output_of(record) if said is None else said


async def obey_and_send_async(record: Record) -> object:
    """Likewise."""
    return obey_and_send(record)


def obey_and_yield(record: Record) -> Generator[object, None, object]:
    """Likewise."""
    said = obey(record)
    if said is not None:
        return said
    yield output_of(record)
    return None


# -- what leaves in another task ---------------------------------------------------------------------------------------

LEAVING = b"leaving"
"""The value of the records beside which a task leaves."""
kept: list[object] = []
"""Tasks in the background."""


async def leave() -> None:
    """As a program does that has found its configuration to be wrong."""
    raise SystemExit("it will not go on")


async def exit_below_and_beside(record: Record) -> None:
    """In a task that it waits for, or in one that it does not."""
    begun[record.topic, record.offset] += 1
    if record.value == HOSTILE:
        await asyncio.gather(leave(), asyncio.sleep(0))
    if record.value == LEAVING:
        kept.append(asyncio.create_task(leave()))
        asyncio.get_running_loop().stop()
    for _ in range(5):
        await asyncio.sleep(0)


async def exit_below_and_beside_batch(batch: Batch) -> None:
    """Likewise."""
    for record in batch:
        await exit_below_and_beside(record)


# -- what is interrupted -----------------------------------------------------------------------------------------------
# A call counts as begun once it is where the test is to interrupt it: what came before would end it as it is.

met: list[str] = []
"""What was raised in them."""
counts: list[int] = []
"""`Task.cancelling` at the beginning of a record."""


def hold() -> None:
    """Until something is raised here."""
    while True:
        time.sleep(0.002)


def wrap(record: Record) -> None:
    """Have the interruption replaced by another error, as decorators do."""
    try:
        begun[record.topic, record.offset] += 1
        hold()
    except BaseException as error:
        met.append(type(error).__name__)
        raise ValueError("it did not work") from error


async def wrap_async(record: Record) -> None:
    """Likewise, while it waits."""
    try:
        begun[record.topic, record.offset] += 1
        await asyncio.sleep(60)
    except BaseException as error:
        met.append(type(error).__name__)
        raise ValueError("it did not work") from error


async def group(record: Record) -> None:
    """Have it wrapped by a TaskGroup, while the handler computes."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(0.001))
        begun[record.topic, record.offset] += 1
        hold()


def wrap_batch(batch: Batch) -> None:
    """One of the batch."""
    wrap(batch[0])


async def wrap_batch_async(batch: Batch) -> None:
    """Likewise."""
    await wrap_async(batch[0])


def survive(record: Record) -> None:
    """The first one keeps its interruption to itself, the second fails by its own fault."""
    with contextlib.suppress(HandlerTimeout):
        begun[record.topic, record.offset] += 1
        if record.offset == 0:
            hold()
    if record.offset == 1:
        raise LookupError("my own")


async def survive_async(record: Record) -> None:
    """Likewise; the second fails in a TaskGroup."""
    task = asyncio.current_task()
    assert task is not None
    counts.append(task.cancelling())
    with contextlib.suppress(asyncio.CancelledError):
        begun[record.topic, record.offset] += 1
        if record.offset == 0:
            await asyncio.sleep(60)
    if record.offset == 1:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancelled_within(record)).cancel()
            tasks.create_task(fail())
            await asyncio.sleep(60)


async def fail() -> None:
    """By its own fault."""
    raise LookupError("my own")


# -- what is not what it looks like -----------------------------------------------------------------------------------


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as most are written: its wrapper is a plain function."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


@logged
async def wrapped(record: Record) -> None:
    """Looks like `async def`."""
    begun[record.topic, record.offset] += 1


@logged
def wrapped_generator(record: Record) -> Iterator[None]:
    """Looks like a generator."""
    begun[record.topic, record.offset] += 1
    yield None


@logged
async def wrapped_async_generator(record: Record) -> AsyncIterator[None]:
    """Looks like one that is asynchronous."""
    begun[record.topic, record.offset] += 1
    yield None


@logged
async def wrapped_batch(batch: Batch) -> None:
    """Looks like one for batches."""
    begun.update((record.topic, record.offset) for record in batch)


async def noted(times: int, record: Record) -> None:
    """One call."""
    begun[record.topic, record.offset] += times


class Forwarding:
    """An object whose `__call__` hands on what it does not wait for."""

    def __call__(self, record: Record) -> Any:
        return noted(1, record)


class Waiting:
    """An object whose `__call__` is `async def`."""

    async def __call__(self, record: Record) -> None:
        await noted(1, record)


forwarding = Forwarding()
waiting = Waiting()
in_a_lambda = lambda record: noted(1, record)  # noqa: E731
partially = functools.partial(noted, 1)
partially_wrapped = functools.partial(logged(noted), 1)
