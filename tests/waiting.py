"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds. A process takes ten to import on a busy machine, and a broker that is away five for each request to it: who
waits for something in less says what a quiet machine does."""
_RAREST = 0.25
"""Seconds between two looks at what takes long."""


def wait_until(condition: Callable[[], T | None], what: str, within: float = PATIENCE, every: float = 0.02) -> T:
    """Call `condition` until it returns something true, and return that.

    It is called every so many seconds, and the longer it takes the more rarely, as a look may cost both sides
    milliseconds; `every=0` is for one that blocks itself. After `within` seconds it raises `AssertionError` with `what`
    was waited for and the last answer. Exceptions of the condition propagate at once. Blocks.
    """
    began = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - began
        if waited > within:
            raise AssertionError(f"waited {within:g} s in vain for {what}; last answer: {answer!r}")
        # No wait becomes longer by more than a twentieth.
        time.sleep(max(every, min(_RAREST, waited / 20)) if every else 0)
    return answer


def runs(pid: int) -> bool:
    """Whether the process exists and is more than an exit status that nobody has asked for."""
    return _state(pid) not in ("", "Z")


def sleeps(pid: int) -> bool:
    """Whether the process's main thread waits for something."""
    return _state(pid) == "S"


def _state(pid: int) -> str:
    """As proc(5) has it; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # The latter of one that ends while it is read.
        return ""
