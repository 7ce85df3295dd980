"""What code prints, as lines of the log: where that is JSON, a print between its lines would be read as a broken one.

Python's standard output and standard error of a process that runs user code become streams of whole lines. Each line is
an event of the log, with the place of the record in hand: logger `stdout` at level info, logger `stderr` at level
warning. They are written whatever `[log] level` says, as a print always was. What an exception would print that ends a
thread, or the process, is one event with its traceback.

What is written past Python stays as it is: by C code, by the stack dump of SIGABRT, by a program that a handler starts.

1. A line is an event once it is whole: `print(a, b)` writes its parts one by one, and each thread has parts of its own.
2. `flush` writes nothing: the rest of the line is still to come. `finish` does, before the process ends or forks.
"""

from __future__ import annotations

import io
import sys
import threading
from types import TracebackType
from typing import Any

from kunicorn.observe import logs

_LONGEST_PART = 16_000
"""Characters that wait for their line's end; a progress bar never ends its line."""


class Printed(io.TextIOBase):
    """Stands in for `beneath`, one of the standard streams; the lines are the logger `name`'s."""

    mode = "w"
    line_buffering = True
    write_through = False

    def __init__(self, name: str, level: str, beneath: Any) -> None:
        self.name = f"<{name}>"
        self._name, self._level, self._beneath = name, level, beneath
        self._parts: dict[int, str] = {}
        """By thread: the beginning of a line."""
        self.buffer = _Bytes(self)
        """For those who write bytes."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As text is understood that comes as bytes."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Nothing that is printed raises."""
        return "backslashreplace"

    def reconfigure(self, **_: Any) -> None:
        """Nothing: lines are the log's, whatever a handler asks for, which must not end because it asks."""

    def detach(self) -> _Bytes:  # type: ignore[override]
        """What takes bytes, for those who put a text stream of their own around it. This one goes on."""
        return self.buffer

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor beneath, for programs that inherit it. Raises OSError where there is none."""
        number: int = self._beneath.fileno()
        return number

    def write(self, text: str) -> int:
        """Any thread may call it. Never blocks where the log has a writer."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        me = threading.get_ident()
        *lines, rest = (self._parts.pop(me, "") + text).split("\n")
        if len(rest) > _LONGEST_PART:
            lines.append(rest)
        elif rest:
            self._parts[me] = rest
        for line in lines:
            self._say(line)
        return len(text)

    def finish(self) -> None:
        """Write the lines that were begun. Caller: whoever ends or forks the process."""
        while self._parts:
            _, part = self._parts.popitem()
            self._say(part)

    def _say(self, line: str) -> None:
        if line.strip():
            logs.say_printed(self._level, self._name, line.rstrip("\r"))


class _AsText(Printed):
    """Its lines go beneath, as they were printed."""

    def _say(self, line: str) -> None:
        logs.write_directly(self.fileno(), line)


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, lines: Printed) -> None:
        self._lines = lines

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._lines.fileno()

    def write(self, data: Any) -> int:
        """Any object with bytes."""
        whole = bytes(data)
        self._lines.write(whole.decode(errors="backslashreplace"))
        return len(whole)


def take_over() -> None:
    """From now on prints of this process are lines of its log, if that is JSON. Caller: a process that runs user code,
    once its log is configured. A stream that somebody has put in place of a standard one stays."""
    if not logs.is_json():
        return
    _stand_in(Printed)
    sys.excepthook = _say_end_of_process
    threading.excepthook = _say_end_of_thread


def take_over_as_text(log_format: str) -> None:
    """From now on the standard streams are what `take_over` makes of them where a log of this format is JSON, and their
    lines are text. Caller: a process that tries user code for a person: what such a stream lacks must be found by it,
    too."""
    if log_format == "json":
        _stand_in(_AsText)


def _stand_in(stream: type[Printed]) -> None:
    if sys.stdout is sys.__stdout__:
        sys.stdout = stream("stdout", "info", sys.__stdout__)
    if sys.stderr is sys.__stderr__:
        sys.stderr = stream("stderr", "warning", sys.__stderr__)


def finish() -> None:
    """Write the lines that were begun and not ended, of all threads."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Printed):
            stream.finish()
        else:
            stream.flush()


def _say_end_of_process(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    log.error("the process ends by an exception", exception=logs.formatted((kind, error, traceback)))


def _say_end_of_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_type is SystemExit:
        return
    name = told.thread.name if told.thread is not None else "?"
    error = told.exc_value or told.exc_type()
    exception = logs.formatted((told.exc_type, error, told.exc_traceback))
    log.error(f"thread {name} has ended by an exception", exception=exception)


log = logs.get("kunicorn.prints")
