"""Middlewares and handlers that note what they see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kunicorn import Batch, BatchError, Call, Record, Send, Skip, Worker

NOTED: list[str] = []


def outer(call: Call) -> Iterator[None]:
    NOTED.append(f"outer begins {call.offset}")
    try:
        yield
    finally:
        said = call.outcome if call.error is None else call.error
        NOTED.append(f"outer ends with {type(said).__name__}")


def inner(call: Call) -> Iterator[None]:
    NOTED.append("inner begins")
    yield
    NOTED.append("inner ends")


@contextmanager
def decorated(call: Call) -> Iterator[None]:
    NOTED.append("decorated")
    yield


def keeps_errors(call: Call) -> Iterator[None]:
    try:
        yield
    except Exception:
        NOTED.append("kept")


def skips(call: Call) -> Iterator[None]:
    if call.records[0].value == b"skip":
        raise Skip("seen before")
    yield


def replaces(call: Call) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Skip("not ours") from error


def forgot_to_yield(call: Call) -> None:
    NOTED.append("called")


async def cancels_itself(record: Record) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def commits_behind(call: Call) -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0)
    NOTED.append(f"committed {call.offset}")


async def waits(call: Call) -> AsyncIterator[None]:
    NOTED.append("waits")
    yield
    NOTED.append("waited")


async def no_context(call: Call) -> None: ...


class Counting:
    def setup(self, worker: Worker, options: dict[str, Any]) -> None:
        NOTED.append(f"set up in {worker.slot} with {options}")

    def __call__(self, call: Call) -> Iterator[None]:
        yield
        NOTED.append(f"counted {len(call)} of {call.topic}-{call.partition}")

    def teardown(self) -> None:
        NOTED.append("torn down")


class Plain:
    def other(self) -> None: ...


number = 5


def handle(record: Record) -> Any:
    NOTED.append(f"handles {record.offset}")
    if record.value == b"fail":
        raise ValueError("no such customer")
    if record.value == b"old":
        return Skip("old")
    if record.value == b"returned":
        return KeyError("no such customer")
    return None


def first_done(batch: Batch) -> BatchError:
    return BatchError(done=1)


def handle_batch(batch: Batch) -> None:
    NOTED.append(f"handles {len(batch)}")


def sends(record: Record) -> Iterator[Send]:
    NOTED.append("body begins")
    yield Send("totals", value=record.value)
    NOTED.append("body ends")


async def handle_async(record: Record) -> None:
    handle(record)


class WithHooks:
    def setup(self, options: dict[str, Any]) -> None:
        NOTED.append("handler set up")

    def handle(self, record: Record) -> None:
        NOTED.append("handles")

    def teardown(self) -> None:
        NOTED.append("handler torn down")


def counts(call: Call) -> Iterator[None]:
    """Notes the records of a call, and what came of it."""
    yield
    offsets = [record.offset for record in call.records]
    NOTED.append(f"{len(call)} records, {offsets}, {type(call.outcome).__name__}")


def named(call: Call, name: str) -> Iterator[None]:
    NOTED.append(name)
    yield


async def named_async(call: Call, name: str) -> AsyncIterator[None]:
    NOTED.append(name)
    yield


partly, partly_async = partial(named, name="partly"), partial(named_async, name="partly_async")
