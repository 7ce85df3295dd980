"""Calling the handler: one record or one batch at a time, plain or async.

Each form finishes as many of the records as it can, storing the next offset to handle in the ledger after each, and
returns early when `interrupts` is not empty. What the handler raises propagates, and so does an outcome that it returns
(`kunicorn.handler.outcome`); the ledger then says how far it came. A record that cannot be decoded raises `Undecodable`
in its turn. Of a batch, `OfOne` is raised where one record alone has failed.

Batches of which one record failed: what counts as done, and what the failure is. Pure but for the ledger's cell.

What a call of the handler has failed with that was interrupted from outside. Pure.

What is done with what a handler returns.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeVar

import uvloop
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding, HandlerOrder, Tracing
from kunicorn.handler.decode.forms import Form, form_of
from kunicorn.handler.load import DrainDeadline, Handler, HandlerTimeout, error_message
from kunicorn.handler.outcome import BatchError, heed
from kunicorn.handler.record import gapless_offsets
from kunicorn.handler.retry import timed_out


class OfOne(Exception):
    """The record behind those that are finished has failed, and it alone. Never leaves the machinery."""

    def __init__(self, error: BaseException, ahead: Collection[int] = ()) -> None:
        super().__init__(error_message(error))
        self.error = error
        self.ahead = ahead
        """Offsets behind it that are done."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a batch came."""

    done: int
    """So many of the first records."""
    ahead: frozenset[int] = frozenset()
    """Offsets that are done beyond the first one that is not."""


def standing_of(error: BatchError, offsets: Sequence[int]) -> Standing:
    """What the handler said. Raises `ValueError` where it makes no sense, as then nothing of it is to be believed."""
    if error.failed is not None:
        return _before(error.failed, offsets)
    if isinstance(error.done, int):
        if not 0 <= error.done <= len(offsets):
            raise ValueError(f"BatchError(done={error.done}) of a batch of {len(offsets)} records")
        return Standing(error.done)
    if strange := error.done.difference(offsets):
        raise ValueError(_foreign(min(strange), offsets))
    first = next((at for at, offset in enumerate(offsets) if offset not in error.done), len(offsets))
    return Standing(first, error.done.difference(offsets[:first]))


def _before(failed: int, offsets: Sequence[int]) -> Standing:
    if failed not in offsets:
        raise ValueError(_foreign(failed, offsets))
    return Standing(offsets.index(failed))


def _foreign(offset: int, offsets: Sequence[int]) -> str:
    return f"BatchError names offset {offset}, which is not in the batch {offsets[0]}-{offsets[-1]}"


def settle(
    error: BatchError, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int
) -> None:
    """Store what is done, and raise what is left of the failure; returns where nothing is.

    What the handler met counts as the record's failure where it raised `BatchError` because of that, so that rules by
    exception and outcomes hold for it.
    """
    standing = standing_of(error, [after - 1 for after in following[: len(messages)]])
    if standing.done:
        cells[at] = following[standing.done - 1]
    if standing.done == len(messages):
        return
    met = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if isinstance(met, DrainDeadline | HandlerTimeout):
        raise met  # Not one record's failure: the call was ended from outside.
    raise OfOne(met or error, standing.ahead)


def fitting(messages: Sequence[Message], most_bytes: int | None) -> int:
    """How many of the first ones have at most so many bytes of values together; at least one."""
    if most_bytes is None:
        return len(messages)
    return max(1, bisect_left(list(accumulate(map(len, messages))), most_bytes + 1))


class Interruption(NamedTuple):
    """What was raised in a call from outside, and how far that call had come by then."""

    error: BaseException
    progress: int
    """As the call stores it: an offset."""


def met(error: BaseException, interruption: Interruption | None, progress: int) -> BaseException:
    """What a call has failed with that raised `error` at `progress`: a time-out is a `TimeoutError`.

    An interruption that its record has survived says nothing of those behind it. In a batch, what is done has moved the
    progress, too.
    """
    if interruption is not None and (isinstance(error, OfOne) or interruption.progress == progress):
        error = interrupted(error, interruption.error)
    return timed_out(error) if isinstance(error, HandlerTimeout) else error


def interrupted(error: BaseException, interruption: BaseException | None) -> BaseException:
    """What a call has failed with that raised `error`, and was interrupted before where `interruption` says so.

    A TaskGroup wraps an interruption in a group, a `finally` block or a decorator replaces it by another error: none of
    that is the record's fault.
    """
    if interruption is None or isinstance(error, type(interruption)):
        return error
    return interruption.with_traceback(error.__traceback__)


log = logging.getLogger("kunicorn.handling")


class Heed:
    """What one handler of this process returns: an outcome is raised (see `outcomes.heed`), and a mere value, which
    says nothing, is warned of once. Caller: whichever thread called the handler."""

    def __init__(self, entrypoint: str) -> None:
        self._unwarned = [entrypoint]

    def __call__(self, returned: object) -> None:
        if heed(returned) and self._unwarned:
            self._warn(type(returned).__qualname__)

    def _warn(self, kind: str) -> None:
        try:
            entrypoint = self._unwarned.pop()
        except IndexError:
            return  # Another thread has.
        log.warning(
            f"{entrypoint} returned a value of type {kind}, which says nothing here: its record counts as handled, "
            f"as after None. Return nothing, or an outcome such as kunicorn.Skip, or raise what went wrong. "
            f"Each worker says this once."
        )


AS_BYTES = Decoding()


T = TypeVar("T")


class Hooked(Protocol):
    """How a handler is called, as far as its hooks are concerned. Caller: the runner, main thread."""

    def run(self, returned: Any) -> Any:
        """The result of what a hook returned: awaited on the worker's loop if it is to be awaited."""

    def close(self) -> None:
        """Nothing is called any more."""


class Calls(Hooked, Protocol):
    """One of the forms below. Caller: the runner, main thread."""

    def __call__(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        """Handle the messages; `following[i]` goes into `cells[at]` once `messages[i]` is handled."""

    def interrupt(self, error: BaseException) -> None:
        """From a signal handler, with a call running: raise `error` in the handler."""

    def calling(self) -> bool:
        """Whether who asks is the call's own code, and no task that goes on beside it. Caller: the main thread."""


def calls_for(handler: Handler, order: HandlerOrder) -> Calls:
    """The form for a handler that has one record, or one batch, in hand at a time. Raises like `calls_of`."""
    return calls_of(handler, order.mode, order.decoding, order.tracing)


def calls_of(handler: Handler, mode: str, decoding: Decoding = AS_BYTES, tracing: Tracing | None = None) -> Calls:
    """The form for this handler; `mode` is "record" or "batch". Raises `HandlerLoadError` for what cannot be decoded to
    what the handler wants, or by what the settings name, and for libraries that are missing."""
    form = arguments_of(handler, mode, decoding, tracing)
    return calls_with(replace(handler, call=form.adapted(handler.call)), form, mode)


def calls_with(handler: Handler, form: Form, mode: str) -> Calls:
    """Likewise for a handler that takes what the form makes."""
    heed = Heed(handler.entrypoint)
    if handler.is_async:
        return AsyncCalls(handler.call, form, heed, one_by_one=mode == "record")
    return RecordCalls(handler.call, form, heed) if mode == "record" else BatchCalls(handler.call, form, heed)


def arguments_of(handler: Handler, mode: str, decoding: Decoding = AS_BYTES, tracing: Tracing | None = None) -> Form:
    """What it is called with, and within which span. Raises like `calls_of`."""
    form = form_of(handler.call, mode, decoding)
    return form if tracing is None else _traced(form, handler, tracing)


def _traced(form: Form, handler: Handler, tracing: Tracing) -> Form:
    try:
        from kunicorn.handler.tracing import Traced
    except ModuleNotFoundError as error:
        raise HandlerLoadError(
            f"tracing.enabled = true needs OpenTelemetry's API ({error}): pip install 'kunicorn[tracing]'"
        ) from error
    return Traced(form, handler.is_async, tracing.group)


class OwnLoop:
    """One event loop that lives as long as the worker, made when it is first wanted."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interruption: BaseException | None = None

    def run(self, returned: Any) -> Any:
        """See `Calls`."""
        return self._complete(awaited(returned)) if inspect.isawaitable(returned) else returned

    def interrupt(self, error: BaseException) -> None:
        """See `Calls`. Code that computes is interrupted where it is, a system call gives way (PEP 475); what waits on
        the loop is cancelled, as uvloop swallows what a signal handler raises while the loop itself waits.
        """
        task, loop = self._task, self._loop
        self._interruption = error
        if task is None or loop is None or asyncio.current_task(loop) is task:
            raise error
        loop.call_soon_threadsafe(self._cancel, error)

    def calling(self) -> bool:
        """See `Calls`."""
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:
            return True  # No loop turns: a plain function.

    def _cancel(self, error: BaseException) -> None:
        """Caller: the loop. The record that was meant may be handled by now."""
        if self._interruption is error and self._task is not None:
            self._task.cancel("the handler is interrupted by kunicorn")

    def close(self) -> None:
        """See `Calls`. Let the handler's remaining tasks see their cancellation."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        loop.close()
        asyncio.set_event_loop(None)

    def _made_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._made_loop()
        self._interruption = None
        task: asyncio.Task[T] = loop.create_task(coroutine)
        self._task = task
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self._interruption is not None:
                raise self._interruption from None
            raise
        finally:
            self._task = None


def uncancel(task: asyncio.Task[Any] | None) -> None:
    """Between two records of a task: nothing is left of a cancellation that a handler kept to itself.

    A TaskGroup of the next record would take it for one of its own (`Task.cancelling`).
    """
    while task is not None and task.cancelling():
        task.uncancel()


async def awaited(awaitable: Awaitable[T]) -> T:
    """As a coroutine, which loops insist on."""
    return await awaitable


class PlainCalls(OwnLoop):
    """What plain functions have in common. Their loop is for hooks that are `async def`."""

    def __init__(self, handle: Callable[[Any], Any], form: Form, heed: Heed) -> None:
        super().__init__()
        self._handle = handle
        self._form = form
        self._heed = heed


class RecordCalls(PlainCalls):
    """`handle(record)` for each. The hottest lines of the project: everything in the loop but the handler is C."""

    def __call__(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        """See `Calls`."""
        handle, heed = self._handle, self._heed
        try:
            for record, after in zip(self._form.each(messages), following, strict=True):
                if interrupts:
                    return
                if (returned := handle(record)) is not None:
                    heed(returned)
                cells[at] = after
        except Exception:
            self._form.blame(messages[bisect_right(following, cells[at])])
            raise


class BatchCalls(PlainCalls):
    """`handle(records)` for all at once."""

    def __call__(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        """See `Calls`."""
        if interrupts:
            return
        gathered = self._form.batch(messages)
        if count := gathered.records:
            try:
                self._heed(self._handle(gathered.argument))
            except BatchError as error:
                settle(error, messages[:count], following, cells, at)
            cells[at] = following[count - 1]
        if gathered.undecodable is not None:
            raise OfOne(gathered.undecodable)


class AsyncCalls(OwnLoop):
    """`await handle(record)` or `await handle(records)`.

    The loop turns only while records are in hand: between two chunks the handler's background tasks stand still.
    """

    def __init__(self, handle: Callable[[Any], Any], form: Form, heed: Heed, *, one_by_one: bool) -> None:
        super().__init__()
        self._handle = handle
        self._form = form
        self._heed = heed
        self._chunk = self._records if one_by_one else self._batch
        self._made_loop()

    def __call__(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        """See `Calls`."""
        self._complete(self._chunk(messages, following, cells, at, interrupts))

    async def _records(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        handle, heed = self._handle, self._heed
        try:
            for record, after in zip(self._form.each(messages), following, strict=True):
                if interrupts:
                    return
                if (returned := await handle(record)) is not None:
                    heed(returned)
                cells[at] = after
                if self._interruption is not None:
                    self._interruption = None
                    uncancel(self._task)
        except Exception:
            self._form.blame(messages[bisect_right(following, cells[at])])
            raise

    async def _batch(
        self, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int, interrupts: list[None]
    ) -> None:
        if interrupts:
            return
        gathered = self._form.batch(messages)
        if count := gathered.records:
            try:
                self._heed(await self._handle(gathered.argument))
            except BatchError as error:
                settle(error, messages[:count], following, cells, at)
            cells[at] = following[count - 1]
        if gathered.undecodable is not None:
            raise OfOne(gathered.undecodable)


def following_offsets(messages: Sequence[Message]) -> Sequence[int]:
    """For each record the offset to go on from once it is handled.

    Mostly offsets are without gaps, and a range then costs nothing a record.
    """
    if (gapless := gapless_offsets(messages)) is not None:
        return range(gapless.start + 1, gapless.stop + 1)
    return [offset + 1 for offset in map(Message.offset, messages) if offset is not None]
