"""Members of commit 645c62f beside members of today in one group: a rolling upgrade, and the way back.

Their code is that of the repository's history, in today's environment, whose requirements were that commit's already.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kunicorn.commands.demo.judge import Report
from tests.golden.make import COMMIT
from tests.system.group.journal import handled_up_to
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
PARTITIONS, RATE = 6, 300

SceneMaker = Callable[..., Scene]
Environment = Mapping[str, str]


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)


@pytest.fixture(scope="session")
def of_then(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What makes a member one of that commit."""
    if git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode:
        pytest.skip(f"this clone has no commit {COMMIT}; `git fetch --unshallow` brings it")
    place = tmp_path_factory.mktemp(COMMIT)
    with tarfile.open(fileobj=io.BytesIO(git("archive", COMMIT, "service", "tests").stdout)) as archive:
        archive.extractall(place, filter="data")
    environment = {"PYTHONPATH": os.pathsep.join([str(place / "service"), str(place)])}
    found = subprocess.run(
        [sys.executable, "-c", "import kunicorn, tests; print(kunicorn.__file__, tests.__file__)"],
        env={**os.environ, **environment},
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(place / "service/kunicorn/__init__.py"), str(place / "tests/__init__.py")]
    return environment


def share(*members: MemberProcess) -> None:
    """Until each has its part."""
    for member in members:
        member.wait_running(PARTITIONS // len(members), within=60)


def judged(stage: Scene) -> Report:
    stage.wait_all_committed()
    report = stage.judge()
    assert report.holds, report
    return report


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "group",
    [
        pytest.param({"partition_assignment_strategy": ["range"]}, id="range", marks=pytest.mark.classic),
        pytest.param(
            {"partition_assignment_strategy": ["cooperative-sticky"]},
            id="cooperative-sticky",
            marks=pytest.mark.classic,
        ),
        pytest.param({"group_protocol": "consumer"}, id="consumer", marks=pytest.mark.consumer),
    ],
)
def test_members_of_then_and_of_today_share_a_group_and_every_record_is_handled_once(
    scene: SceneMaker, of_then: Environment, group: dict[str, object]
) -> None:
    stage = scene(PARTITIONS, settings={"group": group}, env={"KUNICORN_HANDLER_MS": "1"})
    members = stage.members
    old = members.start(env=of_then, name="then-1")
    share(old)
    with Flow(stage.kafka.bootstrap, stage.topic, RATE) as flow:
        new = members.start(name="today-1")
        share(old, new)
        newer = members.start(name="today-2")
        share(old, new, newer)
        assert old.stop() == 0
        share(new, newer)
        back = members.start(env=of_then, name="then-2")
        share(new, newer, back)
        assert [new.stop(), newer.stop()] == [0, 0]
        share(back)
        last = members.start(name="today-3")
        share(back, last)
    wait_until(lambda: handled_up_to(back) + handled_up_to(last) == flow.sent, "the end of the flow", 60)
    assert [back.stop(), last.stop()] == [0, 0]
    report = judged(stage)
    assert (report.handled, report.repeated) == (flow.sent, ())
    assert report.handled_by.keys() == {"then-1", "then-2", "today-1", "today-2", "today-3"}


@pytest.mark.parametrize("first", ["then", "today"])
def test_what_is_done_ahead_of_a_record_that_waits_is_not_done_again_by_the_other(
    scene: SceneMaker, of_then: Environment, first: str
) -> None:
    """In a group that began with a member of then, as in an upgrade: whoever is first begins where that one did."""
    settings = {"handler": {"ordering": "key", "retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}}
    stage = scene(1, workers=1, handler="marked:handle_async", settings=settings)
    environments = {"then": of_then, "today": {}}
    begun = stage.members.start(env=of_then)
    begun.wait(lambda: stage.committed() == {0: 0}, "the start to be committed")
    assert begun.stop() == 0
    stage.send(0, "raise once", *(f"v{number}" for number in range(50)))
    one = stage.members.start(env=environments.pop(first))
    one.wait(lambda: len(stage.handled(0)) == 50, "all others to be handled", 30)
    assert one.stop() == 0
    assert stage.committed() == {0: 0}
    other = stage.members.start(env=environments.popitem()[1])
    other.wait(lambda: 0 in stage.handled(0), "the record that waited to be handled", 30)
    stage.wait_all_committed()
    assert other.stop() == 0
    assert sorted(stage.handled(0)) == list(range(51))
