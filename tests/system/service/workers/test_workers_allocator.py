"""The memory allocator of a service's workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kunicorn.allocator import is_loaded
from tests.deploy.tools import tools
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]


def test_workers_and_their_successors_have_the_allocator_and_the_supervisor_has_not(scene: SceneMaker) -> None:
    jemalloc = tools().jemalloc
    stage = scene(2, workers=2, settings={"workers": {"allocator": jemalloc}})
    member = stage.members.start()
    member.wait_running(2)
    assert not is_loaded(jemalloc, member.pid)
    assert all(is_loaded(jemalloc, worker["pid"]) for worker in member.workers())
    member.wait_said(f"allocator={jemalloc}")


def test_a_library_that_cannot_be_preloaded_is_told_and_records_are_handled_all_the_same(
    scene: SceneMaker, tmp_path: Path
) -> None:
    library = tmp_path / "libnonsense.so"
    library.write_text("not a library")
    stage = scene(1, workers=1, settings={"workers": {"allocator": str(library)}})
    member = stage.members.start()
    member.wait_running(1)
    stage.send(0, "v")
    stage.wait_handled(0, 0, member)
    member.wait_said(f"{library} could not be preloaded")
    member.wait_said("workers go on with the C library's memory allocator")
