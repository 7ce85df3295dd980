"""Text of commands and jobs: tables for people, JSON for programs, times as people write them, and the question before
what cannot be undone. Pure; times are milliseconds since 1970.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from kunicorn.errors import ConfigError

if TYPE_CHECKING:
    from uuid import UUID

_GAP = "  "
_NOTHING = "-"

Cell = str | int | float | None


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Lines of a table; numbers stand to the right, an unknown value is a dash."""
    body = [list(row) for row in rows]
    if not body:
        return
    numbers = [all(isinstance(row[at], int | float | None) for row in body) for at in range(len(head))]
    lines = [list(head), *([_shown(cell) for cell in row] for row in body)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numbers, strict=True)
        )
        yield _GAP.join(cells).rstrip()


def _shown(cell: Cell) -> str:
    if cell is None or cell == "":
        return _NOTHING
    return printable(cell) if isinstance(cell, str) else f"{cell:,}" if isinstance(cell, int) else f"{cell:,.1f}"


class Answer(Protocol):
    """What a command or a job has to say."""

    def lines(self) -> Iterable[str]:
        """For a person."""

    def as_json(self) -> Any:
        """For a program."""


def tell(answer: Answer, say: Callable[[str], None], *, as_json: bool, in_one_line: bool = False) -> None:
    """Say the answer, as text or as JSON. `in_one_line`: among a job's log lines."""
    if not as_json:
        for line in answer.lines():
            say(line)
    elif in_one_line:
        say(_with_halves(json.dumps(answer.as_json(), ensure_ascii=False)))
    else:
        say(as_json_text(answer.as_json()))


def as_json_text(value: Any) -> str:
    """JSON for a program, indented for people."""
    return _with_halves(json.dumps(value, indent=2, ensure_ascii=False))


_HALVES = re.compile("[\ud800-\udfff]")


def _with_halves(text: str) -> str:
    """JSON that has a form in UTF-8: half a character, which a record's JSON may bring (`"\\ud83d"`), is escaped."""
    return _HALVES.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def listed(items: Iterable[object], most: int = 20, separator: str = " ") -> str:
    """The first of the items, and an ellipsis for the others: a line that must not become thousands."""
    first = list(islice(items, most + 1))
    return separator.join(map(str, first[:most])) + (" …" if len(first) > most else "")


def printable(text: str) -> str:
    """The text without control characters: a terminal must not obey what somebody else's client or record says."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_SHOWN_BYTES = 4_000


def shown_bytes(value: bytes | None) -> str:
    """A key or value for a person: text where it is UTF-8, cut where it is long."""
    if value is None:
        return "null"
    cut = f" … ({len(value)} bytes; --json has them all)" if len(value) > _SHOWN_BYTES else ""
    shown = value[:_SHOWN_BYTES]
    try:
        return printable(shown.decode(errors="strict" if not cut else "ignore")) + cut
    except UnicodeDecodeError:
        return repr(shown) + cut


def json_bytes(value: bytes | None) -> Any:
    """A key or value for a program: base64 where it is not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def duration(seconds: float | None) -> str | None:
    """Duration for a column: 0.4s, 12s, 3m05s, 2h07m, 4d03h."""
    if seconds is None:
        return None
    for size, name, smaller, rest in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{name}{int(seconds % size // smaller):02d}{rest}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"


def utc(ms: int | None, timespec: str = "seconds") -> str:
    """A record's time for a person: 2026-01-31T12:00:00Z. One that no calendar has, as of a producer that writes
    microseconds, as its number.
    """
    if ms is None:
        return "without a timestamp"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


# Twenty digits are longer than any log: `int` refuses thousands of them, and no `float` holds hundreds.
_AGO = re.compile(r"(?P<count>\d{1,20})(?P<unit>[smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(when: datetime) -> int:
    """Whole milliseconds from 1970 on to that time, which has a zone."""
    # Not by way of seconds as a float: for many a time that is one too few, and a record of the one before is taken in.
    return (when - _BEGIN) // timedelta(milliseconds=1)


def moment(option: str, text: str, now_ms: int) -> int:
    """Time in milliseconds: "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", or ago: "90s", "30m", "2h", "7d".

    An age beyond 1970 is that year's begin. Raises `ConfigError` naming the `option`.
    """
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0, now_ms - int(ago["count"]) * _UNIT_MS[ago["unit"]])
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ConfigError(f"{option} {text!r} is neither a time with its zone (2026-01-31T12:00:00Z) nor an age (2h)")
    if (ms := milliseconds(parsed)) < 0:
        # ListOffsets takes -1 for the end of a log, and -2 for its beginning.
        raise ConfigError(f"{option} {text!r} is before 1970, where Kafka's timestamps begin")
    return ms


_SHOWN_WORDS = 5
"""Characters of a secret's word that may be shown: Basic, or a number."""


def without(secrets: Iterable[str], text: str) -> str:
    """The text without these secrets and their longer words, in capitals or not: a server that quotes a login may leave
    out its scheme.
    """
    whole = set(filter(None, secrets))
    words = {word for secret in whole for word in secret.split() if len(word) > _SHOWN_WORDS}
    if not whole:
        return text
    longest_first = sorted(whole | words, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), "(not shown)", text, flags=re.IGNORECASE)


def span(option: str, text: str) -> float:
    """Seconds in "90s", "30m", "2h", "7d". Raises `ConfigError` naming the `option`."""
    found = _AGO.fullmatch(text)
    if found is None or int(found["count"]) == 0:
        raise ConfigError(f"{option} {text!r} is no length of time; write it such as 90s, 30m, 2h or 7d")
    return int(found["count"]) * _UNIT_MS[found["unit"]] / 1000


def check_confirmable(*, yes: bool, as_json: bool) -> None:
    """Raise `ConfigError` where a person is to be asked and nobody can be."""
    if yes:
        return
    if as_json:
        raise ConfigError("--json is for programs, which cannot be asked: look first, then say --yes")
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for a confirmation: look first, then say --yes")


def topic_id_text(topic_id: UUID | None) -> str:
    """A topic's id as Kafka's own tools write it; empty where it is not known."""
    return "" if topic_id is None else base64.b64encode(topic_id.bytes).decode().rstrip("=")


def topic_id_bytes(text: str) -> bytes:
    """The sixteen bytes of what `topic_id_text` has written; none where the id is not known."""
    return base64.b64decode(text + "=" * (-len(text) % 4))
