"""Handlers that do what the record's value says: `b"sleep 15"`, `b"raise"`, `b"die"`; anything else is just audited.

A second word counts seconds. With a last word `once` the record behaves so only the first time it is handled: the
marks in `MARKS_DIRECTORY` (a directory) outlive the process that dies of it. Marks tell the test what has happened:
`<partition>@<offset> <what>`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kunicorn import Record, Wait
from tests.system.handlers.lethal import audit_log

_CHILD = [sys.executable, "-S", "-c", "pass"]


class NoSuchCustomer(Exception):
    """What the marked records raise."""


def handle(record: Record) -> None:
    """Handle one record."""
    audit_log().begin([record])
    _behave(record)
    audit_log().end([record])


def handle_batch(records: Sequence[Record]) -> None:
    """Handle a batch; it behaves as each of its records says."""
    audit_log().begin(records)
    for record in records:
        _behave(record)
    audit_log().end(records)


def handle_arrow(rows: Any) -> None:
    """Handle a batch of columns, likewise."""
    # Here, as most tests need no Arrow.
    from kunicorn.handler.rows import Rows

    handle_batch([Record.of(message) for message in Rows(rows)])


async def handle_async(record: Record) -> None:
    """Handle one record as a coroutine; one that sleeps leaves the loop to others."""
    audit_log().begin([record])
    what, seconds = _told(record)
    if what == "sleep":
        await _sleep_async(record, seconds)
    elif what in BEHAVIOURS:
        BEHAVIOURS[what](record, seconds)
    audit_log().end([record])


def _behave(record: Record) -> None:
    what, seconds = _told(record)
    if what in BEHAVIOURS:
        BEHAVIOURS[what](record, seconds)


def _told(record: Record) -> tuple[str, float]:
    """What the record wants done, and its seconds; nothing from the second time on if it says `once`."""
    words = (record.value or b"").decode(errors="replace").split()
    if not words or (words[-1] == "once" and words[0] in BEHAVIOURS and not mark(record, "first time")):
        return "", 0.0
    return words[0], next((float(word) for word in words[1:] if word.replace(".", "", 1).isdigit()), 0.0)


def mark(record: Record, what: str) -> bool:
    """Leave a mark for the test; False if it was there already."""
    path = Path(os.environ["MARKS_DIRECTORY"], f"{record.partition}@{record.offset} {what}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _is_open() -> bool:
    return Path(os.environ["MARKS_DIRECTORY"], "open").exists()


def _sleep(record: Record, seconds: float) -> None:
    mark(record, "sleeps")
    try:
        time.sleep(seconds)
    finally:
        mark(record, "leaves")


def _hold(record: Record, seconds: float) -> None:
    """Sleep until the test leaves the mark, or for so long."""
    mark(record, "sleeps")
    until = time.monotonic() + seconds
    while not _is_open() and time.monotonic() < until:
        time.sleep(0.02)
    mark(record, "leaves")


async def _sleep_async(record: Record, seconds: float) -> None:
    mark(record, "sleeps")
    try:
        await asyncio.sleep(seconds)
    finally:
        mark(record, "leaves")


def _cling(record: Record, seconds: float) -> None:
    """Sleep on, whatever is raised."""
    until = time.monotonic() + seconds
    mark(record, "sleeps")
    while (left := until - time.monotonic()) > 0:
        try:
            time.sleep(left)
        except BaseException:
            mark(record, "clings")


def _block(record: Record, seconds: float) -> None:
    """Sleep in C without letting go of the GIL, deaf to what would interrupt it, as some client libraries do: no
    Python code of the process runs meanwhile."""
    mark(record, "sleeps")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ctypes.PyDLL(None).sleep(int(seconds))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


def _raise(record: Record, seconds: float) -> None:
    raise NoSuchCustomer(f"no customer in {record.partition}@{record.offset}")


def _garble(record: Record, seconds: float) -> None:
    """With half an emoji, as JSON gives it whose text was cut."""
    raise NoSuchCustomer(json.loads('"no customer Anna \\ud83d"'))


def _wait(record: Record, seconds: float) -> None:
    """Have the record wait, again and again, until the test leaves the mark."""
    if not _is_open():
        raise Wait(seconds, "the shop is closed")


def _refuse(record: Record, seconds: float) -> None:
    """What it calls is away until the test leaves the mark."""
    if not _is_open():
        raise ConnectionRefusedError("the shop is closed")


def _log(record: Record, seconds: float) -> None:
    logging.getLogger("shop").info("looked at it")


def _exit(record: Record, seconds: float) -> None:
    sys.exit(7)


def _interrupt(record: Record, seconds: float) -> None:
    raise KeyboardInterrupt


def _die(record: Record, seconds: float) -> None:
    os._exit(9)


def _crash(record: Record, seconds: float) -> None:
    """What a null pointer in an extension module does; not `raise_signal`, as nothing of Python runs then."""
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def _spawn(record: Record, seconds: float) -> None:
    """Start a child and never wait for it."""
    child = subprocess.Popen(_CHILD, stdin=subprocess.DEVNULL)
    # Popen's own finalizer would wait for it after all.
    child.returncode = 0
    mark(record, "spawned")


def _orphan(record: Record, seconds: float) -> None:
    """A daemon's double fork: the grandchild's parent is gone before it ends."""
    subprocess.run(["/bin/sh", "-c", f"sleep {seconds} &"], check=True, stdin=subprocess.DEVNULL)
    mark(record, "orphaned")


def _linger(record: Record, seconds: float) -> None:
    """Start a child that goes on, in the worker's process group: by a double fork, as daemons are."""
    _leave_behind(record, "lingers")


def _escape(record: Record, seconds: float) -> None:
    """Likewise, in a session of its own."""
    _leave_behind(record, "escapes", start_new_session=True)


def _leave_behind(record: Record, how: str, **options: Any) -> None:
    shell = "sleep 600 >/dev/null 2>&1 & echo $!"
    command = ["/bin/sh", "-c", shell]
    told = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)
    mark(record, f"{how} as {int(told.stdout)}")


BEHAVIOURS: Mapping[str, Callable[[Record, float], None]] = {
    "sleep": _sleep,
    "hold": _hold,
    "cling": _cling,
    "block": _block,
    "raise": _raise,
    "wait": _wait,
    "refuse": _refuse,
    "garble": _garble,
    "log": _log,
    "exit": _exit,
    "interrupt": _interrupt,
    "die": _die,
    "crash": _crash,
    "spawn": _spawn,
    "orphan": _orphan,
    "linger": _linger,
    "escape": _escape,
}
