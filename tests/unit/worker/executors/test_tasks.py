"""An executor of asyncio tasks whose records are interrupted."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from kunicorn.handler.call import interrupted
from kunicorn.handler.decode.forms import Plain
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.record import Record
from kunicorn.worker.executors import tasks
from kunicorn.worker.executors.threads import ThreadExecutor, raise_in
from kunicorn.worker.progress import Slots
from tests.unit.worker.executors.played_table import Played, Table, flights_of
from tests.waiting import wait_until


def begun(handle: Any, table: Any, at_once: int = 1) -> tasks.AsyncioExecutor:
    """Handles what is in the table."""
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", at_once), table)
    executor.wake()
    return executor


class Late:
    """A handler that computes when it is to be interrupted, and has left off when the interruption is raised; and a
    place where the loop is then. There it stays until it is hit, or the interruption is raised."""

    def __init__(self, place: str, *, then_waits: bool) -> None:
        self._place, self._then_waits = place, then_waits
        self.computing = threading.Event()
        self._left, self._elsewhere, self._raised = threading.Event(), threading.Event(), threading.Event()
        self.met: list[type[BaseException]] = []
        """By the handler, where it waits."""
        self.hit: list[BaseException] = []
        """Elsewhere."""
        self._background: asyncio.Task[None] | None = None

    async def handle(self, record: Record) -> None:
        if record.offset > 0:
            self.be_at("another record's handler")
            if self._place == "a failure is noted":
                raise ValueError("no")
            return
        loop = asyncio.get_running_loop()
        self._background = loop.create_task(self._in_the_background())
        loop.call_soon(self.be_at, "a callback")
        self.computing.set()
        while not self._left.is_set():
            pass
        if self._then_waits:
            try:
                await asyncio.sleep(60)
            except BaseException as error:
                self.met.append(type(error))
                raise

    async def _in_the_background(self) -> None:
        self.be_at("a task in the background")

    async def step_aside(self, task: object) -> None:
        """In the place of the executor's."""
        self.be_at("the executor steps aside")

    def be_at(self, place: str) -> None:
        if place != self._place:
            return
        self._elsewhere.set()
        try:
            while not self._raised.is_set():
                pass  # Python code, which an exception that is raised in this thread hits.
        except BaseException as error:
            self.hit.append(error)
            raise

    def raise_late(self, thread: int, kind: type[BaseException]) -> None:
        """In the place of `raise_in`: when the loop is elsewhere, or waits for whoever raises."""
        self._left.set()
        waits = tasks.AsyncioExecutor._be_hit.__code__
        frames = sys._current_frames
        wait_until(lambda: self._elsewhere.is_set() or frames()[thread].f_code is waits, "the loop", every=0)
        raise_in(thread, kind)
        self._raised.set()


class LateTable(Table):
    """In which the loop may be then."""

    def __init__(self, flights: Sequence[Played], late: Late) -> None:
        super().__init__(flights)
        self._late = late

    def start_next(self, slots: Slots | None) -> Any:
        flight = super().start_next(slots)
        if flight is not None and flight.messages[0].offset() > 0:
            self._late.be_at("the next record is taken")
        return flight

    def finish(self, flight: Any) -> Any:
        if flight.messages[0].offset() > 0:
            self._late.be_at("an end is noted")
        return super().finish(flight)

    def fail(self, flight: Any, error: BaseException) -> None:
        if flight.messages[0].offset() > 0:
            self._late.be_at("a failure is noted")
        super().fail(flight, error)

    def add_slot(self) -> None:
        self._free += 1


PLACES = [
    "another record's handler",
    "the next record is taken",
    "an end is noted",
    "a failure is noted",
    "the executor steps aside",
    "a task in the background",
    "a callback",
]


@pytest.mark.parametrize("then_waits", [True, False], ids=["it waits", "it returns"])
@pytest.mark.parametrize("place", PLACES)
def test_an_interruption_that_is_raised_late_hits_the_handler_that_it_is_meant_for_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, place: str, then_waits: bool
) -> None:
    late, broken = Late(place, then_waits=then_waits), list[str]()
    monkeypatch.setattr(tasks, "raise_in", late.raise_late)
    monkeypatch.setattr(tasks, "die", lambda: broken.append("the worker ends"))
    monkeypatch.setattr(tasks, "_IN_A_ROW", 2)
    monkeypatch.setattr(tasks, "step_aside", late.step_aside)
    flights = flights_of(4)
    table: Any = LateTable(flights, late)
    executor = tasks.AsyncioExecutor(late.handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 2), table)
    executor.wake()
    assert late.computing.wait(60)
    table.add_slot()
    executor.wake()
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)
    ended = dict(table.ended.get(timeout=60) for _ in flights)
    assert (broken, late.hit) == ([], [])
    assert late.met == ([HandlerTimeout] if then_waits else []), "it sees the interruption where it waits"
    assert type(ended.pop(flights[0])) is HandlerTimeout
    assert {type(error) for error in ended.values()} == {ValueError if place == "a failure is noted" else type(None)}
    executor.close()


def test_an_interruption_of_a_try_that_is_over_does_not_hit_the_next_try_of_the_record() -> None:
    waited_for, released = queue.Queue[asyncio.Future[None]](), threading.Event()
    tries: list[int] = []

    class Again(Table):
        """A record that has failed is tried again at once."""

        def fail(self, flight: Any, error: BaseException) -> None:
            super().fail(flight, error)
            self._waiting.insert(0, flight)

    async def handle(record: Record) -> None:
        if record.offset == 1:
            future = waited_for.get_nowait()
            future.set_result(None)
            waited_for.put(future)
            assert released.wait(60)
            return
        tries.append(record.offset)
        if len(tries) == 1:
            waited_for.put_nowait(future := asyncio.get_running_loop().create_future())
            await future
            raise ValueError("no")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    flights = flights_of(2)
    table: Any = Again(flights, at_once=2)
    executor = begun(handle, table, 2)
    wait_until(lambda: waited_for.qsize() and waited_for.queue[0].done(), "the other record's handler", every=0)
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)  # It comes to the loop behind the end of what the first try awaits.
    released.set()
    ended = [table.ended.get(timeout=60) for _ in range(3)]
    assert [type(error) for flight, error in ended if flight is flights[0]] == [HandlerTimeout, type(None)]
    executor.close()


def test_an_interruption_that_comes_behind_a_failed_call_hits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, late = threading.Event(), threading.Event()

    def slowly_interrupted(error: BaseException, interruption: BaseException | None) -> BaseException:
        failed.set()
        while not late.is_set():
            pass  # Python code, which an exception that is raised in this thread hits.
        return interrupted(error, interruption)

    async def handle(record: Record) -> None:
        raise ValueError("no")

    monkeypatch.setattr(tasks, "interrupted", slowly_interrupted)
    flights = flights_of(1)
    table: Any = Table(flights)
    executor = begun(handle, table)
    assert failed.wait(60)
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)
    late.set()
    ended, error = table.ended.get(timeout=60)
    assert (ended, type(error)) == (flights[0], ValueError)
    wait_until(lambda: executor._interruptions == {}, "the end of the call")
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

    flights = flights_of(120)
    table: Any = Table(flights)
    executor = begun(handle, table)
    ended = [table.ended.get(timeout=60) for _ in flights]
    assert [error for _, error in ended if error is not None] == []
    executor.close()


def test_a_watchdog_that_cancels_the_task_of_a_record_that_is_done_leaves_none_in_hand() -> None:
    async def handle(record: Record) -> None:
        if record.offset == 48:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)

    flights = flights_of(120)
    table: Any = Table(flights)
    executor = begun(handle, table)
    assert [table.ended.get(timeout=60) for _ in flights] == [(flight, None) for flight in flights]
    executor.close()


class Counting(Table):
    """Notes what is in hand when the handler is called."""

    def __init__(self, flights: Sequence[Played], at_once: int) -> None:
        super().__init__(flights, at_once)
        self.started: list[int] = []

    def start_next(self, slots: Slots | None) -> Any:
        if (flight := super().start_next(slots)) is not None:
            self.started.append(flight.messages[0].offset())
        return flight


def test_no_record_waits_in_hand_for_the_loop_while_other_records_compute() -> None:
    """It would be called behind the drain deadline of its partition, and charged with the time of the others."""
    called, uncalled = list[int](), list[list[int]]()

    async def handle(record: Record) -> None:
        called.append(record.offset)
        uncalled.append([offset for offset in table.started if offset not in called])
        if record.offset % 3:
            await asyncio.sleep(0)
            uncalled.append([offset for offset in table.started if offset not in called])

    flights = flights_of(120)
    table: Any = Counting(flights, at_once=10)
    executor = begun(handle, table, 10)
    assert {table.ended.get(timeout=60)[1] for _ in flights} == {None}
    assert [some for some in uncalled if some] == []
    executor.close()


class Deadline(Table):
    """Whose partition has to be given up between a record's start and its call."""

    executor: Any

    def start_next(self, slots: Slots | None) -> Any:
        if (flight := super().start_next(slots)) is not None:
            flight.tracker.overdue = True
            self.executor.interrupt(flight, DrainDeadline(), 0)
        return flight


@pytest.mark.parametrize("kind", ["tasks", "threads"])
def test_a_record_whose_partition_is_given_up_between_its_start_and_its_call_does_not_come_to_the_handler(
    kind: str,
) -> None:
    called = list[int]()

    async def handle(record: Record) -> None:
        called.append(record.offset)

    def handle_in_thread(record: Record) -> None:
        called.append(record.offset)

    def done(flight: object, returned: object) -> None:
        """Nothing is returned."""

    flights = flights_of(3)
    table: Any = Deadline(flights)
    form = Plain()
    executor = tasks.AsyncioExecutor(handle, form, done)
    if kind == "threads":
        executor.close()
        executor = ThreadExecutor(handle_in_thread, form, 1, done)  # type: ignore[assignment]
    table.executor = executor
    executor.begin(table, Slots("none", 1), table)
    executor.wake()
    assert [type(table.ended.get(timeout=60)[1]) for _ in flights] == [DrainDeadline] * 3
    assert called == []
    executor.close()


def test_a_handler_that_cancels_all_other_tasks_leaves_no_record_in_hand() -> None:
    tries = list[int]()

    async def handle(record: Record) -> None:
        tries.append(record.offset)
        if record.offset % 7 == 0:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        await asyncio.sleep(0)

    flights = flights_of(60)
    table: Any = Table(flights, at_once=10)
    executor = begun(handle, table, 10)
    ended = [table.ended.get(timeout=60) for _ in flights]
    assert {type(error) for _, error in ended} == {type(None), asyncio.CancelledError}
    assert sorted(tries) == list(range(60))
    executor.close()


def test_the_tasks_of_a_factory_that_the_handler_has_set_are_its_own() -> None:
    """Those of Python 3.12 that begin at once would begin each other, as deep as there are free slots."""

    def refuse(loop: object, coroutine: Any, **options: object) -> Any:
        coroutine.close()
        raise RuntimeError("no task of the handler's")

    factory: Any = refuse

    async def handle(record: Record) -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        await asyncio.sleep(0)

    flights = flights_of(9)
    table: Any = Table(flights, at_once=3)
    executor = begun(handle, table, 3)
    assert {table.ended.get(timeout=60)[1] for _ in flights} == {None}
    executor._loop.call_soon_threadsafe(executor._loop.set_task_factory, None)
    executor.close()


def test_the_loops_thread_ends_as_the_executor_is_closed() -> None:
    """A job's task that closes its handlers leaves its process to the next one."""
    kept: list[object] = []

    async def leave() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            sys.exit()

    async def handle(record: Record) -> None:
        task = asyncio.create_task(leave())
        task.add_done_callback(lambda done: done.exception())
        kept.append(task)
        await asyncio.sleep(0)

    flights = flights_of(1)
    table: Any = Table(flights)
    executor = begun(handle, table)
    assert table.ended.get(timeout=60) == (flights[0], None)
    executor.close()
    executor._thread.join(60)
    assert (executor._thread.is_alive(), executor._loop.is_closed()) == (False, True)


def test_an_asynchronous_generator_that_a_handler_keeps_is_closed_with_the_executor() -> None:
    trace = list[str]()

    async def reads() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            trace.append("closed")

    source = reads()

    async def handle(record: Record) -> None:
        await anext(source)

    flights = flights_of(2)
    table: Any = Table(flights)
    executor = begun(handle, table)
    assert [table.ended.get(timeout=60) for _ in flights] == [(flight, None) for flight in flights]
    assert trace == []
    executor.close()
    assert trace == ["closed"]
