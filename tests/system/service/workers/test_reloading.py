"""SIGHUP: new code and settings, one worker after the other; no rebalance, no record twice, or nothing at all."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
PARTITIONS, WORKERS, RATE = 8, 2, 500

CODE = """
from tests.system.handlers import audited, marked

# {padding}
def handle(record):
    if record.value == b"who":
        marked.mark(record, "{version}")
    audited.handle(record)
"""


class Deployed:
    """A member whose handler's module lies in its directory, where it can be replaced."""

    def __init__(self, scene: SceneMaker, directory: Path, *options: str, **settings: dict[str, Any]) -> None:
        self.module = directory / "deployed.py"
        self.deploy("first")
        own = {"handler": {"entrypoint": "deployed:handle"}, **settings}
        self.stage = scene(PARTITIONS, workers=WORKERS, settings=own)
        self.member: MemberProcess = self.stage.members.start(options=options)
        self.member.wait_running(PARTITIONS)

    def deploy(self, version: str, code: str = CODE) -> None:
        """Another size each time: compiled modules are told apart by size and by seconds."""
        self.module.write_text(code.format(version=version, padding="x" * len(version)))

    def reconfigure(self, old: str, new: str) -> None:
        """Change a line of the settings' file."""
        text = self.member.config.read_text()
        assert old in text
        self.member.config.write_text(text.replace(old, new))

    def reload(self, result: str, number: int = 1, within: float = 60.0) -> dict[str, Any]:
        """SIGHUP, and wait for the `number`-th reload that ends so; what /status says of it."""
        self.member.process.send_signal(signal.SIGHUP)
        what = f"reload {number} to end so: {result}"
        self.member.wait(lambda: self.member.metric("kunicorn_reloads_total", result=result) == number, what, within)
        found: dict[str, Any] = self.member.status()["reload"]
        assert found["result"] == result
        return found

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.member.workers()]

    def handled_by(self, version: str, offset: int, partition: int = 0) -> None:
        """The next record is handled by that version of the code."""
        self.stage.send(partition, "who")
        self.stage.wait_marked(f"{partition}@{offset} {version}", self.member)

    def end(self) -> None:
        assert self.member.stop() == 0
        report = self.stage.judge()
        assert report.holds, report
        assert not report.repeated, report


@pytest.fixture
def deployed(scene: SceneMaker, tmp_path: Path) -> Callable[..., Deployed]:
    return lambda **settings: Deployed(scene, tmp_path, **settings)


def test_a_reload_under_load_brings_new_code_without_a_rebalance_or_a_record_twice(
    deployed: Callable[..., Deployed],
) -> None:
    service = deployed()
    generation, rebalances, before = service.member.generation(), len(service.stage.rebalances()), service.pids()
    with Flow(service.stage.kafka.bootstrap, service.stage.topic, RATE):
        service.stage.wait_handled(0, 20, service.member)
        for number, version in enumerate(["second one", "the third one"], 1):
            service.deploy(version)
            found = service.reload("completed", number)
            assert found["revision"] == number + 1
    service.stage.wait_all_committed()
    assert not set(before) & set(service.pids())
    offset = {tp.partition: end for tp, end in service.stage.ends().items()}[0]
    service.handled_by("the third one", offset)
    assert (service.member.generation(), len(service.stage.rebalances())) == (generation, rebalances)
    service.member.wait(lambda: len(procfs.children(service.member.pid)) == 1 + WORKERS, "old processes to go")
    service.end()


FALTERS = """
from tests.system.handlers import audited

def handle(record):
    audited.handle(record) if record.value != b"order" else record.value["idd"]  # {version} {padding}
"""


def test_partitions_that_the_handler_has_halted_are_tried_again_with_corrected_code(
    scene: SceneMaker, tmp_path: Path
) -> None:
    service = Deployed(scene, tmp_path, handler={"entrypoint": "deployed:handle", "max_attempts": 1})
    service.deploy("falters", FALTERS)
    service.reload("completed")
    for partition in (0, 1, 2):
        service.stage.send(partition, "order")
    service.member.wait(lambda: len(service.member.partitions("halted")) == 3, "three to halt")
    service.deploy("corrected")
    assert "3 halted partitions are tried again with revision 3" in service.reload("completed", 2)["message"]
    service.member.wait(
        lambda: "3 halted partitions are tried again with revision 3" in service.member.output(), "the line in the log"
    )
    for partition in (0, 1, 2):
        service.stage.wait_handled(partition, 0, service.member)
    service.member.wait_running(PARTITIONS)
    service.end()


def one_more_descriptor(pid: int) -> int:
    """The limit that leaves that process one descriptor, enough to read a file and not for a pair of sockets."""
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    free = [fd for fd in range(len(taken) + 2) if fd not in taken]
    return free[0] + 1


def test_a_reload_that_gets_no_process_changes_nothing_and_nor_does_a_worker_that_cannot_be_forked(
    deployed: Callable[..., Deployed],
) -> None:
    service = deployed()
    member, before = service.member, service.pids()
    _, hard = resource.prlimit(member.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(member.pid, resource.RLIMIT_NOFILE, (one_more_descriptor(member.pid), hard))
    member.process.send_signal(signal.SIGHUP)
    member.wait(lambda: "reload failed, nothing is changed" in member.output(), "the reload to fail")
    # None at all: those of a dead worker are free again.
    resource.prlimit(member.pid, resource.RLIMIT_NOFILE, (3, hard))
    os.kill(before[0], signal.SIGKILL)
    member.wait(lambda: "could not be started" in member.output(), "a fork to fail")
    resource.prlimit(member.pid, resource.RLIMIT_NOFILE, (hard, hard))
    member.wait(lambda: len(service.pids()) == WORKERS and before[0] not in service.pids(), "a successor")
    assert before[1] in service.pids()
    assert "Too many open files" in member.status()["reload"]["message"]
    service.deploy("second")
    service.reload("completed")
    service.handled_by("second", 0)
    assert member.stop() == 0


def test_safe_settings_take_effect_and_the_others_are_named(deployed: Callable[..., Deployed]) -> None:
    service = deployed(workers={"max_crashes": 5}, group={"commit_interval_ms": 700})
    service.reconfigure("max_crashes = 5", "max_crashes = 6\nmax_records = 123456")
    service.reconfigure("commit_interval_ms = 700", "commit_interval_ms = 800")
    service.reconfigure('level = "debug"', 'level = "info"')
    found = service.reload("completed")
    assert found["kept"] == ["group.commit_interval_ms"]
    assert all(name in found["message"] for name in ("workers.max_crashes", "workers.max_records", "log.level"))
    shown = service.member.status()["settings"]
    assert (shown["workers"]["max_crashes"], shown["workers"]["max_records"]) == (6, 123_456)
    assert (shown["log"]["level"], shown["group"]["commit_interval_ms"]) == ("info", 700)
    output = service.member.output()
    assert "group.commit_interval_ms has another value now, which takes effect with the next start only" in output
    service.end()


BROKEN = {
    "code that does not import": (CODE + "\nimport no_such_module_{version}\n", "no module named 'no_such_module_"),
    "code that ends the process": (CODE + "\nimport os; os._exit(3)  # {version}\n", "ends the process (exit 3)"),
    "a setup that raises": (
        CODE + '\ndef setup(options):\n    raise KeyError("{version}")\nhandle.setup = setup\n',
        "setup raised KeyError: 'bad'",
    ),
}


def test_code_that_cannot_serve_leaves_the_workers_as_they_are_until_it_is_corrected(
    deployed: Callable[..., Deployed],
) -> None:
    """Whether the import fails, the template ends or a worker on trial does: nothing is left that the next reload of
    the same member would meet."""
    service = deployed()
    before = service.pids()
    for number, (what, (code, reason)) in enumerate(BROKEN.items(), 1):
        service.deploy("bad", code)
        found = service.reload("failed", number)
        assert reason.lower() in found["message"].lower(), what
        assert service.pids() == before, what
        service.handled_by("first", number - 1)
    told = "reload failed, nothing is changed"
    service.member.wait(lambda: service.member.output().count(told) == len(BROKEN), "a line in the log for each")
    service.deploy("corrected")
    service.reload("completed")
    service.handled_by("corrected", len(BROKEN))
    service.end()


def test_settings_that_are_refused_as_at_the_start_leave_everything_as_it_is(
    deployed: Callable[..., Deployed],
) -> None:
    """By us, by the Kafka client, or as the dead-letter topic is not there."""
    service = deployed(workers={"max_crashes": 5})
    before, whole = service.pids(), service.member.config.read_text()
    service.deploy("not to be seen yet")
    letters = f"{service.stage.topic}.dead-letters"
    refused = {
        "workers.max_crashes": ("max_crashes = 5", 'max_crashes = "five"'),
        "no_such_setting": ("max_crashes = 5", "max_crashes = 5\nno_such_setting = 1"),
        "the Kafka client refuses its properties": (
            "[kafka]\n",
            '[kafka]\nlibrdkafka = {"fetch.wait.max.ms" = "soon"}\n',
        ),
        f"dead-letter topic {letters!r} does not exist on this cluster: create it, or correct ": (
            "[handler]\n",
            '[handler]\non_failure = "dead_letter"\n',
        ),
    }
    for number, (said, (right, wrong)) in enumerate(refused.items(), 1):
        service.member.config.write_text(whole)
        service.reconfigure(right, wrong)
        assert said in service.reload("failed", number)["message"]
        assert service.pids() == before, said
        service.handled_by("first", number - 1)
    service.stage.kafka.create_topic(letters)
    service.reload("completed")
    service.handled_by("not to be seen yet", len(refused))
    service.end()


@pytest.mark.long
def test_a_worker_killed_after_a_reload_is_replaced_by_one_of_the_new_code(deployed: Callable[..., Deployed]) -> None:
    service = deployed()
    service.deploy("after the reload")
    service.reload("completed")
    service.handled_by("after the reload", 0)
    service.stage.wait_handled(0, 0, service.member)
    for pid in service.pids():
        os.kill(pid, signal.SIGKILL)
    service.member.wait(
        lambda: [w["restarts"] for w in service.member.workers()] == [1] * WORKERS, "both to be replaced"
    )
    service.handled_by("after the reload", 1)
    assert {worker["revision"] for worker in service.member.workers()} == {2}
    service.end()


@pytest.mark.long
def test_with_reload_a_saved_file_is_a_reload(scene: SceneMaker, tmp_path: Path) -> None:
    deployed = Deployed(scene, tmp_path, "--reload", handler={"entrypoint": "deployed:handle", "max_attempts": 1})
    member, generation = deployed.member, deployed.member.generation()
    deployed.deploy("a second version")

    def revision() -> int | None:
        last = member.status()["reload"]
        return last["revision"] if last and last["result"] == "completed" else None

    member.wait(lambda: revision() == 2, "a reload by itself")
    deployed.stage.send(0, "who")
    deployed.stage.wait_marked("0@0 a second version", member)
    assert member.generation() == generation, "invariant 6"
    deployed.deploy("a third one", FALTERS)
    member.wait(lambda: revision() == 3, "the next one")
    deployed.stage.send(1, "order")
    member.wait(lambda: member.partitions("halted"), "a partition to halt")
    deployed.deploy("corrected")
    deployed.stage.wait_handled(1, 0, member)
    assert member.stop() == 0
