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


def wait_until(condition: Callable[[], T | None], what: str, within: float = PATIENCE, every: float = 0.02) -> T:
    """Call `condition` until it returns something true, and return that.

    After `within` seconds it raises `AssertionError` with `what` was waited for and the last answer.
    Exceptions of the condition propagate at once. Blocks.
    """
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s in vain for {what}; last answer: {answer!r}")
        time.sleep(every)
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
