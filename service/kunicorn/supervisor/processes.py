"""What Linux offers to know about child processes: subreaper, pidfds, and the orphans that end up with PID 1."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable

from kunicorn.exits import how_it_ended

_PR_SET_CHILD_SUBREAPER = 36
_REAP_INTERVAL = 1.0
_UNKNOWN = "exited, status unknown"


def become_subreaper() -> None:
    """Make orphaned descendants our children: a worker's parent is then the supervisor, whoever forked it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def watch_exit(pidfd: int, on_exit: Callable[[str], None], *, with_group: bool = False) -> None:
    """Call `on_exit` on the loop with how the process ended, once it has; the pidfd is closed then.

    `with_group`: it leads a process group, and whatever it leaves behind there is killed before `on_exit` is called.
    """
    loop = asyncio.get_running_loop()

    def reap() -> None:
        loop.remove_reader(pidfd)
        try:
            # Looked at first: once it is reaped, its pid, which is the group's id, may be somebody else's.
            if with_group and (left := os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)) is not None:
                kill_group(left.si_pid)
            how = _told(os.waitid(os.P_PIDFD, pidfd, os.WEXITED))
        except ChildProcessError:
            how = _UNKNOWN
        os.close(pidfd)
        on_exit(how)

    loop.add_reader(pidfd, reap)


def _told(info: os.waitid_result | None) -> str:
    if info is None:
        return _UNKNOWN
    return how_it_ended(info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)


def send_signal(pidfd: int, number: signal.Signals) -> None:
    """Signal the very process behind the pidfd, never a successor of its pid; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, number)


def kill_group(pid: int) -> None:
    """SIGKILL to a worker's process group, so that what its handler started goes with it.

    Caller: only while the worker itself is not reaped, as its pid, and with it the group's id, is ours until then.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reap_strangers(ours: Callable[[int], bool]) -> int:
    """Reap orphans that were reparented to us; return how many. Children whose pidfd we watch are left to it.

    `waitpid(-1)` would steal a worker's status, so each zombie is looked at (WNOWAIT) before it is taken.
    """
    reaped = 0
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if found is None or ours(found.si_pid):
            return reaped
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        reaped += 1


async def keep_reaping(ours: Callable[[int], bool]) -> None:
    """`reap_strangers` once a second, for ever, as PID 1 must."""
    while True:
        reap_strangers(ours)
        await asyncio.sleep(_REAP_INTERVAL)
