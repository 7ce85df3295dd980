"""How a process ended, in the words that logs, `/status`, metrics' labels and commands share. Pure."""

from __future__ import annotations

import contextlib
import signal


def how_it_ended(code: int) -> str:
    """`exit 3`, `SIGKILL`, `signal 40` for one without a name; `code` as subprocess has it, negative for a signal."""
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
