"""How much a call has to do, counted in lines: what grows with the input, the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def counted(call: Callable[[], T]) -> tuple[int, T]:
    """Number of lines that were run, those of what was called included; and the result."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return lines, result
