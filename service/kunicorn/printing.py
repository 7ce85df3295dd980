"""What user code prints: whole lines, as soon as they are whole."""

from __future__ import annotations

import io
import sys


def print_line_by_line() -> None:
    """Caller: a process that runs user code, first thing; its forks inherit it.

    `print(a, b)` would else be a write for each part where PYTHONUNBUFFERED is set, and lines of other processes would
    come between them; without it, into a pipe, lines would wait until there are many.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
