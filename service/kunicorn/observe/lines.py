"""How a log event looks as a line. Pure, but for the clock and the pid.

A JSON event is always one line. A text event is one line unless its message or an exception has several: those that
follow are indented, so that nothing a record contains can pass for an event of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
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
        "event": _short(str(event.get("event", ""))),
    }
    for name, value in event.items():
        if name != "event":
            # Nobody's field replaces one of ours: whoever filters by level or process relies on them.
            line[name if name not in line else f"{name}_"] = _short(value) if isinstance(value, str) else value
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        # Numbers beyond 64 bits, lone surrogates, cycles: shown as Python shows them.
        return orjson.dumps({name: _plain(value) for name, value in line.items()}).decode()


def as_text(level: str, logger: str, process: str, event: Mapping[str, Any]) -> str:
    """`time LEVEL process[pid] message  name=value …`, an exception below it."""
    head = f"{_now()} {level.upper():<7} {process}[{os.getpid()}] "
    fields = [
        f"{name}={_quoted(str(value))}" for name, value in event.items() if name != "event" and name not in _MULTILINE
    ]
    first, *rest = _short(str(event.get("event", "")).rstrip("\n")).split("\n")
    below = [*rest, *(line for name in _MULTILINE for line in _short(str(event.get(name, ""))).splitlines())]
    text = head + first + ("  " + " ".join(fields) if fields else "")
    return "\n    ".join(_harmless(line) for line in (text, *below))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: str) -> str:
    left_out = len(text) - _LONGEST
    return text if left_out <= 0 else f"{text[:_LONGEST]} … ({left_out} more characters)"


def _printable(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()


def _plain(value: object) -> object:
    fits = isinstance(value, int) and abs(value) < 2**63
    return value if fits or isinstance(value, float | None) else _printable(value)


def _quoted(text: str) -> str:
    text = _short(text)
    return orjson.dumps(_printable(text)).decode() if _NEEDS_QUOTES.search(text) else text


def _harmless(line: str) -> str:
    # Escape sequences in a record's data must not drive the terminal of whoever reads the log.
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), line)
