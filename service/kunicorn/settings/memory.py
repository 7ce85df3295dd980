"""How much memory this container may use, and whether the workers' plan fits in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kunicorn.settings.cgroups import UNLIMITED, ancestry, lines
from kunicorn.settings.workers import WorkerSettings

_MB = 1024 * 1024
_NO_LIMIT_V1 = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page: nearly 2^63."""


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of the tightest limit from our cgroup up to the root; None without one. Reads a few small files."""
    return min(_limits(proc / "self" / "cgroup", cgroups), default=None)


def _limits(membership: Path, cgroups: Path) -> Iterator[int]:
    for line in lines(membership):
        hierarchy, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if hierarchy == "0":
            for folder in ancestry(cgroups, name):
                yield from _limit(folder / "memory.max")
        elif "memory" in controllers.split(","):
            for folder in ancestry(cgroups / "memory", name):
                yield from _limit(folder / "memory.limit_in_bytes")


def _limit(file: Path) -> Iterator[int]:
    for line in lines(file):
        if line != UNLIMITED and line.isdigit() and int(line) < _NO_LIMIT_V1:
            yield int(line)


def overcommitted(workers: WorkerSettings, limit: int | None) -> str | None:
    """What to say where all workers together would be killed by the kernel; None where they fit. Pure.

    While a worker is replaced there is one more; that, and the supervisor, has to fit in what the plan leaves over.
    """
    planned = workers.count * workers.memory_per_worker_mb
    if limit is None or planned * _MB <= limit:
        return None
    return (
        f"{workers.count} workers of memory_per_worker_mb = {workers.memory_per_worker_mb} may take {planned} MB, but "
        f"this container's memory limit is {limit // _MB} MB: the kernel kills workers at that; lower workers.count or "
        f"workers.memory_per_worker_mb, or raise the limit"
    )
