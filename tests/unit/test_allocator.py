"""Which library is preloaded, and whose environment tells of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kunicorn.allocator import AUTO, NAME, PRELOAD, SYSTEM, TUNING, is_loaded, library_of, with_library, without_library

JEMALLOC = "/usr/lib/libjemalloc.so.2"


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """Directories of libraries, of which the second has jemalloc."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second" / NAME).touch()
    return [str(tmp_path / "first"), str(tmp_path / "second")]


def test_auto_takes_jemalloc_where_it_is_installed(installed: list[str]) -> None:
    assert library_of(AUTO, {}, installed) == f"{installed[1]}/{NAME}"
    assert library_of(AUTO, {}, installed[:1]) == ""


def test_auto_leaves_alone_what_somebody_preloads_already(installed: list[str]) -> None:
    assert library_of(AUTO, {PRELOAD: "libtcmalloc.so.4"}, installed) == ""
    assert library_of(AUTO, {PRELOAD: ""}, installed) != ""


def test_the_system_allocator_and_a_path_are_what_they_say(installed: list[str]) -> None:
    assert library_of(SYSTEM, {}, installed) == ""
    assert library_of(JEMALLOC, {PRELOAD: "libtcmalloc.so.4"}, installed) == JEMALLOC


@pytest.mark.parametrize(
    "before",
    [{}, {PRELOAD: "libfaketime.so.1"}, {PRELOAD: "a.so:b.so", "HOME": "/root"}, {TUNING: "dirty_decay_ms:0"}],
)
def test_what_was_preloaded_before_comes_behind_it_and_is_all_that_its_own_programs_see(before: dict[str, str]) -> None:
    preloaded = with_library(before, JEMALLOC)
    assert preloaded[PRELOAD].split(":") == [JEMALLOC, *filter(None, before.get(PRELOAD, "").split(":"))]
    assert without_library(preloaded, JEMALLOC) == before


def test_jemalloc_is_tuned_unless_somebody_has_done_that() -> None:
    assert "oversize_threshold:0" in with_library({}, JEMALLOC)[TUNING]
    assert with_library({TUNING: "narenas:1"}, JEMALLOC)[TUNING] == "narenas:1"
    assert TUNING not in with_library({}, "/usr/lib/libmimalloc.so.2")


def test_no_library_changes_nothing() -> None:
    assert with_library({"HOME": "/root"}, "") == {"HOME": "/root"}


def test_a_process_is_looked_at_for_what_it_has_loaded() -> None:
    (libc,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line}
    assert is_loaded(libc, os.getpid())
    assert not is_loaded(JEMALLOC + ".absent", os.getpid())
