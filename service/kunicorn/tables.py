"""What commands print: tables for people on a terminal or in a job's log, and JSON for programs. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_GAP = "  "
_NOTHING = "-"

Cell = str | int | float | None


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """One line a row below the head; numbers stand to the right, what is not known is a dash."""
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


def as_json_text(value: Any) -> str:
    """For a program, readable enough for a person."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def printable(text: str) -> str:
    """A terminal must not obey what somebody else's client or record says."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_SHOWN_BYTES = 4_000


def shown_bytes(value: bytes | None) -> str:
    """A key or a value for a person: text where it is UTF-8, cut where it is long."""
    if value is None:
        return "null"
    cut = f" … ({len(value)} bytes; --json has them all)" if len(value) > _SHOWN_BYTES else ""
    shown = value[:_SHOWN_BYTES]
    try:
        return printable(shown.decode(errors="strict" if not cut else "ignore")) + cut
    except UnicodeDecodeError:
        return repr(shown) + cut


def json_bytes(value: bytes | None) -> Any:
    """The same for a program: base64 where it is not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def duration(seconds: float | None) -> str | None:
    """Short, for a column: 0.4s, 12s, 3m05s, 2h07m, 4d03h."""
    if seconds is None:
        return None
    for size, name, smaller, rest in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{name}{int(seconds % size // smaller):02d}{rest}"
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
