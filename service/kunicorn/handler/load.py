"""The user's handler in its process: found by its entry point `package.module:attribute.path`, checked, and loaded.

A handler is a callable, `def` or `async def`, with one argument: a `Record`, or in batch mode a `Batch`. With a model
as that argument (`handler.decode.models`), the record may be a second one. Or it is a class with such a method
`handle`; every worker makes one instance. Function, object and class may have hooks as attributes or methods (`setup`
and others, see `lifecycle`).

Beside it: the two exceptions that interrupt a handler, user code's output as whole lines, and the garbage collector's
tuning. Caller: template, workers, `kunicorn check` and Spark's tasks; an import blocks for as long as it takes.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import kunicorn
from kunicorn.errors import HandlerLoadError, HandlerSetupError
from kunicorn.handler.decode.models import takes_model_and_record
from kunicorn.handler.lifecycle import HOOKS, Worker, bound, misfit, setup_takes_worker
from kunicorn.positions import TopicPartition

_NAMED = "handler.entrypoint = {!r}"
"""The setting that names a handler, for messages."""


class DrainDeadline(BaseException):
    """Raised inside a handler whose partition has to be given up now: `finally` blocks run, and the record counts as
    not handled. Not an `Exception`, so that a handler's own `except Exception` does not keep the partition.

    An `async def` handler that waits is cancelled instead and sees `asyncio.CancelledError`.
    """

    __module__ = "kunicorn"


class HandlerTimeout(BaseException):
    """Raised inside a handler that has had its record (or batch) for longer than `handler_timeout_ms`: `finally` blocks
    run, and the try has failed. Not an `Exception`, for the same reason as `DrainDeadline`; a handler that waits in
    `async def` is cancelled likewise.
    """

    __module__ = "kunicorn"


@dataclass(frozen=True, slots=True)
class Handler:
    """A loaded handler: the callable for records and its hooks, each None where the handler has none."""

    entrypoint: str
    call: Callable[[Any], Any]
    is_async: bool
    """Whether `call` returns an awaitable."""
    yields: bool = False
    """Whether `call` returns a generator, whose items are records to send."""
    filters: Any = None
    """Which records it gets: `kunicorn.handler.filter.Filters`; None: all."""
    middlewares: Sequence[Any] = ()
    """Contexts around each call, the first outermost: `kunicorn.handler.middleware.Hooked`."""
    setup: Callable[..., Any] | None = None
    """With one argument or two: call `setup_in` instead."""
    teardown: Callable[[], Any] | None = None
    flush: Callable[[], Any] | None = None
    on_assigned: Callable[[Mapping[TopicPartition, int]], Any] | None = None
    on_revoked: Callable[[Mapping[TopicPartition, int]], Any] | None = None
    on_lost: Callable[[Mapping[TopicPartition, int]], Any] | None = None
    load_offsets: Callable[[Sequence[TopicPartition]], Any] | None = None
    store_offsets: Callable[[Mapping[TopicPartition, int]], Any] | None = None

    @property
    def keeps_offsets(self) -> bool:
        """Whether the handler stores its own offsets, with its effects (`load_offsets`)."""
        return self.load_offsets is not None

    def setup_in(self, worker: Worker, options: Mapping[str, Any]) -> Any:
        """Call `setup`; an awaitable result is the caller's to await. Raises what the user's code raises."""
        if self.setup is None:
            return None
        arguments = (worker, dict(options)) if setup_takes_worker(self.setup) else (dict(options),)
        return self.setup(*arguments)


def load(entrypoint: str, *, yields: bool = False) -> Handler:
    """Import the handler's module, find the handler in it, and of a class make the instance.

    Caller: a process that handles, once. Blocks and raises like `find`, and also raises what `__init__` raises.
    """
    target = find(entrypoint, yields=yields)
    if not inspect.isclass(target):
        return handler_of(entrypoint, target)
    handler = handler_of(entrypoint, instance(_NAMED.format(entrypoint), target))
    if keeps_offsets(target) and not handler.keeps_offsets:
        # The supervisor, which goes by the class, would commit nothing.
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r}: its class has load_offsets, and its instances have None: set it to "
            f"None in the class"
        )
    return handler


def handler_of(entrypoint: str, target: Any) -> Handler:
    """`Handler` of the object that `find` found. A class without an instance can be inspected so, but not called."""
    call = _call_of(target)
    hooks: dict[str, Any] = {name: getattr(target, name, None) for name in HOOKS}
    return Handler(entrypoint, call, _is_async(call), _yields(call), **hooks)


def keeps_offsets(target: Any) -> bool:
    """Whether the handler that `find` found stores its own offsets; a hook that is None is none."""
    return getattr(target, "load_offsets", None) is not None


def find(entrypoint: str, *, yields: bool = False) -> Any:
    """Import the handler's module and find the function, object or class in it; makes no instance.

    The current directory is importable, as with `python -m`. Blocks for as long as the import takes and runs the user's
    module. `yields`: a generator is allowed, since what it yields is sent. Raises `HandlerLoadError`; its text ends
    with the user's part of the traceback if the module raised.
    """
    target = located(_NAMED.format(entrypoint), entrypoint)
    if inspect.isclass(target):
        _check_class(entrypoint, target)
    call = _call_of(target)
    _check_callable(entrypoint, call)
    if _yields(call) and not yields:
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} contains 'yield': calling it would handle nothing; remove the yield, "
            f"or set [producing] delivery to have sent what it yields"
        )
    for name in HOOKS:
        if problem := misfit(target, name):
            raise HandlerLoadError(f"handler.entrypoint = {entrypoint!r}: {problem}")
    return target


def middleware_named(entrypoint: str) -> str:
    """The setting that names a middleware, for messages."""
    return f"handler.middlewares: {entrypoint!r}"


def find_middleware(entrypoint: str) -> Any:
    """Import a middleware (`kunicorn.handler.middleware`) and check it; makes no instance. Blocks and raises like
    `find`."""
    named = middleware_named(entrypoint)
    target = located(named, entrypoint)
    called = bound(target, "__call__") if inspect.isclass(target) else target
    if not callable(called) or (inspect.isclass(target) and not _has_method(target, "__call__")):
        raise HandlerLoadError(f"{named} is {type(target).__name__}, which cannot be called with kunicorn.Call")
    if inspect.iscoroutinefunction(called):
        raise HandlerLoadError(f"{named} is async def without a yield, which is no context: let it yield once")
    for name in ("setup", "teardown"):
        if problem := misfit(target, name):
            raise HandlerLoadError(f"{named}: {problem}")
    return target


def located(named: str, entrypoint: str) -> Any:
    """Import the module and return what the entry point names in it. `named`: the setting and its value, for messages.

    Blocks and raises like `find`.
    """
    module_name, path = _parse(named, entrypoint)
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return _find(named, _import(named, module_name), path)


def instance(named: str, cls: type) -> Any:
    """An instance of the user's class; raises `HandlerSetupError` where making it raises."""
    try:
        return cls()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = user_traceback(error)
        raise HandlerSetupError(
            f"{named}: making an instance raised {type(error).__name__}: {error_message(error)}; what may "
            f"fail belongs into setup(worker, options)" + (f"\n{where}" if where else "")
        ) from error


def _parse(named: str, entrypoint: str) -> tuple[str, list[str]]:
    module, colon, path = entrypoint.partition(":")
    names = [*module.split("."), *path.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise HandlerLoadError(
            f"{named} is not of the form 'package.module:attribute', such as 'shop.handlers:handle_order'"
        )
    return module, path.split(".")


def _import(named: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            searched = ", ".join(entry for entry in sys.path if entry)
            near = _near(error.name, _siblings(error.name))
            hint = f"Did you mean {near}?" if near else "Start in the directory that holds it, or set PYTHONPATH."
            raise HandlerLoadError(
                f"{named}: there is no module {error.name!r}; looked in the current "
                f"directory {Path.cwd()} and in {searched}. {hint}"
            ) from error
        raise _import_failed(named, module, error) from error
    except BaseException as error:
        # SystemExit too: a module that calls sys.exit() when imported must not take the process along silently.
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _import_failed(named, module, error) from error


def _siblings(module: str) -> list[str]:
    """Names of the modules beside which this one would be."""
    import pkgutil  # Each process would pay for it at its start, for a sentence that is hardly ever said.

    package, _, _ = module.rpartition(".")
    where = getattr(sys.modules.get(package), "__path__", None) if package else None
    prefix = f"{package}." if package else ""
    return [prefix + each.name for each in pkgutil.iter_modules(where)]


def _near(name: str, known: Iterable[str]) -> str:
    """Known names that resemble the given one, as a hint for the message; empty if none does."""
    return " or ".join(map(repr, difflib.get_close_matches(name, known, n=3)))


def _import_failed(named: str, module: str, error: BaseException) -> HandlerLoadError:
    where = user_traceback(error)
    place = _place(error)
    return HandlerLoadError(
        f"{named}: importing {module!r} raised {type(error).__name__}: {error_message(error)} ({place})"
        + _names_of_ours(error)
        + (f"\n{where}" if where else "")
    )


def _names_of_ours(error: BaseException) -> str:
    """Public names of kunicorn, for a handler that imported one that does not exist: Python's own message does not list
    them.
    """
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "kunicorn":
        return f"; handlers import from kunicorn: {', '.join(kunicorn.__all__)}"
    return ""


def user_traceback(error: BaseException, limit: int = 12) -> str:
    """Last `limit` frames of the traceback, without those of kunicorn and the import system, as Python prints them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return "".join(traceback.format_list(frames[-limit:])).rstrip()


def clear_frames(error: BaseException) -> None:
    """Have the functions of kunicorn through which the exception came, and those that had called them, hold nothing any
    more. They have it in variables, and it has them by its traceback: each failed try would stay in memory, with all
    that the handler had in hand, until the garbage collector comes, which is seldom.

    Caller: who has caught it, for what is over below. The user's functions are left alone, and so are coroutines and
    generators: one that waits would be closed.
    """
    _cut(error.__traceback__)
    seen, left = set[int](), [error]
    while left:
        each = left.pop()
        seen.add(id(each))
        grouped = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        more = (each.__cause__, each.__context__, *grouped)
        left += [other for other in more if other is not None and id(other) not in seen]
        for frame in _frames(each.__traceback__):
            if frame.f_code.co_filename.startswith(_OURS) and not frame.f_code.co_flags & _WAITS:
                with contextlib.suppress(RuntimeError):  # It goes on.
                    frame.clear()


def _cut(trace: TracebackType | None) -> None:
    """Cut off the tracebacks of earlier tries, which an exception collects that a handler raises again and again."""
    first = trace.tb_frame.f_code if trace is not None else None
    while trace is not None:
        if trace.tb_next is not None and trace.tb_next.tb_frame.f_code is first:
            trace.tb_next = None
        trace = trace.tb_next


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    """Frames of the traceback, and of who called the first of them."""
    frame = trace.tb_frame.f_back if trace is not None else None
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
    while frame is not None:
        yield frame
        frame = frame.f_back


def error_message(error: BaseException) -> str:
    """Message of the exception, cut short, lone surrogates written out (`\\ud83d`). Its `__str__` is the user's code:
    one that raises, be it SystemExit, or that gives a text of a class of its own must not end the worker.
    """
    try:
        text = str.__getitem__(str(error), slice(_LONGEST_MESSAGE))
        return str.encode(text, errors="backslashreplace").decode()
    except BaseException as inner:
        return f"(its __str__ raised {type(inner).__name__})"


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<frozen importlib", _OURS)) or filename == importlib.__file__


_LONGEST_MESSAGE = 10_000
"""Of megabytes nobody reads more, and they would go over the pipe, into the log and into /status."""

_OURS = str(Path(__file__).parents[1]) + os.sep
_WAITS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code that may wait in the middle."""


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "at import"


def _find(named: str, module: Any, path: list[str]) -> Any:
    target = module
    for name in path:
        try:
            target = getattr(target, name)
        except AttributeError:
            place = getattr(module, "__file__", None) or module.__name__
            owner = f"module {target.__name__!r} ({place})" if inspect.ismodule(target) else repr(target)
            near = _near(name, [each for each in dir(target) if not each.startswith("__")])
            if target is module and f"{module.__name__}.{name}" in _siblings(f"{module.__name__}.{name}"):
                near = f"the module: '{module.__name__}.{name}:" + (".".join(path[1:]) or "…") + "'"
            hint = f"; did you mean {near}?" if near else ""
            raise HandlerLoadError(f"{named}: {owner} has no {name!r}{hint}") from None
    return target


def _check_class(entrypoint: str, cls: type) -> None:
    if not _has_method(cls, "handle") and not _has_method(cls, "__call__"):
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} is a class without a method 'handle(self, record)': nothing would be "
            f"called with the records; add it"
        )
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r}: every worker makes an instance without arguments, but that is "
            f"refused: {error}; take settings from [handler.options] in setup(worker, options)"
        ) from error
    except ValueError:
        return  # Written in C and silent about its arguments: the worker will tell.


def _has_method(cls: type, name: str) -> bool:
    return next((each.__dict__[name] for each in cls.__mro__ if name in each.__dict__), None) is not None


def _call_of(target: Any) -> Any:
    """Callable for the records: the target itself or its method `handle`, of a class without an instance as if
    bound.
    """
    if inspect.isclass(target):
        name = "handle" if _has_method(target, "handle") else "__call__"
        return bound(target, name)
    # A function is called itself, and so is an object with __call__ alone.
    handle = None if inspect.isroutine(target) else getattr(target, "handle", None)
    return handle if callable(handle) else target


def _check_callable(entrypoint: str, target: Any) -> None:
    if not callable(target):
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} is {type(target).__name__}, which cannot be called"
        )
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # Written in C and silent about its arguments: the first record will tell.
    try:
        signature.bind(*[None] * (2 if takes_model_and_record(target) else 1))
    except TypeError as error:
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} takes {signature}, but is called with exactly one argument, "
            f'the record (the batch with mode = "batch", the columns with mode = "arrow"): {error}'
        ) from error


def _yields(target: Any) -> bool:
    call = getattr(target, "__call__", None)  # noqa: B004
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (target, call))


def _is_async(target: Any) -> bool:
    call = getattr(target, "__call__", None)  # noqa: B004
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (target, call))


def print_line_by_line() -> None:
    """Make standard output line-buffered. Caller: a process that runs user code, first thing; its forks inherit it.

    With PYTHONUNBUFFERED `print(a, b)` would be a write for each part, and lines of other processes would come between
    them; without it, into a pipe, lines would be held back until there are many.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


_THRESHOLDS = (50_000, 20, 100)
"""Messages are tracked by the garbage collector: with its defaults it costs as much as the records themselves."""


def tune_gc() -> None:
    """Tune the garbage collector: freeze what is loaded so far, and collect the rest seldom.

    Caller: the main thread, once everything is loaded. Blocks for one whole collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
