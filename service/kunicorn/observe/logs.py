"""Structured logs: an event in plain words and its fields, one line an event, as JSON or as text.

Every process configures its own writer (`kunicorn.observe.writer`); what the libraries log by the standard library's
`logging`, and Python's warnings, go the same way. logging's global settings, and those of structlog where the handler
uses it, belong to the handler's author: our loggers depend on neither, so that nobody can silence the other. What a
package for structured logs would do beyond this file costs every process 0.1 s of imports (tracebacks in colour).
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kunicorn.observe.lines import as_json, as_text
from kunicorn.observe.writer import LogWriter, write_directly

_STDOUT, _STDERR = 1, 2
_FLUSH_AT_EXIT = 1.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_RENDERERS = {"json": as_json, "text": as_text}


class _Output:
    """Where this process's lines go. One a process; a fork begins with an empty one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As before `configure`: warnings and errors go to standard error, nothing else anywhere."""
        self.threshold = logging.WARNING
        self.process = "unconfigured"
        self.render = as_text
        self.fd = _STDERR
        self.writer: LogWriter | None = None
        self.place: Callable[[], Mapping[str, Any]] = dict

    def emit(self, level: str, logger: str, event: Mapping[str, Any]) -> None:
        """Render and queue one event. Never blocks once configured, never raises for what is in the event."""
        line = self.render(level, logger, self.process, event)
        if self.writer is not None:
            self.writer.put(line)
        else:
            write_directly(_STDERR, line)


_output = _Output()
# The writer's thread does not live on in a fork: without this the child's lines would pile up in its parent's queue.
os.register_at_fork(after_in_child=_output.reset)


def configure(level: str, format: str, process: str, fd: int = _STDOUT) -> LogWriter:
    """Send this process's logs to `fd` from now on, and return the writer, for its `dropped` and `close`.

    Caller: each process once, first thing; again after a fork. `level`: debug, info, warning, error. `format`: text,
    json, or auto (text on a terminal). `process` names the process in every line: supervisor, template, worker-3.
    """
    if _output.writer is not None:
        _output.writer.close(_FLUSH_AT_EXIT)
    _output.process = process
    _output.fd = fd
    adjust(level, format)
    writer = _output.writer = LogWriter(fd, _say_dropped)
    # Also for a process that ends by an exception nobody expected: its last lines say why.
    atexit.register(writer.close, _FLUSH_AT_EXIT)
    _take_over_standard_logging()
    return writer


def adjust(level: str, format: str) -> None:
    """Write other levels, or in another format, from now on; see `configure`."""
    if format == "auto":
        format = "text" if os.isatty(_output.fd) else "json"
    _output.threshold = _LEVELS[level]
    _output.render = _RENDERERS[format]
    logging.getLogger().setLevel(_output.threshold)


def tell_place(place: Callable[[], Mapping[str, Any]]) -> None:
    """Lines that come by `logging` get the fields that `place` gives from now on.

    Caller: the worker, once it knows what its handler has in hand. `place` is called by the thread, and in the task,
    that logs; it raises nothing.
    """
    _output.place = place


def close(timeout: float) -> None:
    """Write what is queued, within so many seconds; later lines are dropped. Caller: who ends the process."""
    if _output.writer is not None:
        _output.writer.close(timeout)


@dataclass(frozen=True, slots=True)
class Logger:
    """Says events of one part of the service, each with its fields, which are its own. May be made before `configure`,
    at import; any thread may call it."""

    name: str

    def debug(self, event: str, **fields: Any) -> None:
        """For who looks for a fault in the service itself."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Something happened as it should."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something did not, and the service goes on by itself."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Somebody has to do something."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        if _LEVELS[level] >= _output.threshold:
            _output.emit(level, self.name, {"event": event, **fields})


get = Logger


def dropped() -> int:
    """Lines of this process that were not written, since `configure`."""
    return _output.writer.dropped if _output.writer is not None else 0


def _say_dropped(count: int) -> str:
    event = {"event": f"{count} log lines were dropped: nobody read the output", "dropped": count}
    return _output.render("warning", "kunicorn.logs", _output.process, event)


_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event", "exception"}
"""Of a record of `logging`; what else it has came by `extra=`."""


class _Standard(logging.Handler):
    """Takes in what the libraries log by the standard library."""

    def createLock(self) -> None:  # noqa: N802
        """None needed, as nothing here is shared; one held by another thread during a fork would stay held."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """As the base class does, which from Python 3.13 on breaks where there is no lock."""
        passed = self.filter(record)
        if passed:
            # From Python 3.12 on a filter may put another record in its place.
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Caller: any thread of the process."""
        try:
            event: dict[str, Any] = {"event": record.getMessage()}
        except Exception:
            # A library's broken call must not end the caller, nor vanish.
            event = {"event": str(record.msg), "arguments": repr(record.args)}
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = logging.Formatter().formatException(record.exc_info)
        event |= _output.place()
        event |= {name: value for name, value in vars(record).items() if name not in _OWN_ATTRIBUTES}
        _output.emit(record.levelname.lower(), record.name, event)


def _take_over_standard_logging() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Standard())
    logging.captureWarnings(True)
