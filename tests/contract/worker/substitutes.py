"""The standard library as a worker finds it in a story: its threads, clock, chance, signals and loops are stepped.

Put into every module of the package, by what is found there and not by where: a module that uses `threading` or `time`
gets these. Everything else of them is as it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from types import FunctionType, ModuleType, TracebackType
from typing import Any

import uvloop

from tests.contract.worker.stepping import (
    NANOSECONDS,
    STEPS,
    SteppedCondition,
    SteppedEvent,
    SteppedLock,
    SteppedLoop,
    SteppedRLock,
    nanoseconds,
)


class WorkerEnded(AssertionError):
    """The worker has ended itself."""


class _Module:
    """A module with some other things in it."""

    def __init__(self, module: ModuleType, **others: Any) -> None:
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Executor:
    """In the place of `ThreadPoolExecutor`, for what is over at once."""

    def __init__(self, workers: int = 1) -> None:
        """`workers`: as many as anybody likes."""

    def __enter__(self) -> _Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Everything is done."""

    def map(self, call: Callable[[Any], Any], each: Iterable[Any]) -> list[Any]:
        """As of `Executor`."""
        return [call(one) for one in each]


class _Library:
    """In the place of `ctypes.pythonapi`."""

    @staticmethod
    def PyThreadState_SetAsyncExc(ident: Any, kind: Any) -> int:
        STEPS.raise_in(ident.value, kind.value)
        return 1


def _seconds() -> float:
    return STEPS.now / NANOSECONDS


def _nanoseconds() -> int:
    return STEPS.now


def _sleep(seconds: float) -> None:
    STEPS.sleep(nanoseconds(seconds))


def _exit(status: int) -> None:
    STEPS.check()
    STEPS.fail(WorkerEnded(f"the worker exits by itself: {_said[-1] if _said else status}"))


_said: list[str] = []


def _write(fd: int, data: bytes) -> int:
    STEPS.check()
    _said[:] = [data.decode(errors="replace")]
    return len(data)


def _print_exc() -> None:
    STEPS.check()
    _said[:] = [traceback.format_exc()]


_TIME = {
    "sleep": _sleep,
    "monotonic": _seconds,
    "monotonic_ns": _nanoseconds,
    "perf_counter": _seconds,
    "time": _seconds,
    "time_ns": _nanoseconds,
    "clock_gettime": lambda number: _seconds(),
    "clock_gettime_ns": lambda number: _nanoseconds(),
}
_THREADING = {"Lock": SteppedLock, "RLock": SteppedRLock, "Condition": SteppedCondition, "Event": SteppedEvent}
_OTHERS: list[tuple[ModuleType, dict[str, Any]]] = [
    (time, _TIME),
    (threading, _THREADING),
    (random, {"random": lambda: 0.5, "uniform": lambda low, high: (low + high) / 2}),
    (signal, {"pthread_kill": lambda ident, number: STEPS.signal(), "signal": lambda number, handler: None}),
    (os, {"_exit": _exit, "write": _write}),
    (sys, {"stderr": StringIO()}),
    (traceback, {"print_exc": _print_exc}),
    (ctypes, {"pythonapi": _Library}),
    (uvloop, {"new_event_loop": SteppedLoop}),
]


def _replacements() -> dict[int, Any]:
    found: dict[int, Any] = {id(ThreadPoolExecutor): _Executor}
    for module, others in _OTHERS:
        found[id(module)] = _Module(module, **others)
        found |= {id(getattr(module, name)): other for name, other in others.items()}
    return found


class _Place:
    """Where one of them is found."""

    def __init__(self, owner: Any, name: str, before: Any, here: Any) -> None:
        self.owner, self.name, self.before, self.here = owner, name, before, here


def _places(package: str) -> Iterator[_Place]:
    by_id = _replacements()
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith(package):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in by_id:
                yield _Place(module, key, value, by_id[id(value)])
            for function in _functions(value, name):
                yield from _defaults(function, by_id)


def _functions(value: Any, module: str) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType) and value.__module__ == module:
        yield value
    elif isinstance(value, type) and value.__module__ == module:
        yield from (each for each in vars(value).values() if isinstance(each, FunctionType))


def _defaults(function: FunctionType, by_id: dict[int, Any]) -> Iterator[_Place]:
    defaults = function.__defaults__ or ()
    if any(id(each) in by_id for each in defaults):
        here = tuple(by_id.get(id(each), each) for each in defaults)
        yield _Place(function, "__defaults__", defaults, here)


def _start(thread: threading.Thread) -> None:
    if STEPS.is_here:
        STEPS.spawn(thread.name, thread.run)
    else:
        _really_start(thread)


_really_start = threading.Thread.start


@contextmanager
def in_force(package: str) -> Iterator[None]:
    """All modules of the package that are imported by now have these, in the whole process; nothing is logged."""
    places = [*_places(package), _Place(threading.Thread, "start", _really_start, _start)]
    interval, disabled = sys.getswitchinterval(), logging.root.manager.disable
    for place in places:
        setattr(place.owner, place.name, place.here)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # A dead worker leaves coroutines behind, which are told of where they are collected: not in another test.
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                yield
            finally:
                gc.collect()
    finally:
        logging.disable(disabled)
        for place in places:
            setattr(place.owner, place.name, place.before)
        sys.setswitchinterval(interval)
        asyncio.set_event_loop(None)
