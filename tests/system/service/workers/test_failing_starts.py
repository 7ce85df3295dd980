"""Workers that cannot start while others work: what they hold is not held up, nor handled again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.errors import ExitCode
from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
PARTITIONS = 4

CODE = """
import time
from pathlib import Path
from tests.system.handlers import audited

class Handler:
    def setup(self, worker, options):
        while Path({hangs!r}).exists():
            time.sleep(0.05)
        if Path({gone!r}).exists():
            raise ConnectionError("no database")

    def handle(self, record):
        audited.handle(record)
"""


class Database:
    """What `setup` connects to; files stand for its troubles."""

    def __init__(self, scene: SceneMaker, directory: Path) -> None:
        self.hangs, self.gone = directory / "hangs", directory / "gone"
        (directory / "shop.py").write_text(CODE.format(hangs=str(self.hangs), gone=str(self.gone)))
        settings = {"handler": {"entrypoint": "shop:Handler"}, "group": {"commit_interval_ms": 600_000}}
        self.stage = scene(PARTITIONS, workers=2, settings=settings)


@pytest.fixture
def database(scene: SceneMaker, tmp_path: Path) -> Database:
    return Database(scene, tmp_path)


def kill_one(member: MemberProcess) -> None:
    os.kill(member.workers()[0]["pid"], signal.SIGKILL)


def test_what_is_handled_is_committed_and_the_member_leaves_before_a_fatal_error_ends_the_service(
    database: Database,
) -> None:
    stage = database.stage
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    for partition in range(PARTITIONS):
        stage.send(partition, "x", "x", "x")
        stage.wait_handled(partition, 2, member)
    database.gone.touch()
    kill_one(member)
    assert member.exit_code() == ExitCode.HANDLER
    assert "ConnectionError: no database" in member.output()
    assert stage.committed() == dict.fromkeys(range(PARTITIONS), 3)
    (group,) = stage.kafka.admin().describe_consumer_groups([stage.topic]).values()
    assert group.result(60).members == [], "it has left: nobody waits for its session"
    assert not stage.judge().repeated


def test_a_worker_whose_setup_hangs_leaves_its_partitions_to_the_others_and_gets_them_when_it_is_ready(
    database: Database,
) -> None:
    stage = database.stage
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    database.hangs.touch()
    kill_one(member)
    for partition in range(PARTITIONS):
        stage.send(partition, "x")
        stage.wait_handled(partition, 0, member)
    member.wait_said("the others have its partitions until it is")
    assert any(worker["state"] == "starting" and worker["starting"] > 1 for worker in member.workers())
    assert member.get("/readyz")[0] == 200
    database.hangs.unlink()
    member.wait(lambda: {w["partitions"] for w in member.workers()} == {2}, "both to have partitions again")
    assert member.stop() == 0
    assert not stage.judge().repeated


def test_a_member_all_of_whose_workers_hang_in_setup_is_not_ready_and_each_is_killed_with_its_stacks(
    database: Database,
) -> None:
    database.hangs.touch()
    member = database.stage.members.start(settings={"workers": {"start_timeout_ms": 3000}})
    member.wait(lambda: "no worker is ready: worker" in member.get("/readyz")[1], "/readyz to say so")
    member.wait(lambda: "was not ready within 3 s (workers.start_timeout_ms)" in member.output(), "the limit")
    member.wait(lambda: any(worker["restarts"] for worker in member.status().get("workers", [])), "a death")
    member.wait(lambda: "in setup" in member.stacks(), "its stack")
    assert member.get("/livez")[0] == 200
    database.hangs.unlink()
    member.wait_running(PARTITIONS)
    assert member.get("/readyz")[0] == 200
    assert member.stop() == 0
