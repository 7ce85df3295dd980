"""The thread that writes a process's log lines, so that nobody else ever waits for whoever reads them.

A pipe whose reader has stopped blocks its writers once it is full; a supervisor that blocks misses heartbeats and
loses its partitions because of a log line.

1. `put` never blocks and may be called from a signal handler: `SimpleQueue` is reentrant, `Queue` would deadlock.
2. What does not fit is dropped and counted; the count is written as soon as something can be written again.
3. The thread is a daemon: blocked in write(2) it holds neither the GIL nor the interpreter's exit.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_MOST_LINES = 10_000
_LINES_A_WRITE = 256


class LogWriter:
    """One process's way out for log lines. `fd` may be in non-blocking mode; it stays open."""

    def __init__(self, fd: int, lost: Callable[[int], str], capacity: int = _MOST_LINES) -> None:
        """Start the thread. `lost(n)` words the line that says that n lines were dropped."""
        self._fd = fd
        self._lost = lost
        self._capacity = capacity
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._dropped = 0
        self._told = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were not written, since the start."""
        return self._dropped

    def put(self, line: str) -> None:
        """Queue one line, which ends without a newline. Never blocks."""
        if self._lines.qsize() >= self._capacity or self._closing.is_set():
            self._dropped += 1
        else:
            self._lines.put(line)

    def close(self, timeout: float) -> None:
        """Write what is queued and end the thread; gives up after `timeout` seconds. Later lines are dropped."""
        if not self._closing.is_set():
            self._closing.set()
            self._lines.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        open_for_more = True
        while open_for_more:
            lines = [self._lines.get()]
            try:
                while len(lines) < _LINES_A_WRITE:
                    lines.append(self._lines.get_nowait())
            except Empty:
                pass
            open_for_more = None not in lines
            self._write([line for line in lines if line is not None])

    def _write(self, lines: list[str]) -> None:
        if (dropped := self._dropped) > self._told:
            lines.append(self._lost(dropped - self._told))
            self._told = dropped
        data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        try:
            self._write_all(memoryview(data))
        except OSError:
            # Whoever read is gone (EPIPE, EIO on a closed terminal). Nobody is left to tell; the service goes on.
            self._dropped += len(lines)

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Somebody who shares the terminal or pipe has made it non-blocking, for all of us.
                self._wait_until_writable()

    def _wait_until_writable(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll()


def write_directly(fd: int, line: str) -> None:
    """One line without a thread, for the moments before there is one. May block; says nothing of failure."""
    try:
        os.write(fd, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        return
