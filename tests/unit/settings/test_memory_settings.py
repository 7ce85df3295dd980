"""How much memory a container gets, and whether the workers fit in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.settings import WorkerSettings
from kunicorn.settings.workers import memory_limit, memory_warnings, overcommitted
from tests.unit.settings.files import cgroup_files

MB = 1024 * 1024


def machine(tmp_path: Path, membership: str, files: dict[str, str]) -> int | None:
    """What a machine with these cgroup files says."""
    return memory_limit(*cgroup_files(tmp_path, membership, files))


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path) is None


def test_a_limit_of_cgroup_v2_is_found(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n", {"memory.max": "536870912\n"}) == 512 * MB


def test_the_tightest_limit_of_all_parents_counts(tmp_path: Path) -> None:
    files = {"a/b/memory.max": "max\n", "a/memory.max": "1048576\n", "memory.max": "2097152\n"}
    assert machine(tmp_path, "0::/a/b\n", files) == MB


def test_a_limit_of_cgroup_v1_is_found(tmp_path: Path) -> None:
    files = {"memory/pod/memory.limit_in_bytes": "1048576\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert machine(tmp_path, "5:memory:/pod\n4:cpu,cpuacct:/pod\n", files) == MB


def test_no_limit_of_cgroup_v1_is_none(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert machine(tmp_path, "5:memory:/\n", files) is None


def test_nonsense_is_no_limit(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n", {"memory.max": "plenty\n"}) is None


def test_workers_beyond_the_limit_are_told_with_both_numbers() -> None:
    workers = WorkerSettings(count=4, memory_per_worker_mb=256)
    assert overcommitted(workers, 1024 * MB) is None
    assert overcommitted(workers, None) is None
    warning = overcommitted(workers, 512 * MB)
    assert warning is not None
    assert "may take 1024 MB" in warning
    assert "limit is 512 MB" in warning


def warnings(tmp_path: Path, membership: str, files: dict[str, str]) -> list[str]:
    return memory_warnings(WorkerSettings(count=1), *cgroup_files(tmp_path, membership, files))


@pytest.mark.parametrize("folder", ["a/b/", "a/"])
def test_a_cgroup_that_the_kernel_ends_as_a_whole_is_told_with_what_to_set(tmp_path: Path, folder: str) -> None:
    (warning,) = warnings(tmp_path, "0::/a/b\n", {"a/b/memory.oom.group": "0\n", f"{folder}memory.oom.group": "1\n"})
    assert "memory.oom.group = 1" in warning
    assert "singleProcessOOMKill" in warning


def test_one_of_which_it_ends_a_worker_alone_is_not(tmp_path: Path) -> None:
    assert warnings(tmp_path, "0::/a\n", {"a/memory.oom.group": "0\n", "memory.max": "max\n"}) == []


def test_nor_is_one_of_cgroup_v1_or_none_at_all(tmp_path: Path) -> None:
    files = {"memory/pod/memory.limit_in_bytes": "1073741824\n", "memory/pod/memory.oom.group": "1\n"}
    assert warnings(tmp_path, "5:memory:/pod\n", files) == []
    assert memory_warnings(WorkerSettings(count=1), tmp_path / "none", tmp_path) == []


def test_workers_that_are_too_many_for_it_are_told_as_well(tmp_path: Path) -> None:
    files = {"memory.max": f"{100 * MB}\n", "memory.oom.group": "1\n"}
    assert ["may take 256 MB" in each for each in warnings(tmp_path, "0::/\n", files)] == [True, False]
