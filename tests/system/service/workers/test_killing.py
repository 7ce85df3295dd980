"""Workers and templates killed at any instant: the group does not notice (invariant 6), one record is repeated."""

from __future__ import annotations

import os
import random
import signal
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kunicorn.commands.demo.audit import Kind, read_audit
from kunicorn.commands.demo.judge import RecordAt, Report
from kunicorn.ipc import clock
from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import wait_until

PARTITIONS, WORKERS = 8, 2
SOON = 40.0
"""Seconds: far more than a fork takes on a busy machine, and less than a session."""
# Well below what two workers can handle: with a backlog, a partition waits for its turn and not for its worker.
RATE = 300
# The kills are ours and no record's fault: without this, two of them in the same record's hands would halt it.
# Commits all the time, so that kills fall into them.
SETTINGS = {"workers": {"max_crashes": 1000}, "group": {"commit_interval_ms": 50}}
ENV = {"KUNICORN_HANDLER_MS": "2"}

SceneMaker = Callable[..., Scene]


@dataclass
class Killer:
    """Kills a member's processes; remembers whom, and when each partition had to go on by itself."""

    member: MemberProcess
    rng: random.Random = field(default_factory=lambda: random.Random(6))
    killed: set[int] = field(default_factory=set)
    template: int = 0
    last_kills_ns: list[int] = field(default_factory=list)
    """The last kill of each series: from then on nothing else disturbs."""
    _never: threading.Event = field(default_factory=threading.Event)

    def workers(self) -> set[int]:
        """The workers' pids, from the moment they are children of the supervisor; long before /status has them."""
        return {child.pid for child in procfs.children(self.member.pid)} - {self.template}

    def find_template(self) -> None:
        """Caller: only while no worker is being forked, as a newborn looks like its template."""
        self.template = self.member.wait(self._named_template, "the template")

    def _named_template(self) -> int | None:
        named = {child.pid for child in procfs.children(self.member.pid) if child.name == "kunicorn-tmpl"}
        return next(iter(named - self.killed), None)

    def kill(self, pid: int) -> None:
        """SIGKILL, without any chance to say goodbye."""
        os.kill(pid, signal.SIGKILL)
        self.killed.add(pid)

    def kill_a_worker_at_a_random_instant(self) -> set[int]:
        """Somewhere in fetching, handling, storing, committing. The pids of all workers before."""
        self._never.wait(self.rng.uniform(0, 0.3))
        before = [worker["pid"] for worker in self.member.workers()]
        self.kill(self.rng.choice(before))
        return {*before}

    def kill_its_successor_as_it_appears(self, before: set[int]) -> None:
        """Before, while or just after it gets its partitions. `before`: the workers that it is none of."""
        before = before | self.killed
        successor = self.member.wait(lambda: self.workers() - before, "a successor")
        self._never.wait(self.rng.uniform(0, 0.1))
        for pid in successor:
            self.kill(pid)

    def wait_recovered(self) -> None:
        """Until every partition is fetched by a living worker again, and has got further."""
        self.last_kills_ns.append(clock.now_ns())
        self.member.wait(self._recovered, "all partitions to run again")
        before = self._positions()
        self.member.wait(lambda: self._further_than(before), "all partitions to go on")

    def _positions(self) -> dict[int, int]:
        return {p["partition"]: p["position"] or 0 for p in self.member.partitions()}

    def _further_than(self, before: dict[int, int]) -> bool:
        now = self._positions()
        return all(now.get(partition, 0) > at for partition, at in before.items())

    def _recovered(self) -> bool:
        status = self.member.status()
        pids = {worker["pid"] for worker in status["workers"] if worker["state"] == "ready"}
        running = [p for p in status["partitions"] if p["state"] == "running"]
        return len(running) == PARTITIONS and len(pids) == WORKERS and not pids & self.killed

    def kill_the_template(self) -> None:
        """The workers must not notice."""
        before = [worker["pid"] for worker in self.member.workers()]
        self.kill(self.template)
        self.find_template()
        self.member.wait(lambda: self.member.status()["template"] == "ready", "the template to be ready")
        assert [worker["pid"] for worker in self.member.workers()] == before


@dataclass(frozen=True)
class Holdings:
    """What the supervisor holds of the system; must not grow."""

    descriptors: dict[str, int]
    """By kind."""
    processes: int
    memory: int

    @classmethod
    def of(cls, member: MemberProcess) -> Holdings:
        """As it is now."""
        kinds: dict[str, int] = {}
        for target in procfs.descriptors(member.pid):
            kind = target.split(":[")[0].split(" (")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
        return cls(kinds, len(procfs.in_session(member.pid)), procfs.resident_bytes(member.pid))


def handled_at(scene: Scene) -> list[list[int]]:
    """When records of each partition were handled to their end, in order; nanoseconds."""
    ends: list[list[int]] = [[0] for _ in range(PARTITIONS)]
    for file in read_audit(scene.members.audit):
        for entry in file.entries():
            if entry.kind == Kind.END:
                ends[entry.partition].append(entry.time_ns)
    return [sorted(times) for times in ends]


def slowest_resumption(scene: Scene, kills_ns: list[int]) -> float:
    """Seconds from a kill to the next record that is handled to its end, the longest over all kills and partitions."""
    waits = [times[bisect_right(times, at)] - at for times in handled_at(scene) for at in kills_ns]
    return max(waits) / clock.NANOSECONDS


def kill_away(scene: Scene, kills: int, template_kills: int) -> tuple[Killer, Report]:
    """The whole story: kill under load, look for traces, stop, judge."""
    member = scene.members.start()
    member.wait_running(PARTITIONS)
    generation, rebalances = member.generation(), len(scene.rebalances())
    killer = Killer(member)
    killer.find_template()
    with Flow(scene.kafka.bootstrap, scene.topic, RATE):
        for _ in range(3):
            killer.kill_a_worker_at_a_random_instant()
            killer.wait_recovered()
        warm = Holdings.of(member)
        due = every = kills // template_kills
        while len(killer.killed) < kills + template_kills:
            before = killer.kill_a_worker_at_a_random_instant()
            if killer.rng.random() < 0.25:
                killer.kill_its_successor_as_it_appears(before)
            killer.wait_recovered()
            if len(killer.killed) >= due:
                killer.kill_the_template()
                due += every
        cold = member.wait(lambda: quiet(member, warm), "no descriptor or process left behind")
    assert cold.memory < warm.memory * 1.05
    assert (member.generation(), len(scene.rebalances())) == (generation, rebalances), "invariant 6"
    member.wait(lambda: member.lag() == 0, "everything to be committed")
    assert member.stop() == 0
    wait_until(lambda: not procfs.living_in_session(member.pid), "the template to follow its supervisor")
    return killer, scene.judge(killer.killed)


def quiet(member: MemberProcess, warm: Holdings) -> Holdings | None:
    """What is held once nothing is on its way, if that is no more than before."""
    now = Holdings.of(member)
    zombies = [process for process in procfs.in_session(member.pid) if process.state == "Z"]
    # Fewer is no trace: a request to /status may have been about to end when the first count was made.
    more = any(count > warm.descriptors.get(kind, 0) for kind, count in now.descriptors.items())
    return now if not zombies and not more and now.processes <= warm.processes else None


def judge_kills(scene: Scene, killer: Killer, report: Report) -> None:
    """At most the record in hand is repeated for each kill, and partitions go on without a rebalance or a time-out."""
    assert report.holds, report
    assert len(report.repeated) <= len(killer.killed), report
    assert {tp.partition: end for tp, end in scene.ends().items()} == scene.committed()
    assert slowest_resumption(scene, killer.last_kills_ns) < SOON


@pytest.mark.parametrize(("workers", "templates"), [(10, 1), pytest.param(100, 10, marks=pytest.mark.long)])
def test_killed_workers_and_templates_repeat_a_record_each_and_leave_nothing_behind(
    scene: SceneMaker, workers: int, templates: int
) -> None:
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings=SETTINGS, env=ENV)
    killer, report = kill_away(stage, workers, templates)
    judge_kills(stage, killer, report)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_killed_workers_leave_nothing_behind_and_cost_no_rebalance(scene: SceneMaker) -> None:
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings=SETTINGS)
    kill_all_again_and_again(stage, 1000)


def kill_all_again_and_again(stage: Scene, kills: int) -> None:
    """All workers at once, as soon as both are at work; what the supervisor holds does not grow."""
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    generation, rebalances = member.generation(), len(stage.rebalances())
    killer = Killer(member)
    warm = Holdings.of(member)
    with Flow(stage.kafka.bootstrap, stage.topic, 100):
        while len(killer.killed) < kills:
            for worker in member.wait(lambda: at_work(member, killer.killed), "both workers to be at work"):
                killer.kill(worker)
            if len(killer.killed) == 20:
                member.wait(lambda: at_work(member, killer.killed), "both workers to be at work")
                warm = Holdings.of(member)
        member.wait(lambda: at_work(member, killer.killed), "both workers to be at work")
        cold = member.wait(lambda: quiet(member, warm), "no descriptor or process left behind")
    assert cold.memory < warm.memory * 1.05
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances), "invariant 6"
    member.wait(lambda: member.lag() == 0, "everything to be committed")
    assert member.stop() == 0
    report = stage.judge(killer.killed)
    assert report.holds, report
    assert len(report.repeated) <= len(killer.killed), report


def at_work(member: MemberProcess, killed: set[int]) -> set[int] | None:
    """The workers' pids, if all of them are new and fetch."""
    status = member.status()
    pids = {worker["pid"] for worker in status["workers"] if worker["state"] == "ready"}
    running = [partition for partition in status["partitions"] if partition["state"] == "running"]
    return pids if len(pids) == WORKERS and len(running) == PARTITIONS and not pids & killed else None


@pytest.mark.classic
def test_a_worker_killed_while_it_drains_for_a_member_that_joins_repeats_its_record_in_hand_and_no_other(
    scene: SceneMaker,
) -> None:
    stage = scene(2, workers=1, settings={"group": {"partition_assignment_strategy": ["range"]}})
    first = stage.members.start()
    first.wait_running(2)
    stage.send(1, "handled")
    stage.wait_handled(1, 0, first)
    stage.send(0, "handled", "sleep 600 once", "after it")
    stage.wait_marked("0@1 sleeps", first)
    (worker,) = [w["pid"] for w in first.workers()]
    second = stage.members.start()
    first.wait(lambda: first.partitions("stopping"), "the drain")
    os.kill(worker, signal.SIGKILL)
    second.wait_running(1)
    first.wait_running(1)
    stage.wait_handled(0, 2, second)
    assert (first.stop(), second.stop()) == (0, 0)
    assert stage.committed() == {0: 3, 1: 1}
    report = stage.judge({worker})
    assert report.holds, report
    assert report.repeated == (RecordAt(stage.topic, 0, 1),), report
