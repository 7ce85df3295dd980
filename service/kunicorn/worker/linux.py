"""Linux facilities of template and workers: dying with the supervisor, or at once, process names, threads and sockets,
memory. Small, as it is part of every start.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_HOP_SECONDS = 0.0002
_STDERR = 2
MORE_THREADS = "raise the limit of processes (the container's pids limit, ulimit -u), which counts threads, too"
"""What to do where no thread can be started."""


def _prctl(option: int, argument: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def die_with(supervisor: int) -> bool:
    """Have the kernel kill this process when its parent goes; False if the parent is not `supervisor` any more.

    Checked after it was asked for: a parent that went before would never be missed.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == supervisor


def wait_for_parent(supervisor: int, hop: int) -> bool:
    """Wait until the forking `hop` has gone and `supervisor` is the parent; False if it is somebody else.

    PDEATHSIG belongs to the parent of the moment: set before the hop has gone, it would fire right then.
    """
    while (parent := os.getppid()) == hop:
        time.sleep(_HOP_SECONDS)
    return parent == supervisor


def exit_now(status: int, line: bytes) -> NoReturn:
    """End this process now, whatever its threads are in. Any thread. Raises nothing, and waits for nobody who reads
    stderr, but where another process fills that between the look and the write.

    The end of the line, as much as fits into a pipe at once, goes to stderr if that takes it now: of one that is full,
    or that nobody reads any more, a write would block or fail, and the process would live on without the thread that it
    cannot do without.
    """
    try:
        poll = select.poll()
        poll.register(_STDERR, select.POLLOUT)
        # Where the reader is gone, poll answers as well: with an error, and often with POLLOUT beside it.
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            os.write(_STDERR, line[-select.PIPE_BUF :])
    finally:
        os._exit(status)


def name_process(name: str) -> None:
    """Set the command that `ps` and `top` show; the kernel keeps fifteen bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def threads() -> int:
    """Threads of this process, those started by C libraries included."""
    return len(os.listdir("/proc/self/task"))


def sockets() -> frozenset[str]:
    """The sockets this process holds, as the kernel names them."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # The directory listing's own descriptor.
        if target.startswith("socket:"):
            found.add(target)
    return frozenset(found)


def stdin_from_nowhere() -> None:
    """Replace standard input by /dev/null: a handler that reads it shall get an end of file rather than wait."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


class ResidentMemory:
    """RSS of this process, cheap enough for every Ping."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def bytes(self) -> int:
        """Resident pages, in bytes."""
        return int(os.pread(self._fd, 128, 0).split()[1]) * self._page
