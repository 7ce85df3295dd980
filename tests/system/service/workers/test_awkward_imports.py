"""Handlers whose import is awkward: a thread that does not survive a fork, seconds that nobody may wait for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import procfs
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
IMPORT_SECONDS = 8


def test_a_handler_that_starts_a_thread_at_import_is_imported_by_every_worker_after_the_fork(
    scene: SceneMaker,
) -> None:
    stage = scene(4, workers=2, handler="threaded:handle")
    member = stage.members.start()
    member.wait_running(4)
    for partition in range(4):
        stage.send(partition, "a", "b")
        stage.wait_handled(partition, 1, member)
    member.wait_said("starts 1 threads, which do not survive a fork")
    victim = member.workers()[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    for partition in range(4):
        stage.send(partition, "c")
        stage.wait_handled(partition, 2, member)
    assert member.stop() == 0
    report = stage.judge({victim})
    assert report.holds, report


def test_a_worker_whose_module_is_being_replaced_ends_nothing_and_is_back_when_the_module_is_whole(
    scene: SceneMaker, tmp_path: Path
) -> None:
    module = tmp_path / "threaded_shop.py"
    module.write_text("from tests.system.handlers.threaded import handle\n")
    stage = scene(4, settings={"handler": {"entrypoint": "threaded_shop:handle"}})
    member = stage.members.start()
    member.wait_running(4)
    module.write_text("from tests.system.handlers.threaded import handle_order\n")
    victim = member.workers()[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    for partition in range(4):
        stage.send(partition, "by the other worker")
        stage.wait_handled(partition, 0, member)
    member.wait_said("cannot import name 'handle_order'")
    module.write_text("from tests.system.handlers.threaded import handle\n")
    member.wait(lambda: {w["partitions"] for w in member.workers()} == {2}, "both to have partitions again")
    assert member.stop() == 0
    assert stage.judge({victim}).holds


@pytest.mark.long
def test_a_template_that_takes_long_to_import_again_disturbs_no_heartbeat(scene: SceneMaker) -> None:
    """Invariant 5: heartbeats never wait for a fork."""
    stage = scene(2, workers=1, handler="slow_import:handle", env={"IMPORT_SECONDS": str(IMPORT_SECONDS)})
    member = stage.members.start()
    member.wait_running(2)
    generation, rebalances = member.generation(), len(stage.rebalances())
    (template,) = [child.pid for child in procfs.children(member.pid) if child.name == "kunicorn-tmpl"]
    (worker,) = [w["pid"] for w in member.workers()]
    os.kill(template, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    member.wait(lambda: not member.workers(), "the worker's death to be seen")
    ages: list[float] = []

    def imported() -> bool:
        status = member.status()
        ages.append(status["group"]["heartbeat_age"])
        return bool(status["template"] == "ready" and member.workers())

    member.wait(imported, "the import to be over")
    assert len(ages) > 20, "the supervisor answered all the while"
    assert max(ages) < IMPORT_SECONDS / 2, "heartbeats, a second apart, did not wait for the import"
    member.wait_running(2)
    stage.send(0, "by the successor")
    stage.wait_handled(0, 0, member)
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    assert member.stop() == 0
    assert stage.judge({worker}).holds
