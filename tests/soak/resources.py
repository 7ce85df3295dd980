"""What members take of the machine while a leg lasts, as sums from which a regression line can be had with its error.

A process is looked at when it has grown into its work (`GROWN`). The line of a leg goes through the points of each of
its processes less that process's means, so that processes that begin higher make no slope. What is kept is small, and
the sums of many legs make one line (`Line.of`).
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from kunicorn.ipc.clock import NANOSECONDS, now_ns
from tests.system import procfs
from tests.system.members import MemberProcess

EVERY = 2.0
"""Seconds between two looks."""
GROWN = {False: 60.0, True: 600.0}
"""Seconds of a process's life that do not count, by whether the leg lasts an hour."""
_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 1 << 20
QUANTITIES = ("memory MiB", "descriptors", "threads", "CPU %")
ROLES = ("supervisor", "worker")


_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""What an error is multiplied with that few legs tell, two of them first, to be that of 95 in 100 (Student's t)."""


class Sums(NamedTuple):
    """Of one leg: times in hours, each less its process's mean. Sums add up."""

    samples: int
    tt: float
    tx: float
    mean: float


@dataclass(frozen=True)
class Line:
    """What a quantity gains in an hour, with its error: that of legs, as samples of one process are not independent."""

    slope: float
    error: float
    mean: float
    samples: int
    legs: int

    @property
    def margin(self) -> float:
        """In 95 of 100 cases the slope is no farther from the true one."""
        return self.error * _STUDENT[min(self.legs - 1, len(_STUDENT)) - 1]

    @classmethod
    def of(cls, legs: Iterable[Sums]) -> Line | None:
        """None where there is nothing to say: fewer than two legs with points."""
        known = [each for each in legs if each.tt > 0]
        if len(known) < 2:
            return None
        tt = sum(each.tt for each in known)
        slope = sum(each.tx for each in known) / tt
        samples = sum(each.samples for each in known)
        spread = sum((each.tx - slope * each.tt) ** 2 for each in known) * len(known) / (len(known) - 1)
        mean = sum(each.mean * each.samples for each in known) / samples
        return cls(slope, sqrt(spread) / tt, mean, samples, len(known))


class Points:
    """What was seen of one role and quantity, by process."""

    def __init__(self) -> None:
        self._of: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)

    def add(self, pid: int, hours: float, value: float) -> None:
        """One look."""
        self._of[pid].append((hours, value))

    def sums(self) -> Sums:
        """Of all processes that were seen twice."""
        samples, tt, tx, total = 0, 0.0, 0.0, 0.0
        for points in self._of.values():
            if len(points) < 2:
                continue
            middle = sum(hours for hours, _ in points) / len(points)
            mean = sum(value for _, value in points) / len(points)
            samples += len(points)
            total += mean * len(points)
            tt += sum((hours - middle) ** 2 for hours, _ in points)
            tx += sum((hours - middle) * (value - mean) for hours, value in points)
        return Sums(samples, tt, tx, total / samples if samples else 0.0)


class Sampler:
    """A thread that looks at the living members until it is stopped."""

    def __init__(self, members: Sequence[MemberProcess], grown: float) -> None:
        """`members`: those that live, a list that others change. `grown`: seconds of each process's life that do not
        count."""
        self._members = members
        self._grown_ns = grown * NANOSECONDS
        self._points: defaultdict[tuple[str, str], Points] = defaultdict(Points)
        self._born: dict[int, int] = {}
        self._cpu: dict[int, tuple[int, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def sums(self) -> dict[str, dict[str, Sums]]:
        """By role and quantity."""
        return {role: {name: self._points[role, name].sums() for name in QUANTITIES} for role in ROLES}

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            for member in list(self._members):
                for process in procfs.living_in_session(member.pid):
                    if process.name == "kunicorn-tmpl":
                        continue
                    role = ROLES[process.pid != member.pid]
                    try:
                        self._look(role, process.pid)
                    except (FileNotFoundError, ProcessLookupError, IndexError):
                        continue  # It has ended meanwhile.

    def _look(self, role: str, pid: int) -> None:
        now = now_ns()
        born = self._born.setdefault(pid, now)
        busy, threads = _busy_and_threads(pid)
        before, then = self._cpu.get(pid, (now, busy))
        self._cpu[pid] = now, busy
        if now - born < self._grown_ns or now == before:
            return
        seen: Mapping[str, Callable[[], float]] = {
            "memory MiB": lambda: procfs.resident_bytes(pid) / _MEBIBYTE,
            "descriptors": lambda: len(os.listdir(f"/proc/{pid}/fd")),
            "threads": lambda: threads,
            "CPU %": lambda: 100 * (busy - then) / ((now - before) / NANOSECONDS),
        }
        for name, value in seen.items():
            self._points[role, name].add(pid, now / NANOSECONDS / 3600, value())


def _busy_and_threads(pid: int) -> tuple[float, int]:
    """Seconds of processor time so far, and how many threads; `proc(5)`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[17])
