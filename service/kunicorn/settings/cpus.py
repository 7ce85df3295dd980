"""How many CPUs this process may really use: the smallest of machine, affinity and cgroup quota.

`os.cpu_count()` names the machine's; in a container limited to two CPUs of 64 it would start 64 workers that
throttle one another until heartbeats are late.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from kunicorn.settings.cgroups import UNLIMITED, ancestry, lines


def available_cpus(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs worth a worker each, at least 1. A quota counts rounded up: 1.5 CPUs feed two workers.

    Files that are missing or say nonsense count as no limit. Reads a few small files; does not block.
    """
    limits = [float(len(os.sched_getaffinity(0))), *_quotas(proc / "self" / "cgroup", cgroups)]
    return max(1, math.ceil(min(limits)))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """The quota of every cgroup from ours up to the root, in CPUs: a parent's limit binds its children."""
    for line in lines(membership):
        hierarchy, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if hierarchy == "0":
            for folder in ancestry(cgroups, name):
                yield from _quota_v2(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for mount in (cgroups / controllers, cgroups / "cpu"):
                for folder in ancestry(mount, name):
                    yield from _quota_v1(folder)


def _quota_v2(file: Path) -> Iterator[float]:
    """`cpu.max`: quota (or "max") and period in microseconds."""
    for line in lines(file):
        quota, _, period = line.partition(" ")
        if quota != UNLIMITED:
            yield from _ratio(quota, period)


def _quota_v1(folder: Path) -> Iterator[float]:
    """`cpu.cfs_quota_us` (−1: no limit) and `cpu.cfs_period_us`."""
    for quota in lines(folder / "cpu.cfs_quota_us"):
        for period in lines(folder / "cpu.cfs_period_us"):
            yield from _ratio(quota, period)


def _ratio(quota: str, period: str) -> Iterator[float]:
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return
    if cpus > 0:
        yield cpus
