"""Handlers whose first tries fail with something large in hand, and what is left of that; filters and decoders, too."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kunicorn import Batch, BatchError, Call, DeadLetter, NotDecodableYet, Record, Send, Skip, Wait

FAILURES = 3
"""So many tries fail, of all that a test begins."""
begun: list[weakref.ref[Any]] = []
"""What each try had in hand, and what it failed by."""
tries: list[int] = []
"""A number for each."""
handled: list[int] = []
"""Records that were handled at last."""


def forget() -> None:
    """Before each test."""
    for noted in (begun, tries, handled):
        noted.clear()


class Held:
    """Of a try: in memory as long as its frames are."""

    def __init__(self) -> None:
        begun.append(weakref.ref(self))


class Away(Exception):
    """What it needs is away."""

    def __init__(self, text: str = "away") -> None:
        super().__init__(text)
        begun.append(weakref.ref(self))


class Passed(Skip):
    """The record is not worth it."""

    def __init__(self) -> None:
        super().__init__("not worth it")
        begun.append(weakref.ref(self))


class Later(Wait):
    """In a moment."""

    def __init__(self) -> None:
        super().__init__(0.001)
        begun.append(weakref.ref(self))


def is_to_fail() -> bool:
    tries.append(len(tries))
    return len(tries) <= FAILURES


def record(record: Record) -> None:
    """As the others below, of one record."""
    held = Held()
    if is_to_fail():
        raise Away(f"with {held}")
    handled.append(record.offset)


ALWAYS = RuntimeError("one for all")


def again_and_again(record: Record) -> None:
    """By an exception that collects tracebacks."""
    held = Held()
    if is_to_fail() and held:
        raise ALWAYS
    handled.append(record.offset)


async def again_and_again_async(record: Record) -> None:
    again_and_again(record)


def returning(record: Record) -> Away | None:
    if is_to_fail():
        return Away()
    handled.append(record.offset)
    return None


def cause(record: Record) -> None:
    held = Held()
    if is_to_fail():
        try:
            raise Away("the database")
        except Away as error:
            raise Away(f"with {held}") from error
    handled.append(record.offset)


def group(record: Record) -> None:
    held = Held()
    if is_to_fail():
        raise ExceptionGroup(f"with {held}", [Away(), Away()])
    handled.append(record.offset)


def passing(record: Record) -> None:
    held = Held()
    handled.append(record.offset)
    if is_to_fail() and held:
        raise Passed


def waiting(record: Record) -> None:
    held = Held()
    if is_to_fail() and held:
        raise Later
    handled.append(record.offset)


def hanging(record: Record) -> None:
    held = Held()
    if is_to_fail() and held:
        while True:
            time.sleep(0.001)
    handled.append(record.offset)


async def record_async(record: Record) -> None:
    held = Held()
    await asyncio.sleep(0)
    if is_to_fail():
        raise Away(f"with {held}")
    handled.append(record.offset)


async def hanging_async(record: Record) -> None:
    held = Held()
    if is_to_fail() and held:
        await asyncio.sleep(60)
    handled.append(record.offset)


def batch(records: Batch) -> None:
    held = Held()
    if is_to_fail():
        raise Away(f"with {held}")
    handled.extend(each.offset for each in records)


async def batch_async(records: Batch) -> None:
    held = Held()
    await asyncio.sleep(0)
    if is_to_fail():
        raise Away(f"with {held}")
    handled.extend(each.offset for each in records)


def in_part(records: Batch) -> None:
    """The first record of a batch is done, if there are others."""
    held = Held()
    if is_to_fail():
        done = int(len(records) > 1)
        handled.extend(each.offset for each in records[:done])
        try:
            raise Away("the database")
        except Away as error:
            raise BatchError(f"with {held}", done=done) from error
    handled.extend(each.offset for each in records)


def by_outcomes(records: Batch) -> BatchError | None:
    """Each second record is given up, and the others are to come again."""
    held = Held()
    if is_to_fail() and held:
        given_up = [not each.offset % 2 for each in records]
        handled.extend(each.offset for each, is_given_up in zip(records, given_up, strict=True) if is_given_up)
        again = [not each for each in given_up]
        return BatchError(outcomes=[(DeadLetter("even"), given_up), (Away(), again)])
    handled.extend(each.offset for each in records)
    return None


def columns(rows: Any) -> None:
    held = Held()
    if is_to_fail():
        raise Away(f"with {held}")
    handled.extend(rows.column("offset").to_pylist())


async def columns_async(rows: Any) -> None:
    columns(rows)


def yielding(record: Record) -> Iterator[Send]:
    held = Held()
    yield Send(value=b"one")
    if is_to_fail():
        raise Away(f"with {held}")
    handled.append(record.offset)


async def yielding_async(record: Record) -> AsyncIterator[Send]:
    held = Held()
    yield Send(value=b"one")
    if is_to_fail():
        raise Away(f"with {held}")
    handled.append(record.offset)


def unsendable(record: Record) -> Any:
    held = Held()
    if is_to_fail():
        return [Send(value=b"one"), held]
    handled.append(record.offset)
    return None


# -- around them -------------------------------------------------------------------------------------------------------


def middleware(call: Call) -> Iterator[None]:
    """One that looks at what came of it."""
    yield
    assert call.error is None


@contextmanager
def replacing(call: Call) -> Iterator[None]:
    """One that puts an exception of its own in place of the handler's."""
    held = Held()
    try:
        yield
    except Away as error:
        raise Away(f"with {held}") from error


async def middleware_async(call: Call) -> AsyncIterator[None]:
    """Likewise."""
    yield
    assert call.error is None


def keeps_all(record: Record) -> bool:
    """A filter that drops nothing."""
    return True


def keeps_none_that_is_first(record: Record) -> bool:
    """A filter that drops the first record."""
    if record.offset == 0:
        handled.append(record.offset)
    return record.offset != 0


def filter_that_fails(record: Record) -> bool:
    """At the first records, which are given up by that."""
    held = Held()
    if is_to_fail():
        handled.append(record.offset)
        raise Away(f"with {held}")
    return True


def decoder_that_fails(value: bytes) -> Sequence[int]:
    """At the first values."""
    held = Held()
    if is_to_fail():
        handled.append(int(value))
        raise Away(f"with {held}")
    return [1]


def decoder_that_waits(value: bytes) -> Sequence[int]:
    """Of a registry that is away at the first values."""
    if is_to_fail():
        raise NotDecodableYet("the registry is away")
    return [1]


def takes_all(record: Record) -> None:
    """A handler that has nothing against any record."""
    if record.offset not in handled:
        handled.append(record.offset)


def takes_batches(records: Batch) -> None:
    """Likewise."""
    for each in records:
        takes_all(each)
