"""Loading the user's handler from its entry point, `package.module:attribute.path`.

A handler is a callable, `def` or `async def`, with one argument: a `Record`, or in batch mode a `Batch` of them; or
what is in them as a model, and then the record may be a second one (`decoding.models`). It may carry two more
callables as attributes: `setup(options)`, called once in every worker before the first record, with the settings of
`[handler.options]`; and `teardown()`, called before a worker leaves in order.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunicorn.decoding.models import takes_model_and_record
from kunicorn.errors import HandlerLoadError


class DrainDeadline(BaseException):
    """Raised inside a handler whose partition has to be given up now: `finally` blocks run, and the record counts as
    not handled. Not an `Exception`, so that a handler's own `except Exception` does not keep the partition.

    An `async def` handler that waits is cancelled instead and sees `asyncio.CancelledError`.
    """


class HandlerTimeout(BaseException):
    """Raised inside a handler that has had its record (or batch) for longer than `handler_timeout_ms`: `finally` blocks
    run, and the try has failed. Not an `Exception`, for the same reason as `DrainDeadline`; a handler that waits in
    `async def` is cancelled likewise.
    """


@dataclass(frozen=True, slots=True)
class Handler:
    """A loaded handler."""

    entrypoint: str
    call: Callable[[Any], Any]
    is_async: bool
    """`call` returns an awaitable."""
    setup: Callable[[dict[str, Any]], Any] | None
    teardown: Callable[[], Any] | None
    yields: bool = False
    """`call` returns a generator: its items are records to send."""


def load(entrypoint: str, *, yields: bool = False) -> Handler:
    """Import the handler's module and find the handler in it.

    The current directory is importable, like for `python -m`. Blocks for as long as the import takes and runs the
    user's module. `yields`: it may be a generator, as what it yields is sent. Raises `HandlerLoadError`; its text
    ends with the user's part of the traceback if the module raised.
    """
    module_name, path = _parse(entrypoint)
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    target = _find(entrypoint, _import(entrypoint, module_name), path)
    _check_callable(entrypoint, target)
    handler = Handler(
        entrypoint,
        target,
        _is_async(target),
        getattr(target, "setup", None),
        getattr(target, "teardown", None),
        _yields(target),
    )
    if handler.yields and not yields:
        raise HandlerLoadError(
            f"handler.entrypoint = {handler.entrypoint!r} contains 'yield': calling it would handle nothing; remove "
            f"the yield, or set [producing] delivery to have sent what it yields"
        )
    return handler


def _parse(entrypoint: str) -> tuple[str, list[str]]:
    module, colon, path = entrypoint.partition(":")
    names = [*module.split("."), *path.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} is not of the form 'package.module:attribute', "
            f"such as 'shop.handlers:handle_order'"
        )
    return module, path.split(".")


def _import(entrypoint: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            searched = ", ".join(entry for entry in sys.path if entry)
            raise HandlerLoadError(
                f"handler.entrypoint = {entrypoint!r}: there is no module {error.name!r}; looked in the current "
                f"directory {Path.cwd()} and in {searched}. Start in the directory that holds it, or set PYTHONPATH."
            ) from error
        raise _import_failed(entrypoint, module, error) from error
    except BaseException as error:
        # SystemExit too: a module that calls sys.exit() when imported must not take the process along silently.
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _import_failed(entrypoint, module, error) from error


def _import_failed(entrypoint: str, module: str, error: BaseException) -> HandlerLoadError:
    where = user_traceback(error)
    place = _place(error)
    return HandlerLoadError(
        f"handler.entrypoint = {entrypoint!r}: importing {module!r} raised {type(error).__name__}: {error} ({place})"
        + (f"\n{where}" if where else "")
    )


def user_traceback(error: BaseException, limit: int = 12) -> str:
    """The last `limit` frames of the traceback that are not ours or the import system's, as Python prints them."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return "".join(traceback.format_list(frames[-limit:])).rstrip()


def _is_machinery(filename: str) -> bool:
    return filename.startswith(("<frozen importlib", _OURS)) or filename == importlib.__file__


_OURS = str(Path(__file__).parent) + os.sep


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "at import"


def _find(entrypoint: str, module: Any, path: list[str]) -> Any:
    target = module
    for name in path:
        try:
            target = getattr(target, name)
        except AttributeError:
            near = difflib.get_close_matches(name, [n for n in dir(target) if not n.startswith("__")], n=3)
            place = getattr(module, "__file__", None) or module.__name__
            owner = f"module {target.__name__!r} ({place})" if inspect.ismodule(target) else repr(target)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise HandlerLoadError(f"handler.entrypoint = {entrypoint!r}: {owner} has no {name!r}{hint}") from None
    return target


def _check_callable(entrypoint: str, target: Any) -> None:
    if inspect.isclass(target):
        raise HandlerLoadError(
            f"handler.entrypoint = {entrypoint!r} is a class: every record would make a new instance; "
            f"name a function, or an instance with a __call__ method"
        )
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
            f'the record (the batch of records with mode = "batch"): {error}'
        ) from error


def _yields(target: Any) -> bool:
    call = getattr(target, "__call__", None)  # noqa: B004
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (target, call))


def _is_async(target: Any) -> bool:
    call = getattr(target, "__call__", None)  # noqa: B004
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (target, call))
