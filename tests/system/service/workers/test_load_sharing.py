"""Partitions that go from a busy worker to an idle one: the group sees nothing, and no record is handled twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.system.members import MemberProcess, merged
from tests.system.outputs import committed_outputs
from tests.system.scene import Scene
from tests.system.service.workers.hot_partition import (
    EACH,
    EAGER,
    HOT,
    PARTITIONS,
    SLOW,
    WORKERS,
    finished,
    heat,
    moves,
)

SceneMaker = Callable[..., Scene]


def beside(member: MemberProcess) -> list[int]:
    """The partitions that share the hot one's worker."""
    workers: dict[int, Any] = {p["partition"]: p["worker"] for p in member.partitions("running")}
    return [number for number, worker in workers.items() if number != HOT and worker == workers.get(HOT)]


def share(stage: Scene, slow: Mapping[str, str] = SLOW) -> None:
    """Have a hot partition until it is alone; have the rest handled in no time; then judge."""
    heat(stage, EACH)
    member = stage.members.start(env=slow)
    member.wait_running(PARTITIONS)
    generation, rebalances = member.generation(), len(stage.rebalances())
    member.wait(lambda: member.partitions("running") and not beside(member), "the hot partition to be alone")
    assert all(worker["load"] > 0 for worker in member.workers())
    made = moves(member, "load") + moves(member, "crowded")
    assert made >= 3
    assert moves(member, "count") == 0, "what loads have placed is not evened out by number"
    member.wait(lambda: member.output().count(" moves from worker ") >= made, "each move in the log")
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    assert member.stop() == 0
    finish(stage)


def finish(stage: Scene) -> None:
    """Likewise, and all is well."""
    report = finished(stage)
    assert report.holds, report
    assert not report.repeated, report


@pytest.mark.long
def test_a_hot_partition_gets_a_worker_to_itself_without_a_rebalance_or_a_record_twice(scene: SceneMaker) -> None:
    share(
        scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings=EAGER, env={"KUNICORN_HANDLER_MS": "1"})
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("handler", "settings", "slow"),
    [
        # A call takes as long with two records as with one.
        ("audited:handle_batch", {"handler": {"mode": "batch", "batch_max_records": 2}}, {"KUNICORN_HANDLER_MS": "4"}),
        ("audited:handle", {"group": {"group_instance_id": "the-only-one"}}, SLOW),
        ("audited:handle", {"group": {"group_protocol": "consumer"}}, SLOW),
        ("audited:handle", {"group": {"partition_assignment_strategy": ["range"]}}, SLOW),
    ],
    ids=["batches", "static", "consumer protocol", "eager"],
)
def test_so_it_is_with_every_kind_of_group_and_handler(
    scene: SceneMaker, handler: str, settings: dict[str, dict[str, Any]], slow: Mapping[str, str]
) -> None:
    share(scene(PARTITIONS, workers=WORKERS, handler=handler, settings=merged(EAGER, settings)), slow)


@pytest.mark.long
def test_a_second_member_that_joins_amid_the_moves_gets_its_part_and_nothing_is_handled_twice(
    scene: SceneMaker,
) -> None:
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings=EAGER)
    heat(stage, EACH)
    first = stage.members.start(env=SLOW)
    first.wait(lambda: " moves from worker " in first.output(), "a first move")
    second = stage.members.start(env=SLOW)
    second.wait(lambda: second.partitions("running"), "its part")
    assert (first.stop(), second.stop()) == (0, 0)
    finish(stage)


@pytest.mark.long
def test_in_transactions_a_partition_that_moves_leaves_every_output_once(scene: SceneMaker) -> None:
    outputs = "outputs-of-moves"
    producing = {"producing": {"delivery": "transactions", "topic": outputs}}
    stage = scene(
        PARTITIONS,
        workers=WORKERS,
        handler="sending:copy",
        settings=merged(EAGER, producing),
        env={"KUNICORN_HANDLER_MS": "1"},
    )
    stage.kafka.create_topic(outputs, 1)
    heat(stage, EACH)
    member = stage.members.start()
    # Whether the hot one ends up alone is left open: a transaction handles its partitions in bursts.
    member.wait(lambda: moves(member, "load") + moves(member, "crowded") >= 2, "two moves")
    stage.wait_all_committed()
    assert member.stop() == 0
    found = committed_outputs(stage.kafka.bootstrap, outputs, 1)
    assert set(found.values()) == {1}
    assert len(found) == 2 * (PARTITIONS - 1) * EACH
