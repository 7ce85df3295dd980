"""A person at the status page: pauses, resumes, recycles and drains a real member, over HTTP and with the token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.commands.desk import Desk
from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
TOKEN = "correct-horse-battery"


def act(member: MemberProcess, action: str, body: dict[str, Any] | None = None, token: str = TOKEN) -> tuple[int, str]:
    """Status code, and what was said."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{member.port}/actions/{action}",
        json.dumps(body or {}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)["said"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["said"]


def test_partitions_are_paused_and_resumed_workers_recycled_and_the_member_drained(scene: SceneMaker) -> None:
    stage = scene(4, handler="marked:handle", settings={"handler": {"max_attempts": 1}})
    member = stage.members.start(env={"KUNICORN_HTTP__TOKEN": TOKEN})
    stage.send(1, "first")
    member.wait_running(4)
    stage.wait_handled(1, 0, member)
    generation, topic = member.generation(), stage.topic
    assert act(member, "pause", token="wrong-horse-battery")[0] == 401

    stage.send(3, "raise once", "after")
    member.wait(lambda: member.partitions("halted"), "the partition to halt")
    assert act(member, "resume") == (200, f"1 partitions resumed: {topic}-3; 3 are not, being running")
    stage.wait_handled(3, 1, member)
    assert stage.handled(3) == [0, 1], "the record is tried again, once its cause is gone"

    assert act(member, "pause", {"partitions": [f"{topic}:1"]}) == (200, f"1 partitions paused: {topic}-1")
    member.wait(lambda: [p["grant"] for p in member.partitions("paused")] == [None], "its worker to let go of it")
    stage.send(1, "second")
    stage.send(2, "beside")
    stage.wait_handled(2, 0, member)
    assert stage.handled(1) == [0], "what is paused is not handled"
    assert [(p["partition"], p["reason"]) for p in member.partitions("paused")] == [(1, "paused by a person")]
    assert member.get("/livez")[0] == 200
    assert act(member, "resume", {"partitions": [f"{topic}:1"]})[0] == 200
    stage.wait_handled(1, 1, member)

    (pid,) = [w["pid"] for w in member.workers() if w["worker"] == 0]
    assert act(member, "recycle", {"worker": 0})[0] == 200
    member.wait(lambda: any(w["worker"] == 0 and w["pid"] != pid for w in member.workers()), "another process")
    assert member.generation() == generation, "invariant 6"
    assert act(member, "recycle", {"worker": 99})[0] == 409

    assert act(member, "drain")[0] == 200
    assert member.exit_code() == 0
    assert TOKEN not in member.output()
    assert "drain was asked for over HTTP by 127.0.0.1" in member.output()
    assert stage.judge().lost == ()


def command(member: MemberProcess, *arguments: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    """`kunicorn` with the member's own settings and token."""
    given = {"KUNICORN_HTTP__TOKEN": token} if token is not None else {}
    return subprocess.run(
        [sys.executable, "-m", "kunicorn", *arguments, "--config", str(member.config)],
        env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_on_the_services_own_machine_its_user_resumes_and_seeks_without_a_token(scene: SceneMaker) -> None:
    stage = scene(1, handler="marked:handle", settings={"handler": {"max_attempts": 1}})
    member, topic = stage.members.start(), stage.topic
    stage.send(0, "raise", "after")
    member.wait(lambda: member.partitions("halted"), "the partition to halt")
    member.wait(lambda: member.get("/livez")[0] == 200, "the socket")
    resumed = command(member, "resume", f"{topic}:0", token=None)
    assert (resumed.returncode, resumed.stdout) == (0, f"1 partitions resumed: {topic}-0\n"), resumed.stderr
    member.wait(lambda: member.partitions("halted"), "the record to fail again")
    desk = Desk(member.config)
    desk.said("seek", f"{topic}:0", "--to-offset", "1", "--execute")
    stage.wait_handled(0, 1, member)
    assert "resume was asked for over HTTP by this machine (" in member.output()
    (pid,) = [worker["pid"] for worker in member.workers() if worker["worker"] == 0]
    desk.said("recycle", "0")
    member.wait(lambda: any(w["worker"] == 0 and w["pid"] != pid for w in member.workers()), "another process")
    assert act(member, "resume")[0] == 403, "over the network nothing can be done"
    assert member.stop() == 0
    gone = command(member, "resume", f"{topic}:0", token=None)
    assert gone.returncode == 2
    assert f"no service of this user with http.port = {member.port} answers on this machine" in gone.stderr


def test_a_reload_is_asked_for_and_what_came_of_it_is_the_answer(scene: SceneMaker) -> None:
    ours = {"handler": {"max_attempts": 7}, "group": {"commit_interval_ms": 1000}}
    stage = scene(2, handler="marked:handle", settings=ours)
    member = stage.members.start(env={"KUNICORN_HTTP__TOKEN": TOKEN})
    stage.send(1, "first")
    member.wait_running(2)
    stage.wait_handled(1, 0, member)
    generation, pids = member.generation(), {worker["pid"] for worker in member.workers()}
    settings = member.config.read_text()
    changed = settings.replace("max_attempts = 7", "max_attempts = 6")
    member.config.write_text(changed.replace("commit_interval_ms = 1000", "commit_interval_ms = 900"))
    assert Desk(member.config).said("reload") == (
        "completed: all workers run revision 2, changed: handler.max_attempts; "
        "these take effect with the next start only: group.commit_interval_ms\n"
    )
    assert not pids & {worker["pid"] for worker in member.workers()}, "every worker is another process"
    assert member.generation() == generation, "invariant 6"

    member.config.write_text(settings.replace("max_attempts = 7", "max_attempts = -7"))
    code, said = act(member, "reload")
    assert (code, said.partition(":")[0]) == (409, "failed")
    assert "handler.max_attempts = -7" in said
    assert act(member, "reload", token="wrong-horse-battery")[0] == 401
    stage.send(1, "second")
    stage.wait_handled(1, 1, member)
    assert member.stop() == 0
    assert stage.judge().lost == ()


@pytest.mark.long
def test_a_person_at_the_command_line_pauses_seeks_back_and_past_a_halted_record(scene: SceneMaker) -> None:
    stage = scene(2, handler="marked:handle", settings={"handler": {"max_attempts": 1}})
    member, topic = stage.members.start(env={"KUNICORN_HTTP__TOKEN": TOKEN}), stage.topic
    stage.send(0, "a", "b", "c")
    stage.send(1, "a", "raise", "after")
    member.wait(lambda: member.partitions("halted"), "partition 1 to halt")
    stage.wait_handled(0, 2, member)
    generation = member.generation()

    plan = command(member, "seek", f"{topic}:0", "--to-offset", "1")
    assert plan.returncode == 0, plan.stderr
    assert "2 again" in plan.stdout
    assert "--execute does it" in plan.stdout
    done = command(member, "seek", f"{topic}:0", "--to-offset", "1", "--execute")
    assert done.returncode == 0, done.stderr
    member.wait(lambda: stage.handled(0) == [0, 1, 2, 1, 2], "1 and 2 again")
    assert command(member, "seek", f"{topic}:1", "--to-offset", "2", "--execute").returncode == 0
    stage.wait_handled(1, 2, member)
    assert stage.handled(1) == [0, 2]
    refused = command(member, "seek", f"{topic}:0", "--to-offset", "4", "--execute")
    assert (refused.returncode, "offset 4 is not in the log (0 to 3)" in refused.stderr) == (2, True)

    assert command(member, "pause", f"{topic}:0").returncode == 0
    assert command(member, "seek", f"{topic}:0", "--earliest", "--execute").returncode == 0
    assert stage.committed()[0] == 0, "committed although nothing is fetched"
    assert [p["partition"] for p in member.partitions("paused")] == [0]
    assert command(member, "resume", f"{topic}:0").returncode == 0
    member.wait(lambda: stage.handled(0) == [0, 1, 2, 1, 2, 0, 1, 2], "everything once more")
    stage.wait_all_committed()
    assert member.generation() == generation
    assert member.stop() == 0
    assert "seek was asked for over HTTP by 127.0.0.1 (" in member.output()
    assert TOKEN not in member.output()
