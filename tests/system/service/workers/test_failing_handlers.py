"""Handlers that raise: their partition halts where all can see it, and nothing else stops (invariant 7)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from kunicorn.handler.dead_letters import read
from kunicorn.ipc import clock
from tests.system.members import MemberProcess
from tests.system.producing import consumed, headers_of
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]


def halted(member: MemberProcess) -> dict[str, Any]:
    """The one partition that halts."""
    (partition,) = member.wait(lambda: member.partitions("halted"), "a halted partition")
    found: dict[str, Any] = partition
    return found


def assert_only_partition_0_is_halted(stage: Scene, member: MemberProcess, reason: str) -> None:
    """Visible in /status and in the metrics, no reason for a restart, and no burden for partition 1."""
    partition = halted(member)
    assert partition["partition"] == 0
    assert reason in partition["reason"]
    assert partition["position"] == 1, "what was handled before stays handled"
    assert member.metric("kunicorn_partitions", group=stage.topic, state="halted") == 1
    assert member.get("/livez")[0] == 200
    assert member.get("/readyz")[0] == 200
    member.wait(lambda: f"{stage.topic}-0 is halted" in member.output(), "the line in the log")
    stage.send(1, "still handled")
    stage.wait_handled(1, 1, member)
    assert member.stop() == 0
    assert stage.committed() == {0: 1, 1: 2}
    report = stage.judge(except_from=[(0, 1)])
    assert report.holds, report


def with_a_failing_record(scene: SceneMaker, value: str, **more: Any) -> tuple[Scene, MemberProcess]:
    """Offset 1 of partition 0 cannot be handled; one worker has both partitions."""
    stage: Scene = scene(2, workers=1, **more)
    member = stage.members.start()
    member.wait_running(2)
    stage.send(1, "fine")
    stage.send(0, "fine")
    stage.wait_handled(0, 0, member)
    stage.send(0, value, "waits for a person")
    return stage, member


class Deed(NamedTuple):
    """What a record has its handler do, with which reason its partition halts, and after how many calls."""

    value: str
    reason: str
    calls: int


DEEDS = (
    Deed("raise", "NoSuchCustomer: no customer in 0@1", 3),
    Deed("garble", "NoSuchCustomer: no customer Anna \\ud83d", 3),
    Deed("exit", "SystemExit: 7", 1),
    Deed("interrupt", "KeyboardInterrupt", 1),
)


def test_each_partition_whose_record_fails_halts_with_its_reason_and_takes_no_other_along(scene: SceneMaker) -> None:
    """A record that raises is tried three times with growing waits, also one that says half a character; one whose
    handler would end the process is not tried again."""
    fine = len(DEEDS)
    stage: Scene = scene(fine + 1, workers=1, settings={"handler": {"retry_backoff_ms": 200}})
    for partition, deed in enumerate(DEEDS):
        stage.send(partition, "fine", deed.value, "waits for a person")
    member = stage.members.start()
    member.wait(lambda: len(member.partitions("halted")) == len(DEEDS), "a halted partition for each deed")
    shown = {found["partition"]: found for found in member.partitions("halted")}
    for partition, deed in enumerate(DEEDS):
        assert deed.reason in shown[partition]["reason"]
        assert shown[partition]["position"] == 1, "what was handled before stays handled"
        assert len(stage.begun(partition, 1)) == deed.calls, deed
        member.wait_said(f"{stage.topic}-{partition} is halted")
    assert member.metric("kunicorn_partitions", group=stage.topic, state="halted") == len(DEEDS)
    assert (member.get("/livez")[0], member.get("/readyz")[0]) == (200, 200)
    stage.send(fine, "still handled")
    stage.wait_handled(fine, 0, member)
    assert "died" not in member.output(), "the worker lives on"
    assert member.stop() == 0
    assert stage.committed() == {**dict.fromkeys(range(fine), 1), fine: 1}
    report = stage.judge(except_from=[(partition, 1) for partition in range(fine)])
    assert report.holds, report
    first, second = ((after - before) / clock.NANOSECONDS for before, after in pairwise(stage.begun(0, 1)))
    # KIP-580: 200 ms and 400 ms, each up to a fifth more or less.
    assert first >= 0.16
    assert second >= 0.32


@pytest.mark.parametrize("value", ["die", pytest.param("crash", marks=pytest.mark.long)])
def test_the_second_death_with_the_same_record_in_hand_halts_that_partition_alone(
    scene: SceneMaker, value: str
) -> None:
    stage, member = with_a_failing_record(scene, value)
    cause = {"die": "exit 9", "crash": "SIGSEGV"}[value]
    assert_only_partition_0_is_halted(stage, member, f"2 workers died ({cause}) with offset 1 in hand")
    assert len(stage.begun(0, 1)) == 2
    assert member.output().count(f"died: {cause}") == 2


def test_a_record_that_kills_its_worker_once_is_handled_by_the_next_one(scene: SceneMaker) -> None:
    stage, member = with_a_failing_record(scene, "die once")
    stage.wait_handled(0, 2, member)
    assert member.stop() == 0
    assert stage.committed() == {0: 3, 1: 1}
    assert stage.judge().holds


@pytest.mark.parametrize("value", [pytest.param("die", marks=pytest.mark.long), "crash"])
def test_a_record_that_killed_two_workers_becomes_a_dead_letter_and_nothing_else_is_lost(
    scene: SceneMaker, value: str
) -> None:
    stage: Scene = scene(2, workers=1, settings={"handler": {"on_failure": "dead_letter"}})
    letters = stage.kafka.create_topic(f"{stage.topic}.dead-letters", 1)
    member = stage.members.start()
    member.wait_running(2)
    stage.send(0, "fine", value, "behind it", "and this")
    stage.send(1, "fine", "fine")
    stage.wait_handled(0, 3, member)
    stage.wait_handled(1, 1, member)
    assert len(stage.begun(0, 1)) == 2, "the third worker keeps it from the handler"
    counted = {"group": stage.topic, "reason": "poison", "topic": stage.topic}
    member.wait(lambda: member.metric("kunicorn_dead_letters_total", **counted) == 1, "the dead letter to be counted")
    assert member.stop() == 0
    assert stage.committed() == {0: 4, 1: 2}
    (letter,) = consumed(stage.kafka.bootstrap, letters, 1)
    assert letter.value() == value.encode()
    told = read(headers_of(letter))
    cause = {"die": "exit 9", "crash": "SIGSEGV"}[value]
    assert (told.topic, told.partition, told.offset) == (stage.topic, 0, 1)
    assert (told.cause.type, told.cause.message) == ("WorkerDied", f"2 workers died ({cause}) with offset 1 in hand")
    assert sorted(stage.handled(0)) == [0, 2, 3]


def test_the_record_of_a_batch_that_kills_its_worker_is_found_and_skipped_alone(scene: SceneMaker) -> None:
    settings = {"handler": {"on_failure": "skip", "mode": "batch"}}
    stage: Scene = scene(1, workers=1, handler="marked:handle_batch", settings=settings)
    stage.send(0, "a", "b", "die", "c")
    member = stage.members.start()
    stage.wait_handled(0, 3, member)
    # Two deaths or three with it in hand: whether it was a batch's first is the fetch's to say.
    told = re.compile(r"-0@2 is skipped: [23] workers died \(exit 9\) with offset 2 in hand")
    member.wait(lambda: told.search(member.output()), "the skip to be told")
    assert member.stop() == 0
    assert stage.committed() == {0: 4}
    assert set(stage.handled(0)) == {0, 1, 3}


def test_a_dead_letter_topic_that_does_not_exist_is_refused_at_the_start(scene: SceneMaker) -> None:
    stage: Scene = scene(1, workers=1, settings={"handler": {"on_failure": "dead_letter"}})
    member = stage.members.start()
    assert member.exit_code() == 2
    text = f"dead-letter topic '{stage.topic}.dead-letters' does not exist on this cluster: create it"
    assert text in member.output()


def test_while_one_record_waits_for_its_next_try_the_others_flow_and_a_stop_does_not_wait(scene: SceneMaker) -> None:
    slow = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000, "on_failure": "skip"}
    stage, member = with_a_failing_record(scene, "raise", settings={"handler": slow})
    waiting = {"group": stage.topic, "waits_for": "retry"}
    member.wait(lambda: member.metric("kunicorn_partitions_waiting", **waiting) == 1, "the record to wait")
    stage.send(1, *["flows"] * 200)
    stage.wait_handled(1, 200, member)
    parked = next(p for p in member.partitions("running") if p["partition"] == 0)
    assert parked["reason"] == "offset 1 is tried again (try 1 of 3): NoSuchCustomer"
    assert member.stop() == 0, "a stop does not wait for the next try"
    assert stage.committed() == {0: 1, 1: 201}, "the record that waited is not done"
    report = stage.judge(except_from=[(0, 1)])
    assert report.holds, report


def test_a_line_that_a_handler_logs_names_its_record(scene: SceneMaker) -> None:
    stage: Scene = scene(1, workers=1, handler="marked:handle", settings={"log": {"format": "json"}})
    member = stage.members.start()
    stage.send(0, "quiet", "log", "quiet", "log")
    stage.wait_handled(0, 3, member)
    assert member.stop() == 0
    lines = [json.loads(line) for line in member.output().splitlines() if '"looked at it"' in line]
    places = sorted((line["topic"], line["partition"], line["offset"]) for line in lines)
    assert places == [(stage.topic, 0, 1), (stage.topic, 0, 3)]
