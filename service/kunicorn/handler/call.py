"""Calling the handler: one record or one batch at a time, `def` or `async def`. Hot path of a worker.

`calls_of` chooses the class by the handler's kind and mode. Each call handles the messages in order, stores the next
offset into the ledger's cell after each record, and returns early when `interrupts` is not empty. What the handler
raises propagates, and so does an outcome that it returns (`kunicorn.handler.outcome`); the cell then tells which record
it was. A record that cannot be decoded raises `Undecodable` when its turn comes, and a batch of which one record alone
has failed raises `OfSome`.

Caller: a worker's main thread, its handler threads, or a Spark task's main thread. Blocks for as long as the handler.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

import uvloop
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.cancellation import settled, step_aside, wind_up
from kunicorn.handler.config import Decoding, HandlerConfig, Tracing
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.decode.forms import Form, Gathered, form_of
from kunicorn.handler.extras import install_extra
from kunicorn.handler.load import DrainDeadline, Handler, HandlerTimeout, error_message
from kunicorn.handler.middleware import Within
from kunicorn.handler.outcome import BatchError, Done, raise_outcome
from kunicorn.handler.retry import timed_out


class Decided(NamedTuple):
    """How so many records of a batch end that follow one another, but for those between them that are done."""

    error: BaseException
    records: int


class OfSome(Exception):
    """Failure of records of a batch: of the first ones behind those that are stored as done. Converted before users
    see it.
    """

    def __init__(
        self, error: BaseException, ahead: Collection[int] = (), count: int = 1, decided: Sequence[Decided] = ()
    ) -> None:
        super().__init__(error_message(error))
        self.error = self.__cause__ = error
        self.ahead = ahead
        """Offsets behind the first failed record that are done."""
        self.count = count
        """Number of the failed records, those between them that are done not counted."""
        self.decided = decided
        """How the records behind these end, without another call."""
        self.undone = count
        """Number of records that the call had and has not done: an interruption fails all of them."""
        self.interrupted = False
        """The interruption of this call was met: it was another record's."""

    @property
    def groups(self) -> Sequence[Decided]:
        """How all these records end."""
        return [Decided(self.error, self.count), *self.decided]


class OfFirst(OfSome):
    """Failure of a call as a whole that had the first records of a batch alone, as the next one cannot be decoded or is
    of a call of its own. It says nothing of those behind, which the handler has not seen.
    """


class OfUncalled(OfSome):
    """Failure of the record behind those that the call had, and has done: the handler was not called with it."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Progress of a batch whose handler raised `BatchError`."""

    done: int
    """Number of leading records that are done."""
    ahead: frozenset[int] = frozenset()
    """Offsets that are done beyond the first one that is not."""
    decided: tuple[Decided, ...] = ()
    """How all that are not done end, in their order; empty: nobody has decided."""


def progress_of(error: BatchError, following: Sequence[int]) -> BatchProgress:
    """Progress that a `BatchError` tells. `following`: for each record of the batch, the offset behind it. Raises
    `ValueError` where it names records that are not in the batch.
    """
    if error.outcomes is not None:
        return _decided(error.outcomes, following)
    if error.mask is not None:
        return _masked(error.mask, following, "BatchError(mask=...)")
    if error.failed is None and isinstance(error.done, int):
        if not 0 <= error.done <= len(following):
            raise ValueError(f"BatchError(done={error.done}) of a batch of {len(following)} records")
        return BatchProgress(error.done)
    offsets = [after - 1 for after in following]
    if error.failed is not None:
        return _before(error.failed, offsets)
    assert isinstance(error.done, frozenset)
    if strange := error.done.difference(offsets):
        raise ValueError(_foreign(min(strange), offsets))
    first = next((at for at, offset in enumerate(offsets) if offset not in error.done), len(offsets))
    return BatchProgress(first, error.done.difference(offsets[:first]))


def _decided(outcomes: Sequence[tuple[BaseException, Sequence[bool]]], following: Sequence[int]) -> BatchProgress:
    ends: list[BaseException | None] = [None] * len(following)
    for outcome, mask in outcomes:
        _check_length(mask, following, "a mask of BatchError(outcomes=...)")
        for at, applies in enumerate(mask):
            if applies and ends[at] is None:
                ends[at] = outcome
    progress = _masked([end is None or isinstance(end, Done) for end in ends], following, "")
    undone = (end for end in ends if end is not None and not isinstance(end, Done))
    alike = ((outcome, sum(1 for _ in each)) for outcome, each in groupby(undone))
    return replace(progress, decided=tuple(Decided(*each) for each in alike))


def _check_length(mask: Sequence[bool], following: Sequence[int], named: str) -> None:
    if len(mask) != len(following):
        raise ValueError(f"{named} of {len(mask)} records, but the batch has {len(following)}")


def _masked(mask: Sequence[bool], following: Sequence[int], named: str) -> BatchProgress:
    _check_length(mask, following, named)
    first = mask.index(False) if False in mask else len(mask)
    behind = zip(following[first:], mask[first:], strict=True)
    return BatchProgress(first, frozenset(after - 1 for after, done in behind if done))


def _before(failed: int, offsets: Sequence[int]) -> BatchProgress:
    if failed not in offsets:
        raise ValueError(_foreign(failed, offsets))
    return BatchProgress(offsets.index(failed))


def _foreign(offset: int, offsets: Sequence[int]) -> str:
    return f"BatchError names offset {offset}, which is not in the batch {offsets[0]}-{offsets[-1]}"


def store_done(
    error: BatchError, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int
) -> None:
    """Store the progress that a `BatchError` tells, and raise the rest as `OfSome`; returns if every record is done.

    The exception that `BatchError` was raised from counts as the record's failure, so that rules by exception and
    outcomes apply to it.
    """
    progress = progress_of(error, following[: len(messages)])
    if progress.done:
        cells[at] = following[progress.done - 1]
    if progress.done == len(messages):
        return
    undone = len(messages) - progress.done - len(progress.ahead)
    met = raised_from(error)
    if progress.decided:
        (first, count), *behind = progress.decided
        some = OfSome(first, progress.ahead, count, behind)
    elif isinstance(met, DrainDeadline):
        raise met  # No record's failure: what is not done is handed back.
    else:
        # A time-out is not one record's failure: the call was ended from outside.
        some = OfSome(met or error, progress.ahead, undone if isinstance(met, HandlerTimeout) else 1)
    some.undone = undone
    raise some


def gathered_by(form: Form, messages: Sequence[Message]) -> Gathered:
    """The argument of a batch's call. What decoding has ended by, or a filter, is of the first record alone, but where
    all wait (`NotDecodableYet`).
    """
    try:
        return form.batch(messages)
    except (NotDecodableYet, DrainDeadline, GeneratorExit):
        raise
    except BaseException as error:
        return Gathered(None, 0, error)


def store_failed(
    error: BaseException,
    messages: Sequence[Message],
    gathered: Gathered,
    following: Sequence[int],
    cells: memoryview,
    at: int,
) -> None:
    """Meet what a call with leading messages of a batch, those that were gathered, has raised: store what is done, and
    raise the failure of the others; returns if every one of these is done.
    """
    try:
        if not isinstance(error, BatchError):
            raise error
        store_done(error, messages[: gathered.records], following, cells, at)
    except OfSome as some:
        some.interrupted = isinstance(gathered.undecodable, HandlerTimeout)
        raise
    except (DrainDeadline, GeneratorExit):
        raise
    except BaseException as failure:
        if gathered.records == len(messages):
            raise
        first = OfFirst(failure, count=gathered.records)
        first.interrupted = isinstance(gathered.undecodable, HandlerTimeout)
        raise first from failure


def raised_from(error: BatchError) -> BaseException | None:
    """What the error was raised from, or while it was handled; None: nothing, or `from None`."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class Interruption(NamedTuple):
    """Exception raised inside a call from outside (drain deadline or time-out), and the call's progress at that
    moment.
    """

    error: BaseException
    progress: int
    """Offset that the call had stored in the ledger's cell."""


def met(error: BaseException, interruption: Interruption | None, progress: int) -> BaseException:
    """The failure to judge a record by, after a call that raised `error` at `progress`; a time-out becomes a
    `TimeoutError`.

    An interruption counts only for the record that it was raised in: if the call has gone on since, a later record's
    failure is its own. In a batch `progress` has moved by the records that are done; all others of the call have failed
    by it.
    """
    if isinstance(error, OfSome):
        return _met_in_batch(error, interruption)
    if interruption is not None and interruption.progress == progress:
        error = interrupted(error, interruption.error)
    return timed_out(error) if isinstance(error, HandlerTimeout) else error


def _met_in_batch(some: OfSome, interruption: Interruption | None) -> BaseException:
    error = some.error
    if interruption is not None and not some.interrupted:
        error = interrupted(error, interruption.error)
    if isinstance(error, HandlerTimeout):
        return type(some)(timed_out(error), some.ahead, some.undone)
    return error if isinstance(error, DrainDeadline) else some


def interrupted(error: BaseException, interruption: BaseException | None) -> BaseException:
    """The interruption, if there was one, in place of what it was turned into on its way out of the handler.

    A TaskGroup wraps it in a group; a `finally` block or a decorator replaces it with another error. None of that is a
    failure of the record.
    """
    if interruption is None or isinstance(error, type(interruption)):
        return error
    return interruption.with_traceback(error.__traceback__)


log = logging.getLogger("kunicorn.handling")


class ReturnCheck:
    """Check of one handler's return values: an outcome is raised (`outcome.raise_outcome`); any other value means
    success and is warned of once a process, as its author may have expected an effect. Caller: whichever thread called
    the handler.
    """

    def __init__(self, entrypoint: str) -> None:
        self._unwarned = [entrypoint]

    def __call__(self, returned: object, *record: object) -> None:
        """Check one returned value. `record` makes no difference."""
        if raise_outcome(returned) and self._unwarned:
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


OnReturn = Callable[[object, Any, int, int], None]
"""What is done with what a handler returned, other than None, for the records that a call was given `origin` for, from
an offset up to the one to go on from behind them. Raises the outcome that it may be."""

AS_BYTES = Decoding()


T = TypeVar("T")


class Hooked(Protocol):
    """Way to call a handler's hooks (`setup`, `on_assigned`, …). Caller: the worker's main thread."""

    def run(self, returned: Any) -> Any:
        """Result of a hook: `returned` itself, or if it is awaitable its result, awaited on the worker's loop."""

    def close(self) -> None:
        """Close the event loop. Caller: after the last call."""


class Calls(Hooked, Protocol):
    """Way to call a handler with records, one after the other; the classes below. Caller: the worker's main thread."""

    def __call__(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any = None,
    ) -> None:
        """Handle the messages; `following[i]` goes into `cells[at]` once `messages[i]` is handled.

        `origin`: under which their outputs are sent.
        """

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` inside the running call. Caller: a signal handler."""

    def calling(self) -> bool:
        """Whether the current task is the handler's call, and not a background task beside it. Caller: the main
        thread.
        """


def calls_for(handler: Handler, config: HandlerConfig) -> Calls:
    """The `Calls` for a handler that has one record, or one batch, in hand at a time. Raises like `calls_of`."""
    return calls_of(handler, config.mode, config.decoding, config.tracing)


def calls_of(handler: Handler, mode: str, decoding: Decoding = AS_BYTES, tracing: Tracing | None = None) -> Calls:
    """The `Calls` for this handler; `mode` is "record", "batch" or "arrow".

    Raises `HandlerLoadError` if a decoder that the settings or the handler's parameter name cannot be had, or a library
    is missing.
    """
    form = arguments_of(handler, mode, decoding, tracing)
    return calls_with(replace(handler, call=form.adapted(handler.call)), form, mode)


def calls_with(handler: Handler, form: Form, mode: str, on_return: OnReturn | None = None) -> Calls:
    """The `Calls` for a handler whose arguments `form` makes. `take`: what is done with what it returns, if it is not
    just heeded.
    """
    on_return = on_return or ReturnCheck(handler.entrypoint)
    if handler.is_async:
        return AsyncCalls(handler.call, form, on_return, one_by_one=mode == "record")
    return RecordCalls(handler.call, form, on_return) if mode == "record" else BatchCalls(handler.call, form, on_return)


def arguments_of(handler: Handler, mode: str, decoding: Decoding = AS_BYTES, tracing: Tracing | None = None) -> Form:
    """The form that makes the handler's arguments, with its middlewares around each call, a span around these if
    tracing is on, and its filters before all of it. Raises like `calls_of`.
    """
    form = form_of(handler.call, mode, decoding)
    if handler.middlewares:
        form = Within(form, handler)
    if tracing is not None:
        form = _traced(form, handler, tracing)
    if handler.filters is None:
        return form
    from kunicorn.handler.filter import Filtered  # It stands on this module, and most handlers have none.

    return Filtered(form, handler.filters, handler.is_async)


def _traced(form: Form, handler: Handler, tracing: Tracing) -> Form:
    try:
        from kunicorn.handler.tracing import Traced
    except ModuleNotFoundError as error:
        raise HandlerLoadError(
            f"tracing.enabled = true needs OpenTelemetry's API ({error}): {install_extra('tracing')}"
        ) from error
    return Traced(form, handler.is_async, tracing)


class OwnLoop:
    """Event loop of one handler: made when first needed, closed with the worker."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interruption: BaseException | None = None
        self._beginning = False
        """A task is being made: an interruption is noted, and cancels it before its first step."""

    def run(self, returned: Any) -> Any:
        return self._complete(awaited(returned)) if inspect.isawaitable(returned) else returned

    def interrupt(self, error: BaseException) -> None:
        """Raise `error` inside the running call. Python code is interrupted where it is, a system call returns (PEP
        475). A task that waits on the loop is cancelled: uvloop swallows what a signal handler raises while the loop
        waits.
        """
        task, loop = self._task, self._loop
        if self._beginning:
            self._interruption = error
            return
        if task is None or loop is None:
            raise error
        self._interruption = error
        if asyncio.current_task(loop) is task:
            raise error
        loop.call_soon_threadsafe(self._cancel, error)

    def calling(self) -> bool:
        try:
            return asyncio.current_task() is self._task
        except RuntimeError:
            return True  # No loop turns: a plain function.

    def _cancel(self, error: BaseException) -> None:
        """Caller: the loop. Does nothing if the interrupted record has been handled since."""
        if self._interruption is error and self._task is not None:
            self._task.cancel("the handler is interrupted by kunicorn")

    def close(self) -> None:
        """Let the handler's remaining tasks and generators end, and close the loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._turn_until(loop.create_task(wind_up()), loop)
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
        task = self._begun(loop, coroutine)
        try:
            self._turn_until(task, loop)
            return task.result()
        except asyncio.CancelledError:
            if self._interruption is not None:
                raise self._interruption from None
            raise
        finally:
            self._task = self._interruption = None
            del task  # It has what is raised, which has this frame by its traceback.

    def _turn_until(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop turn until the task is done. SystemExit and KeyboardInterrupt stop it, whichever task raises
        them, and so does a handler by `loop.stop()`. A task that was left then would go on beside the next call: its
        failures would be that one's, and it would store offsets into a cell that may be another partition's by now.
        """
        task.add_done_callback(_stop)
        while not task.done():
            try:
                loop.run_forever()
            except SystemExit:
                continue
            except KeyboardInterrupt as error:
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    # Ctrl-C, at `kunicorn check --try` or in a test. In a worker SIGINT raises nothing.
                    self._interruption = error
                    task.cancel()

    def _begun(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The task in which it runs. An interruption that was raised in here would leave the task to the loop, which
        would handle its records beside those of the next call.
        """
        self._beginning = True
        try:
            self._task = task = loop.create_task(settled(coroutine))
        finally:
            self._beginning = False
        if self._interruption is not None:
            task.cancel()
            coroutine.close()
        return task


def _stop(task: asyncio.Future[Any]) -> None:
    task.get_loop().stop()


async def awaited(awaitable: Awaitable[T]) -> T:
    """Any awaitable as a coroutine, which loops insist on."""
    return await awaitable


class PlainCalls(OwnLoop):
    """Base of calls of plain functions; the loop serves hooks that are `async def`."""

    def __init__(self, handle: Callable[[Any], Any], form: Form, on_return: OnReturn) -> None:
        super().__init__()
        self._handle = handle
        self._form = form
        self._on_return = on_return


class RecordCalls(PlainCalls):
    """`handle(record)` for each record. The hottest lines of the project: but for the handler, everything in the loop
    is C.
    """

    def __call__(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any = None,
    ) -> None:
        handle, on_return = self._handle, self._on_return
        try:
            for record, after in zip(self._form.each(messages), following, strict=True):
                if interrupts:
                    return
                if (returned := handle(record)) is not None:
                    on_return(returned, origin, after - 1, after)
                cells[at] = after
        except NotDecodableYet:
            raise  # Whoever is away is asked once.
        except Exception:
            self._form.blame(messages[bisect_right(following, cells[at])])
            raise


class BatchCalls(PlainCalls):
    """`handle(records)` once for all of them."""

    def __call__(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any = None,
    ) -> None:
        if interrupts:
            return
        gathered = gathered_by(self._form, messages)
        if count := gathered.records:
            try:
                if (returned := self._handle(gathered.argument)) is not None:
                    self._on_return(returned, origin, following[0] - 1, following[count - 1])
            except BaseException as error:
                store_failed(error, messages, gathered, following, cells, at)
            cells[at] = following[count - 1]
        if gathered.undecodable is not None:
            raise OfUncalled(gathered.undecodable)


class AsyncCalls(OwnLoop):
    """`await handle(record)` or `await handle(records)`.

    The loop runs only during calls: between them the handler's background tasks stand still.
    """

    def __init__(self, handle: Callable[[Any], Any], form: Form, on_return: OnReturn, *, one_by_one: bool) -> None:
        super().__init__()
        self._handle = handle
        self._form = form
        self._on_return = on_return
        self._chunk = self._records if one_by_one else self._batch
        self._made_loop()

    def __call__(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any = None,
    ) -> None:
        self._complete(self._chunk(messages, following, cells, at, interrupts, origin))

    async def _records(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any,
    ) -> None:
        handle, on_return = self._handle, self._on_return
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling
        try:
            for record, after in zip(self._form.each(messages), following, strict=True):
                if interrupts:
                    return
                if (returned := await handle(record)) is not None:
                    on_return(returned, origin, after - 1, after)
                cells[at] = after
                if self._interruption is not None or cancelling():
                    self._interruption = None
                    await step_aside(task)
        except NotDecodableYet:
            raise  # Whoever is away is asked once.
        except Exception:
            self._form.blame(messages[bisect_right(following, cells[at])])
            raise
        finally:
            del task, cancelling  # It has what is raised, which has this coroutine: see `clear_frames`.

    async def _batch(
        self,
        messages: Sequence[Message],
        following: Sequence[int],
        cells: memoryview,
        at: int,
        interrupts: list[None],
        origin: Any,
    ) -> None:
        if interrupts:
            return
        gathered = gathered_by(self._form, messages)
        try:
            if count := gathered.records:
                try:
                    if (returned := await self._handle(gathered.argument)) is not None:
                        self._on_return(returned, origin, following[0] - 1, following[count - 1])
                except BaseException as error:
                    store_failed(error, messages, gathered, following, cells, at)
                cells[at] = following[count - 1]
            if gathered.undecodable is not None:
                raise OfUncalled(gathered.undecodable)
        finally:
            del gathered  # As in `_records`.
