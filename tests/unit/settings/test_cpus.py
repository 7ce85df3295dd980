"""How many workers a container gets: the machine's CPUs are the wrong answer wherever a quota is smaller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kunicorn.settings.workers import available_cpus
from tests.unit.settings.files import cgroup_files


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


def machine(tmp_path: Path, membership: str, files: dict[str, str]) -> int:
    """What a machine with these cgroup files says."""
    return available_cpus(*cgroup_files(tmp_path, membership, files))


def test_without_a_quota_the_affinity_counts(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n", {"cpu.max": "max 100000\n"}) == 64


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cpus(tmp_path, tmp_path) == 64


def test_a_quota_of_cgroup_v2_counts_rounded_up(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n"}) == 2


def test_a_parents_quota_binds_its_children(tmp_path: Path) -> None:
    files = {"pod/cpu.max": "300000 100000", "pod/container/cpu.max": "max 100000"}
    assert machine(tmp_path, "0::/pod/container\n", files) == 3


def test_a_quota_of_cgroup_v1_counts(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert machine(tmp_path, "4:cpu,cpuacct:/docker/abc\n3:memory:/\n", files) == 4


def test_no_quota_in_cgroup_v1_is_minus_one(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert machine(tmp_path, "1:cpu:/\n", files) == 64


def test_a_fraction_of_a_cpu_still_runs_one_worker(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/\n", {"cpu.max": "10000 100000"}) == 1


@pytest.mark.parametrize("nonsense", ["", "x y", "5", "100000 0", "-5 100000", "\x00"])
def test_nonsense_counts_as_no_limit(tmp_path: Path, nonsense: str) -> None:
    assert machine(tmp_path, "0::/\n", {"cpu.max": nonsense}) == 64


def test_a_path_of_the_host_that_is_not_mounted_here_is_not_left_for_elsewhere(tmp_path: Path) -> None:
    assert machine(tmp_path, "0::/../../other\n", {"cpu.max": "100000 100000"}) == 64
