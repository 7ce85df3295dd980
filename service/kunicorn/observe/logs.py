"""Structured logs: an event in plain words and its fields, one line an event, as JSON or as text.

Every process configures a writer of its own; what the libraries log by the standard library's `logging`, and Python's
warnings, go the same way. logging's global settings, and those of structlog where the handler uses it, belong to the
handler's author: our loggers depend on neither, so that nobody can silence the other. What a package for structured
logs would do beyond this file costs every process 0.1 s of imports (tracebacks in colour).

A JSON event is always one line. A text event is one line unless its message or an exception has several: those that
follow are indented, so that nothing a record contains can pass for an event of its own.

Lines are written by a thread. A pipe whose reader has stopped blocks its writers once it is full; a supervisor that
blocks misses heartbeats and loses its partitions because of a log line.

1. `put` never blocks and may be called from a signal handler: `SimpleQueue` is reentrant, `Queue` would deadlock.
2. What does not fit is dropped and counted; the count is written as soon as something can be written again. A long
   line takes the places of several short ones: it may hold a whole record, and the memory of ten thousand is the
   process's.
3. The thread is a daemon: blocked in write(2) it holds neither the GIL nor the interpreter's exit.
4. All processes of a service write to one pipe. Once that is full, the kernel divides what is longer than PIPE_BUF and
   lets other writers in between: lines would be in one another. So whole lines go out together up to PIPE_BUF, which is
   never divided, and one process writes at a time, for the lines that are longer.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import orjson

_LONGEST = 16_000
"""Characters of one field: a handler may raise with a whole record in its message."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_NEEDS_QUOTES = re.compile(r"[\s\"=]|^$")
_MULTILINE = ("exception", "stack")


def as_json(level: str, logger: str, process: str, event: Mapping[str, Any]) -> str:
    """One JSON object: time, level, process, pid, logger, event, then the event's own fields."""
    line = {
        "time": _now(),
        "level": level,
        "process": process,
        "pid": os.getpid(),
        "logger": logger,
        "event": _short(_printable(event.get("event", ""))),
    }
    for name, value in event.items():
        if name != "event":
            # Nobody's field replaces one of ours: whoever filters by level or process relies on them.
            line[name if name not in line else f"{name}_"] = _short(value) if isinstance(value, str) else value
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        # Numbers beyond 64 bits, lone surrogates, cycles, a `__str__` that raises: shown as Python shows them.
        return orjson.dumps({_printable(name): _plain(value) for name, value in line.items()}).decode()


def as_text(level: str, logger: str, process: str, event: Mapping[str, Any]) -> str:
    """`time LEVEL process[pid] message  name=value …`, an exception below it."""
    head = f"{_now()} {level.upper():<7} {process}[{os.getpid()}] "
    fields = [
        f"{name}={_quoted(_printable(value))}"
        for name, value in event.items()
        if name != "event" and name not in _MULTILINE
    ]
    first, *rest = _short(_printable(event.get("event", "")).rstrip("\n")).split("\n")
    below = [*rest, *(line for name in _MULTILINE for line in _short(_printable(event.get(name, ""))).splitlines())]
    text = head + first + ("  " + " ".join(fields) if fields else "")
    return "\n    ".join(_harmless(line) for line in (text, *below))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: str) -> str:
    left_out = len(text) - _LONGEST
    return text if left_out <= 0 else f"{text[:_LONGEST]} … ({left_out} more characters)"


def _printable(value: object, as_text: Callable[[object], str] = str) -> str:
    """The value as a text that has a form in UTF-8. Raises nothing: a `__str__` or `__repr__` is anybody's code, and
    what it raises would end the handler that only wanted to log.
    """
    try:
        return str.encode(as_text(value), errors="backslashreplace").decode()
    except Exception as error:
        return f"({type(value).__name__}, whose {as_text.__name__}() raised {type(error).__name__})"


def _plain(value: object) -> object:
    fits = isinstance(value, int) and abs(value) < 2**63
    return value if fits or isinstance(value, float | None) else _printable(value)


def _quoted(text: str) -> str:
    text = _short(text)
    return orjson.dumps(text).decode() if _NEEDS_QUOTES.search(text) else text


def _harmless(line: str) -> str:
    # Escape sequences in a record's data must not drive the terminal of whoever reads the log.
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), line)


_MOST_LINES = 10_000
_LINES_A_WRITE = 256
_PLACE = 1_000
"""Characters. In the queue an empty text follows a line for each further place that it takes: its size is counted
without a lock, which a signal handler could not have."""


class LogWriter:
    """Queue and writer thread of one process's log lines. `fd` may be in non-blocking mode; it stays open."""

    def __init__(self, fd: int, lost: Callable[[int], str], capacity: int = _MOST_LINES) -> None:
        """Start the thread. `lost(n)` words the line that says that n lines were dropped. `capacity`: waiting lines, of
        at most `_PLACE` characters."""
        self._fd = fd
        self._lost = lost
        self._capacity = capacity
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._dropped = 0
        self._told = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines dropped since the start."""
        return self._dropped

    def put(self, line: str) -> None:
        """Queue one line, which ends without a newline. Never blocks."""
        if self._lines.qsize() >= self._capacity or self._closing.is_set():
            self._dropped += 1
            return
        self._lines.put(line)
        for _ in range(len(line) // _PLACE):
            self._lines.put("")

    def close(self, timeout: float) -> None:
        """Write what is queued and end the thread; gives up after `timeout` seconds. Later lines are dropped."""
        if not self._closing.is_set():
            self._closing.set()
            self._lines.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        open_for_more = True
        while open_for_more:
            lines = [self._lines.get()]
            try:
                while len(lines) < _LINES_A_WRITE:
                    lines.append(self._lines.get_nowait())
            except Empty:
                pass
            open_for_more = None not in lines
            self._write([line for line in lines if line])

    def _write(self, lines: list[str]) -> None:
        if (dropped := self._dropped) > self._told:
            lines.append(self._lost(dropped - self._told))
            self._told = dropped
        try:
            with _one_at_a_time(self._fd):
                for data in _whole_lines(lines):
                    self._write_all(memoryview(data))
        except OSError:
            # Whoever read is gone (EPIPE, EIO on a closed terminal). Nobody is left to tell; the service goes on.
            self._dropped += len(lines)

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Somebody who shares the terminal or pipe has made it non-blocking, for all of us.
                _is_writable(self._fd, None)


def _whole_lines(lines: Iterable[str]) -> Iterator[bytes]:
    """What to write at a time: as many lines as the kernel does not divide, or one that is longer."""
    together = b""
    for line in lines:
        data = f"{line}\n".encode(errors="backslashreplace")
        if together and len(together) + len(data) > select.PIPE_BUF:
            yield together
            together = b""
        together += data
    yield together


_PATIENCE = 2.0
"""Seconds that a process which is frozen amid a line keeps the others from the log."""
_LOOK_AGAIN = 0.002


@contextlib.contextmanager
def _one_at_a_time(fd: int) -> Iterator[None]:
    """Wait until no other process of ours writes to that pipe or socket. The kernel has the lock, and frees it when its
    owner ends.
    """
    # The kernel divides no write to a file or a terminal, and the lock of a file on NFS is a matter of its server's.
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        yield
        return
    waited = 0.0
    while not _locked(fd) and waited < _PATIENCE:
        # While nobody reads, whoever has the lock cannot go on.
        waited = waited + _LOOK_AGAIN if _is_writable(fd, 0) else 0.0
        time.sleep(_LOOK_AGAIN)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_UN)


def _locked(fd: int) -> bool:
    """Whether the lock is ours, or there can be none."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_writable(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_ms))


def write_directly(fd: int, line: str) -> None:
    """Write one line without a thread, before there is one. May block; ignores failures."""
    try:
        with _one_at_a_time(fd):
            os.write(fd, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        return


_STDOUT, _STDERR = 1, 2
_FLUSH_AT_EXIT = 1.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_RENDERERS = {"json": as_json, "text": as_text}


class _Output:
    """Destination of this process's lines. One a process; a fork begins with an empty one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Go back to the state before `configure`: warnings and errors go to standard error, nothing else anywhere."""
        self.threshold = logging.WARNING
        self.process = "unconfigured"
        self.render = as_text
        self.fd = _STDERR
        self.writer: LogWriter | None = None
        self.place: Callable[[], Mapping[str, Any]] = dict

    def forked(self) -> None:
        """Go on in a child: in the same form, on standard error, without a thread until it configures its own."""
        self.fd = _STDERR
        self.writer = None
        self.place = dict

    def emit(self, level: str, logger: str, event: Mapping[str, Any]) -> None:
        """Render and queue one event. Never blocks where there is a writer, never raises for what is in the event."""
        try:
            line = self.render(level, logger, self.process, event)
        except Exception as error:
            # A text of a class of its own, whose methods are anybody's code: what can be told is that there was one.
            told = {"event": "an event that cannot be written", "why": type(error).__name__}
            line = self.render(level, logger, self.process, told)
        if self.writer is not None:
            self.writer.put(line)
        else:
            write_directly(self.fd, line)


_output = _Output()
# The writer's thread does not live on in a fork: without this the child's lines would pile up in its parent's queue.
os.register_at_fork(after_in_child=_output.forked)


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


def configure_without_thread(level: str, format: str, process: str) -> None:
    """As `configure`, for a process that may have no thread, as it forks: each line is written at once, and may block.

    Caller: the template, first thing.
    """
    _output.process = process
    _output.fd = _STDOUT
    adjust(level, format)
    _take_over_standard_logging()


def is_json() -> bool:
    """Whether this process's lines are JSON."""
    return _output.render is as_json


def format_of(format: str, fd: int = _STDOUT) -> str:
    """What `auto` is where lines go to `fd`; any other format is itself."""
    if format != "auto":
        return format
    return "text" if os.isatty(fd) else "json"


def adjust(level: str, format: str) -> None:
    """Change level and format; see `configure`."""
    _output.threshold = _LEVELS[level]
    _output.render = _RENDERERS[format_of(format, _output.fd)]
    logging.getLogger().setLevel(_output.threshold)


def tell_place(place: Callable[[], Mapping[str, Any]]) -> None:
    """Add the fields that `place` returns to lines that come by `logging`, and to printed ones.

    Caller: the worker, once it knows what its handler has in hand. `place` is called by the thread, and in the task,
    that logs; it raises nothing.
    """
    _output.place = place


def close(timeout: float) -> None:
    """Write what is queued, within so many seconds; later lines are dropped. Caller: the function that ends the
    process.
    """
    if _output.writer is not None:
        _output.writer.close(timeout)


@dataclass(frozen=True, slots=True)
class Logger:
    """Logger of one part of the service; fields are the event's own. May be made before `configure`, at import; any
    thread may call it.
    """

    name: str

    def debug(self, event: str, **fields: Any) -> None:
        """Event that matters only to whoever looks for a fault in the service itself."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Event that was expected."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Event that was not expected; the service goes on by itself."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Event upon which somebody has to do something."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        if _LEVELS[level] >= _output.threshold:
            _output.emit(level, self.name, {"event": event, **fields})


get = Logger


class Complaints:
    """Warnings that are given once each, up to a number of them: names that never repeat must fill neither log nor
    memory. The first that is too many is given, too, and says that it is the last. One thread at a time.
    """

    def __init__(self, log: Logger, most: int = 100) -> None:
        self._log, self._most = log, most
        self._told: set[str] = set()

    def tell(self, about: str, text: str) -> None:
        """Warn with the text unless it was done already, or too many were told of. `about`: names the complaint."""
        if about in self._told or len(self._told) > self._most:
            return
        self._told.add(about)
        if len(self._told) > self._most:
            text += f"; there were {self._most} warnings like this, and no further ones are told"
        self._log.warning(text)


def dropped() -> int:
    """Number of this process's lines dropped since `configure`."""
    return _output.writer.dropped if _output.writer is not None else 0


def _say_dropped(count: int) -> str:
    event = {"event": f"{count} log lines were dropped: nobody read the output", "dropped": count}
    return _output.render("warning", "kunicorn.logs", _output.process, event)


def say_printed(level: str, logger: str, line: str) -> None:
    """One line that somebody printed, whatever the level of the log. Caller: `observe.prints`."""
    _output.emit(level, logger, {"event": line, **_output.place()})


def rendered(level: str, logger: str, event: Mapping[str, Any]) -> str:
    """An event as a line of this process's log, for whoever has to write it without the log's thread."""
    return _output.render(level, logger, _output.process, event)


def formatted(raised: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
    """An exception with its traceback, as `logging` has it."""
    return logging.Formatter().formatException(raised)


_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Of a record of `logging`; what else it has came by `extra=`."""
_OWN_FIELDS = frozenset({"event", "exception"})
"""Made of the record: a field of such a name gets an underscore behind it, as `as_json` gives others."""


class _Standard(logging.Handler):
    """Handler that takes in what the libraries log by the standard library."""

    def createLock(self) -> None:  # noqa: N802
        """No lock, as nothing here is shared: one held by another thread during a fork would stay held."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit without a lock. The base class breaks from Python 3.13 on where there is none."""
        passed = self.filter(record)
        if passed:
            # From Python 3.12 on a filter may put another record in its place.
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Caller: any thread of the process. Raises nothing, as no handler of `logging` does."""
        event = _said(record)
        try:
            if record.exc_info and record.exc_info[0] is not None:
                event["exception"] = logging.Formatter().formatException(record.exc_info)
            event |= _output.place()
            event |= {
                f"{name}_" if name in _OWN_FIELDS else name: value
                for name, value in vars(record).items()
                if name not in _OWN_ATTRIBUTES
            }
        except Exception as error:
            # A record that somebody built by hand, such as one without a traceback in exc_info.
            event["incomplete"] = type(error).__name__
        _output.emit(str(record.levelname).lower(), str(record.name), event)


def _said(record: logging.LogRecord) -> dict[str, Any]:
    try:
        return {"event": record.getMessage()}
    except Exception:
        # A broken call must not end the caller, nor vanish.
        return {"event": _printable(record.msg), "arguments": _printable(record.args, repr)}


def _take_over_standard_logging() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Standard())
    logging.captureWarnings(True)
