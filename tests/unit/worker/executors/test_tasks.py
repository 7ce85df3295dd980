"""A executor of asyncio tasks whose records are interrupted."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.handler.decode.forms import Plain
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.record import Record
from kunicorn.worker.executors import tasks
from kunicorn.worker.executors.threads import raise_in
from kunicorn.worker.progress import Slots


@dataclass
class Computing:
    """A record's handler that computes until it is told to stop."""

    begun: threading.Event
    until: threading.Event

    def compute(self) -> None:
        self.begun.set()
        while not self.until.is_set():
            pass


@dataclass(eq=False)
class Played:
    """As much of a flight as an executor asks for."""

    messages: Sequence[Message]
    poison: str = ""


class Table:
    """The table, and the loop: records to begin with, and how they ended."""

    def __init__(self, flights: Sequence[Played], at_once: int = 1) -> None:
        """`at_once`: so many are in hand."""
        self._waiting = list(flights)
        self._free = at_once
        self.ended = queue.Queue[tuple[Any, BaseException | None]]()

    def start_next(self, slots: Slots | None) -> Any:
        if not self._free or not self._waiting:
            return None
        self._free -= 1
        return self._waiting.pop(0)

    def startable(self, slots: Slots) -> bool:
        return bool(self._waiting) and self._free > 0

    def finish(self, flight: Any) -> Any:
        self._end(flight, None)
        return self.start_next(None)

    def fail(self, flight: Any, error: BaseException) -> None:
        self._end(flight, error)

    def _end(self, flight: Any, error: BaseException | None) -> None:
        self._free += 1
        self.ended.put((flight, error))

    def finished(self) -> None:
        """Nobody waits for room."""


def test_an_interruption_that_hits_another_record_is_no_failed_try_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    late, innocent = (Computing(threading.Event(), threading.Event()) for _ in range(2))

    async def handle(record: Record) -> None:
        (late if record.offset == 0 else innocent).compute()
        if record.offset == 0:
            await asyncio.sleep(0)

    def raise_too_late(thread: int, kind: type[BaseException]) -> None:
        late.until.set()
        assert innocent.begun.wait(10), "the loop has gone on to the next record"
        raise_in(thread, kind)

    monkeypatch.setattr(tasks, "raise_in", raise_too_late)
    flights = [Played([Message(topic="t", partition=0, offset=offset, value=b"v")]) for offset in (0, 1)]
    table: Any = Table(flights, at_once=2)
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 2), table)
    executor.wake()
    assert late.begun.wait(10)
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)
    try:
        hit, error = table.ended.get(timeout=10)
    finally:
        innocent.until.set()
    assert (hit, type(error)) == (flights[1], DrainDeadline), "a HandlerTimeout would count as its failed try"
    assert table.ended.get(timeout=10) == (flights[0], None)
    executor.close()


def test_an_interruption_that_comes_behind_a_failed_call_hits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, late = threading.Event(), threading.Event()
    met = tasks.AsyncioExecutor._met

    def slowly_met(executor: tasks.AsyncioExecutor, flight: Any, error: BaseException) -> BaseException:
        failed.set()
        while not late.is_set():
            pass  # Python code, which an exception that is raised in this thread hits.
        return met(executor, flight, error)

    async def handle(record: Record) -> None:
        raise ValueError("no")

    monkeypatch.setattr(tasks.AsyncioExecutor, "_met", slowly_met)
    flights = [Played([Message(topic="t", partition=0, offset=0, value=b"v")])]
    table: Any = Table(flights)
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 1), table)
    executor.wake()
    assert failed.wait(10)
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)
    late.set()
    ended, error = table.ended.get(timeout=10)
    assert (ended, type(error)) == (flights[0], ValueError)
    assert executor._interruptions == {}
    executor.close()


@pytest.mark.parametrize("place", [7, 48, 49, 50])
def test_a_handler_that_cancels_its_own_task_and_returns_ends_its_own_call_and_no_other(place: int) -> None:
    async def handle(record: Record) -> None:
        if record.offset == place:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        elif record.offset % 2:
            await asyncio.sleep(0)

    flights = [Played([Message(topic="t", partition=0, offset=offset, value=b"v")]) for offset in range(120)]
    table: Any = Table(flights)
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 1), table)
    executor.wake()
    ended = [table.ended.get(timeout=10) for _ in flights]
    assert [error for _, error in ended if error is not None] == []
    executor.close()


def test_a_watchdog_that_cancels_the_task_of_a_record_that_is_done_leaves_none_in_hand() -> None:
    async def handle(record: Record) -> None:
        if record.offset == 48:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)

    flights = [Played([Message(topic="t", partition=0, offset=offset, value=b"v")]) for offset in range(120)]
    table: Any = Table(flights)
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 1), table)
    executor.wake()
    assert [table.ended.get(timeout=10) for _ in flights] == [(flight, None) for flight in flights]
    executor.close()
