"""What handlers under test import: where the running test looks for their traces, and how they leave some."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

HERE = Path(os.environ["KUNICORN_TEST_TRACES"])
"""See `rig.TemplateProcess`."""


@cache
def _seen() -> int:
    # Not at import: all tests of a module have their workers from one import, and each a file of its own.
    return os.open(HERE / "seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(text: str) -> None:
    """A line that `traffic.seen` finds."""
    # 32 bytes divide a page, and SIGKILL cuts a write between pages: a short line is whole or absent.
    line = text.encode()
    os.write(_seen(), line + b" " * (-(len(line) + 1) % 32) + b"\n")
