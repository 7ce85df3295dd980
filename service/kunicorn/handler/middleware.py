"""Middlewares: contexts of the user's around the handler's calls, the first of `handler.middlewares` outermost.

    def timed(call):                    # kunicorn.Call: where its records come from, and what came of them
        began = time.monotonic()
        yield                           # the handler is called here
        took.observe(time.monotonic() - began, outcome=type(call.outcome).__name__)

A middleware is a function of the call that yields once, that is a context manager (`contextlib.contextmanager`), or a
callable that returns one; of an `async def` handler it may be asynchronous. A class is made once in each worker; it may
have `setup(worker, options)` and `teardown()`, as handlers have. What a middleware raises before it yields, or puts in
place of what the handler raised, counts as raised by the handler: an outcome such as `kunicorn.Skip`, too. What it
catches and keeps to itself is raised nevertheless: else records would count as handled that are not.

Without middlewares nothing of this is on the way of a record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.cancellation import settled
from kunicorn.handler.decode.forms import Form, Gathered
from kunicorn.handler.lifecycle import Worker, setup_takes_worker
from kunicorn.handler.load import Handler, find_middleware, instance, middleware_named
from kunicorn.handler.messages import listed
from kunicorn.handler.outcome import Done, Outcome, refuse_what_would_be_lost, said_in
from kunicorn.handler.record import Record

Middleware = Callable[["Call"], Any]
"""Returns the context manager of one call."""


class Call:
    """One call of the handler, as middlewares see it: its records (of one partition, but for
    `batch_across_partitions`), and behind it what came of them. What was raised is forgotten with the last of them."""

    __module__ = "kunicorn"
    __slots__ = ("_messages", "error", "handler", "outcome")

    def __init__(self, handler: str, messages: Sequence[Message]) -> None:
        self._messages = messages
        self.handler = handler
        """Its entry point."""
        self.outcome: Outcome | None = None
        """What the handler said, returned or raised; `Done` if it said nothing. None: it is under way, or `error`."""
        self.error: BaseException | None = None
        """What else it raised, or returned, which counts as raised."""

    @property
    def topic(self) -> str:
        """Of its first record, as `partition` and `offset`."""
        return self._messages[0].topic() or ""

    @property
    def partition(self) -> int:
        return self._messages[0].partition() or 0

    @property
    def offset(self) -> int:
        return self._messages[0].offset() or 0

    @property
    def records(self) -> Sequence[Record]:
        """The records, undecoded; in record mode one. Made anew each time."""
        return [Record.of(message) for message in self._messages]

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Call of {self.handler} with {self.topic}-{self.partition}@{self.offset}, {len(self)} records>"


# -- loading -----------------------------------------------------------------------------------------------------------


def load(entrypoint: str, handler: Handler) -> Hooked:
    """The middleware, of a class an instance. Raises like `find_middleware`, and for one that the handler cannot be
    within."""
    named, target = middleware_named(entrypoint), find_middleware(entrypoint)
    made = instance(named, target) if inspect.isclass(target) else target
    called = made if inspect.isroutine(made) or isinstance(made, partial) else made.__call__
    if not handler.is_async and inspect.isasyncgenfunction(inspect.unwrap(called)):
        raise HandlerLoadError(
            f"{named} is asynchronous, and {handler.entrypoint} is a plain function: make it def, or the "
            f"handler async def"
        )
    enter: Middleware
    if inspect.isasyncgenfunction(called):
        enter = asynccontextmanager(called)
    elif inspect.isgeneratorfunction(called):
        enter = contextmanager(called)
    else:
        enter = _checked(named, called, handler)
    return Hooked(enter, getattr(made, "setup", None), getattr(made, "teardown", None))


def _checked(named: str, called: Middleware, handler: Handler) -> Middleware:
    """The callable, whose result is looked at: a function that forgot to yield returns None."""
    ways = ("__enter__", "__aenter__") if handler.is_async else ("__enter__",)

    def enter(call: Call) -> Any:
        context = called(call)
        if not any(hasattr(context, way) for way in ways):
            raise TypeError(
                f"{named} returned {type(context).__name__}, which is no context manager that {handler.entrypoint} can "
                f"be called within: let the function yield once, or return one"
            )
        return context

    return enter


@dataclass(frozen=True, slots=True)
class Hooked:
    """A middleware, with the hooks of the object that it comes from."""

    enter: Middleware
    setup: Callable[..., Any] | None
    teardown: Callable[[], Any] | None


def loaded(handler: Handler, entrypoints: Sequence[str]) -> Handler:
    """The handler within its middlewares. Caller: a process that handles, once. Raises `HandlerLoadError`."""
    if not entrypoints:
        return handler
    return replace(handler, middlewares=[load(each, handler) for each in entrypoints])


def set_up(handler: Handler, run: Callable[[Any], Any], worker: Worker, options: Mapping[str, Any]) -> None:
    """Call the middlewares' `setup`, the outermost first. `run` awaits what is to be awaited."""
    for each in handler.middlewares:
        if each.setup is not None:
            arguments = (worker, dict(options)) if setup_takes_worker(each.setup) else (dict(options),)
            run(each.setup(*arguments))


def tear_down(handler: Handler, run: Callable[[Any], Any]) -> None:
    """Call their `teardown`, the innermost first; all of them, then raise what the first that failed raised."""
    failures: list[BaseException] = []
    for each in reversed(handler.middlewares):
        if each.teardown is not None:
            try:
                run(each.teardown())
            except BaseException as error:
                failures.append(error)
    if failures:
        raise failures[0]


# -- calling -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Within:
    """Form (`handler.decode.forms`) whose handler is called within its middlewares; the arguments are those of
    `inner`."""

    inner: Form
    handler: Handler

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        call = self.inner.adapted(handle)
        return self._awaited(call) if self.handler.is_async else self._plain(call)

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        return zip(self.inner.each(messages), messages, strict=True)

    def batch(self, messages: Sequence[Message]) -> Gathered:
        gathered = self.inner.batch(messages)
        return Gathered((gathered.argument, messages[: gathered.records]), gathered.records, gathered.undecodable)

    def blame(self, message: Message) -> None:
        self.inner.blame(message)

    def _plain(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        entrypoint = self.handler.entrypoint

        def told(argument: Any, of: Call) -> Any:
            try:
                returned = call(argument)
                said = _said(returned)
            except BaseException as error:
                _tell(of, error)
                raise
            _tell(of, said)
            return returned

        within: _Within = told
        for middleware in reversed(self.handler.middlewares):
            within = _around(within, middleware.enter)

        def called(pair: tuple[Any, Message | Sequence[Message]]) -> Any:
            call = Call(entrypoint, listed(pair[1]))
            try:
                return within(pair[0], call)
            except BaseException:
                _forget(call)
                raise

        return called

    def _awaited(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        entrypoint = self.handler.entrypoint

        async def told(argument: Any, of: Call) -> Any:
            try:
                returned = await settled(call(argument))  # Not for a middleware that waits.
                said = _said(returned)
            except BaseException as error:
                _tell(of, error)
                raise
            _tell(of, said)
            return returned

        within: _Within = told
        for middleware in reversed(self.handler.middlewares):
            within = _around_async(within, middleware.enter)

        async def awaited(pair: tuple[Any, Message | Sequence[Message]]) -> Any:
            call = Call(entrypoint, listed(pair[1]))
            try:
                return await within(pair[0], call)
            except BaseException:
                _forget(call)
                raise

        return awaited


_Within = Callable[[Any, Call], Any]
"""The handler, or the next middleware with all that is within it."""


def _around(inner: _Within, middleware: Middleware) -> _Within:
    def around(argument: Any, call: Call) -> Any:
        kept: list[BaseException] = []
        with middleware(call):
            try:
                return inner(argument, call)
            except BaseException as error:
                kept.append(error)
                raise
        raise kept[0]

    return around


def _around_async(inner: _Within, middleware: Middleware) -> _Within:
    async def around(argument: Any, call: Call) -> Any:
        kept: list[BaseException] = []
        try:
            async with _as_async(middleware(call)):
                try:
                    return await inner(argument, call)
                except BaseException as error:
                    kept.append(error)
                    raise
            raise kept[0]
        except BaseException:
            kept.clear()  # What was raised has this coroutine by its traceback: see `clear_frames`.
            raise

    return around


def _as_async(context: Any) -> AbstractAsyncContextManager[Any]:
    return context if hasattr(context, "__aenter__") else _Awaited(context)


@dataclass(frozen=True, slots=True)
class _Awaited(AbstractAsyncContextManager[Any]):
    """A plain context, entered and left without waiting."""

    context: AbstractContextManager[Any]

    async def __aenter__(self) -> Any:
        return self.context.__enter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return self.context.__exit__(*error)


def _tell(call: Call, error: BaseException) -> None:
    if isinstance(error, Outcome):
        call.outcome = error
    else:
        call.error = error


def _forget(call: Call) -> None:
    """Let go of what came of it: what was raised has the middlewares by its traceback, and these have the call."""
    call.outcome = call.error = None


_DONE = Done()


def _said(returned: object) -> BaseException:
    """What a return value says. An exception that is returned counts as raised. Raises for what would be lost."""
    if (said := said_in(returned)) is None:
        return _DONE
    if isinstance(said, Exception):
        return said
    refuse_what_would_be_lost(said)
    return _DONE
