"""The section [workers], and the machine's limits for them: CPUs and memory by affinity and by the kernel's control
groups.

`os.cpu_count()` names the machine's CPUs; in a container limited to two of 64 it would start 64 workers that throttle
one another until heartbeats are late. Files of control groups that are missing or malformed count as no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from pydantic import Field, model_validator

from kunicorn.allocator import AUTO
from kunicorn.linux import usable_cpus
from kunicorn.settings.checks import Count, Section
from kunicorn.settings.rules import WORKER_RULES, check

UNLIMITED = "max"


def ancestry(mount: Path, name: str) -> Iterator[Path]:
    """Directories of the cgroup `name` and of those above it, up to the mount."""
    # In a cgroup namespace of its own a container sees "/"; without one, a path of the host that is not mounted
    # here: then only the mount itself exists, and it is the container's own group.
    own = PurePosixPath(name.strip().lstrip("/"))
    if ".." not in own.parts:
        for step in (own, *own.parents):
            yield mount / step


def lines(file: Path) -> list[str]:
    """Lines of the file; none where it cannot be read."""
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def available_cpus(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of CPUs this process may use, at least 1: the smallest of machine, affinity and cgroup quota.

    A quota counts rounded up: 1.5 CPUs feed two workers. Reads a few small files; does not block.
    """
    limits = [float(usable_cpus()), *_quotas(proc / "self" / "cgroup", cgroups)]
    return max(1, math.ceil(min(limits)))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Quota of every cgroup from ours up to the root, in CPUs: a parent's limit binds its children."""
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


class WorkerSettings(Section):
    """The processes that fetch and handle."""

    count: int = Field(
        default_factory=available_cpus,
        ge=1,
        le=1024,
        examples=[4],
        json_schema_extra={"default": "the CPUs this container may use (cgroup quota and affinity)"},
        description="Most workers; of those beyond the assigned partitions one is started, as a spare.",
    )
    memory_per_worker_mb: int = Field(
        256, ge=32, le=1_048_576, description="Memory to plan for each worker; sizes its fetch buffers."
    )
    allocator: str = Field(
        AUTO,
        min_length=1,
        examples=["auto", "system", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"],
        description="The memory allocator of workers: jemalloc where it is installed (auto), the C library's (system), "
        "or that of the library with this path. glibc's costs up to a third of a worker's records a second, as the "
        "client allocates in one thread what another one frees. Preloaded into workers, and into Spark's Python "
        "processes; an LD_PRELOAD that is there already is left alone by auto, and comes after a path.",
    )
    sharing: Literal["load", "count"] = Field(
        "load",
        description="How partitions are shared out over the workers: as many for each (count), and then by what they "
        "take of their workers' time (load): one after the other goes from the busiest worker to the idlest, where it "
        "pays. The group sees nothing of it.",
    )
    sharing_interval_ms: int = Field(
        5000,
        ge=100,
        le=3_600_000,
        description="With sharing = load: shortest time between two moves; one that was moved stays for six of them.",
    )
    sharing_gap_percent: int = Field(
        20,
        ge=5,
        le=95,
        description="With sharing = load: how far the busiest worker must be ahead of the idlest before one moves.",
    )
    max_crashes: Count = Field(
        2,
        description="After so many worker deaths with the same record in hand its partition halts, "
        "or the record goes the way that handler.on_failure says. Where others may be to blame as well, as many deaths "
        "single it out first.",
    )
    start_timeout_ms: int = Field(
        300_000,
        ge=1000,
        le=86_400_000,
        description="How long a worker may take until it is ready, its handler's setup included. One that takes longer "
        "is killed, its stacks logged, and started again. From five seconds on the others have its partitions. A "
        "reload whose import of the handler takes longer fails.",
    )
    max_records: Count | None = Field(
        None,
        examples=[1_000_000],
        description="A worker that has handled so many records is replaced, without a rebalance; for handlers that "
        "leak.",
    )
    max_age_s: Count | None = Field(
        None,
        examples=[86_400],
        description="A worker is replaced after so many seconds, or up to a tenth earlier, so that workers do not "
        "take turns all at once.",
    )
    max_rss_mb: int | None = Field(
        None,
        ge=32,
        le=1_048_576,
        examples=[512],
        description="A worker whose resident memory is larger is replaced; leave room above memory_per_worker_mb "
        "for what the handler itself needs.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        return check(self, "workers", WORKER_RULES)


_MB = 1024 * 1024
_NO_LIMIT_V1 = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page: nearly 2^63."""


def memory_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Tightest memory limit from our cgroup up to the root, in bytes; None without one. Reads a few small files."""
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


def _ends_as_a_whole(membership: Path, cgroups: Path) -> bool:
    """Whether the kernel ends all processes of our cgroup, or of one above it, when it is out of memory."""
    groups = (line.partition("::") for line in lines(membership))
    folders = (folder for hierarchy, _, name in groups if hierarchy == "0" for folder in ancestry(cgroups, name))
    return any(lines(folder / "memory.oom.group") == ["1"] for folder in folders)


def memory_warnings(
    workers: WorkerSettings, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> list[str]:
    """Warnings of what the kernel does to these workers for memory. Reads a few small files."""
    found = [overcommitted(workers, memory_limit(proc, cgroups))]
    if _ends_as_a_whole(proc / "self" / "cgroup", cgroups):
        found.append(
            "where one worker is out of memory the kernel ends this whole container (memory.oom.group = 1), and nobody "
            "counts the death for workers.max_crashes: set singleProcessOOMKill in the kubelet's configuration, or "
            "OOMPolicy=continue in systemd's unit, and workers.max_rss_mb"
        )
    return [warning for warning in found if warning is not None]


def overcommitted(workers: WorkerSettings, limit: int | None) -> str | None:
    """Warning where the kernel would kill for the memory of all workers together; None where they fit. Pure.

    While a worker is replaced there is one more; that one, and the supervisor, have to fit in what the plan leaves
    over.
    """
    planned = workers.count * workers.memory_per_worker_mb
    if limit is None or planned * _MB <= limit:
        return None
    return (
        f"{workers.count} workers of memory_per_worker_mb = {workers.memory_per_worker_mb} may take {planned} MB, but "
        f"this container's memory limit is {limit // _MB} MB: the kernel kills at that; lower workers.count or "
        f"workers.memory_per_worker_mb, or raise the limit"
    )
