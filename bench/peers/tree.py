"""A process and all that descends from it: CPU time and memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime, cstime behind the command's name: the last two are of children that were waited for."""


def members(root: int) -> Iterator[int]:
    """Living processes, parents first."""
    yield root
    try:
        tasks = list(Path(f"/proc/{root}/task").iterdir())
        children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield from members(child)


def cpu_seconds(root: int) -> float:
    """Of the whole tree so far, the dead included."""
    return sum(map(own_cpu_seconds, members(root)))


def own_cpu_seconds(pid: int) -> float:
    """Of the process and of the children it waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[_CPU_FIELDS])) * _TICK


def exact_cpu_seconds(pid: int) -> float:
    """Of the process itself so far, all its threads, to the nanosecond; 0 if it is gone. Ticks of ten milliseconds are
    more than a supervisor takes in a second."""
    return sum(spent for _, _, spent in threads(pid)) / 1e9


def threads(pid: int) -> Iterator[tuple[int, str, int]]:
    """Of each living thread of the process: number, name, CPU nanoseconds so far."""
    for task in _tasks(pid):
        try:
            yield int(task.name), (task / "comm").read_text().rstrip(), int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # That thread has ended since.


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def memory_mb(root: int) -> float:
    """Of the whole tree, pages that several processes share counted once (PSS)."""
    return sum(map(own_memory_mb, members(root)))


def own_memory_mb(pid: int) -> float:
    """Of one process, its part of what it shares with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def kill(pids: Iterator[int] | list[int], patience: float = 2.0) -> None:
    """SIGKILL to those of these processes that are still there after a while."""
    left, deadline = list(pids), time.monotonic() + patience
    while (left := list(filter(_lives, left))) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
