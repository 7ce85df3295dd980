"""A handler that some records make hang, in the ways in which handlers do: `b"hang"`, `b"cling"`, `b"block"`,
`b"backtrack"`; anything else is just audited."""

from __future__ import annotations

import ctypes
import re
import threading

from kunicorn import Record
from tests.system.handlers.lethal import audit_log

_AMBIGUOUS = re.compile(r"(a|aa)+$")
_LONG = 600


def handle(record: Record) -> None:
    """Handle one record."""
    audit_log().begin([record])
    if behaviour := BEHAVIOURS.get(record.value or b""):
        behaviour()
    audit_log().end([record])


def _hang() -> None:
    """Wait for what never comes, as for a socket without a time-out; an exception ends it."""
    threading.Event().wait(_LONG)


def _cling() -> None:
    """Wait whatever is raised."""
    while True:
        try:
            _hang()
        except BaseException:
            continue


def _block() -> None:
    """Deadlock in C and keep the GIL: no Python thread of the process runs again, nor a signal handler."""
    mutex = ctypes.create_string_buffer(64)  # All zeroes: PTHREAD_MUTEX_INITIALIZER.
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def _backtrack() -> None:
    """Match for longer than anybody waits."""
    _AMBIGUOUS.match("a" * 90 + "b")


BEHAVIOURS = {b"hang": _hang, b"cling": _cling, b"block": _block, b"backtrack": _backtrack}
