"""CPU time of processes and of what they have started, by /proc: says what a neighbour's noise hides in rates."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Fields of /proc/PID/stat behind the command's name; see proc(5)."""


def cpu_ns_of_family(root: int) -> int:
    """Of that process, of its children and of theirs, as far as they live; in steps of a clock tick (10 ms)."""
    parents, ticks = defaultdict[int, list[int]](list), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[int(fields[_PARENT])].append(pid)
        ticks[pid] = int(fields[_USER]) + int(fields[_SYSTEM])
    family = [root]
    for pid in family:
        family += parents[pid]
    return sum(ticks.get(pid, 0) for pid in family) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
