"""Structured logs: an event in plain words and its fields, one line an event, as JSON or as text.

Every process configures its own writer (`kunicorn.observe.writer`); what the libraries log by the standard library's
`logging`, and Python's warnings, go the same way. structlog's and logging's global settings belong to the handler's
author: our loggers carry their own, so that neither can silence the other.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

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

    def emit(self, level: str, logger: str, event: EventDict) -> None:
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


def get(name: str) -> FilteringBoundLogger:
    """The logger of that name; may be made before `configure`, at import."""
    logger = structlog.wrap_logger(
        None,
        processors=[_drop_below_threshold, structlog.processors.format_exc_info, _hand_over],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        context_class=dict,
        cache_logger_on_first_use=False,
        _logger=name,
    )
    return cast(FilteringBoundLogger, logger)


def dropped() -> int:
    """Lines of this process that were not written, since `configure`."""
    return _output.writer.dropped if _output.writer is not None else 0


def _drop_below_threshold(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if _LEVELS.get(method, logging.ERROR) < _output.threshold:
        raise structlog.DropEvent
    return event


def _hand_over(_: WrappedLogger, method: str, event: EventDict) -> EventDict:
    _output.emit(method, event.pop("_logger", ""), event)
    raise structlog.DropEvent


def _say_dropped(count: int) -> str:
    event = {"event": f"{count} log lines were dropped: nobody read the output", "dropped": count}
    return _output.render("warning", "kunicorn.logs", _output.process, event)


class _Standard(logging.Handler):
    """Takes in what the libraries log by the standard library."""

    def createLock(self) -> None:  # noqa: N802
        """None needed, as nothing here is shared; one held by another thread during a fork would stay held."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Caller: any thread of the process."""
        try:
            event: dict[str, Any] = {"event": record.getMessage()}
        except Exception:
            # A library's broken call must not end the caller, nor vanish.
            event = {"event": str(record.msg), "arguments": repr(record.args)}
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = logging.Formatter().formatException(record.exc_info)
        _output.emit(record.levelname.lower(), record.name, event)


def _take_over_standard_logging() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Standard())
    logging.captureWarnings(True)
