"""Partitions that move from a busy worker to an idle one beside what else a service may do: several handlers, or
several records in hand. Nothing is handled twice, and keys keep their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kunicorn.commands.demo.judge import Audit
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members, merged
from tests.system.producing import end_offsets, held, produce
from tests.system.scene import Scene
from tests.system.service.workers.hot_partition import EACH, EAGER, PARTITIONS, SLOW, WORKERS, finished, heat, moves
from tests.system.service.workers.key_order import begun_out_of_order

pytestmark = pytest.mark.long

SceneMaker = Callable[..., Scene]


def wait_moved(member: MemberProcess, count: int) -> None:
    """Until loads have moved so many partitions."""
    member.wait(lambda: moves(member, "load") + moves(member, "crowded") >= count, f"{count} moves")


def test_with_several_in_hand_keys_keep_their_order_and_what_is_done_ahead_is_not_done_again(scene: SceneMaker) -> None:
    settings = merged(EAGER, {"handler": {"ordering": "key", "concurrency": 4}})
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle_async", settings=settings)
    heat(stage, EACH)
    member = stage.members.start(env={"KUNICORN_HANDLER_MS": "8"})
    wait_moved(member, 2)
    assert member.stop() == 0
    report = finished(stage)
    assert report.handled == report.produced
    assert (report.lost, report.repeated, report.overlaps, report.unexpected) == ((), (), (), ()), report
    assert not begun_out_of_order(stage)


def test_under_several_handlers_each_topics_partitions_go_by_what_their_own_records_take(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    slow, fast = f"{topic}.slow", f"{topic}.fast"
    for name in (slow, fast):
        kafka.create_topic(name, PARTITIONS)
        for partition in range(PARTITIONS):
            produce(kafka.bootstrap, name, EACH, partition=partition, value=b"x")
    # One partition of the slow topic has as much to do as its seven others.
    produce(kafka.bootstrap, slow, EACH * (PARTITIONS - 2), partition=0, value=b"x")
    tables = "".join(
        f'[[handlers]]\ntopics = ["{name}"]\nentrypoint = "tests.system.handlers.audited:{handler}"\n{more}'
        for name, handler, more in (
            (slow, "handle", ""),
            (fast, "handle_batch", 'mode = "batch"\nbatch_max_records = 50\n'),
        )
    )
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=WORKERS,
        entrypoint="tests.system.handlers.audited:handle",
        settings=merged(EAGER, {"group": {"topics": [slow, fast]}}),
    )
    member = members.start(env=SLOW, more=tables)
    wait_moved(member, 2)
    assert moves(member, "count") == 0
    ends = end_offsets(kafka.bootstrap, slow, PARTITIONS) | end_offsets(kafka.bootstrap, fast, PARTITIONS)
    assert member.stop() == 0
    last = members.start(more=tables)
    audit, produced = Audit(members.audit), held(ends)
    last.wait(lambda: not audit.check(produced).lost, "the rest to be handled")
    assert last.stop() == 0
    report = audit.check(produced)
    assert report.holds, report
    assert not report.repeated, report
