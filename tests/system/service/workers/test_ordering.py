"""Members whose workers have several records in hand: order by key, and nothing repeated but what was in hand."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from kunicorn.commands.demo.audit import Kind, read_audit
from tests.system.audits import ended
from tests.system.members import MemberProcess
from tests.system.producing import producer
from tests.system.scene import Scene
from tests.system.service.workers.key_order import begun_out_of_order, entries
from tests.waiting import wait_until

SceneMaker = Callable[..., Scene]
PARTITIONS, KEYS, CONCURRENCY = 4, 40, 20


def send_keyed(stage: Scene, count: int) -> None:
    """So many records of `KEYS` keys, each key in a partition of its own choice."""
    sender = producer(stage.kafka.bootstrap)
    for number in range(count):
        key = number % KEYS
        sender.produce(stage.topic, b"v", b"key %d" % key, partition=key % PARTITIONS)
    assert sender.flush(60) == 0


def wait_handled(stage: Scene, member: MemberProcess, count: int) -> None:
    member.wait(lambda: len(ended(stage.members.audit)) >= count, f"{count} records to be handled")


def test_keys_keep_their_order_through_a_kill_and_a_join_and_only_what_was_in_hand_is_repeated(
    scene: SceneMaker,
) -> None:
    settings = {"handler": {"ordering": "key", "concurrency": CONCURRENCY}, "workers": {"max_crashes": 1000}}
    env = {"KUNICORN_HANDLER_MS": "60"}
    stage = scene(PARTITIONS, workers=2, handler="audited:handle_async", settings=settings, env=env)
    first = stage.members.start()
    first.wait_running(PARTITIONS)
    send_keyed(stage, 2000)
    wait_handled(stage, first, 300)
    busy = first.wait(lambda: [w for w in first.workers() if w["in_flight"] > 1], "several records in hand")
    victim = busy[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    wait_handled(stage, first, 900)
    before_join = sum(count - 1 for count in ended(stage.members.audit).values())
    begun = Counter((e.partition, e.offset) for e in entries(stage) if e.kind == Kind.BEGIN)
    assert sum(count - 1 for count in begun.values()) <= CONCURRENCY
    assert before_join <= CONCURRENCY, "a call that ended just before the kill, its store not done"
    send_keyed(stage, 4000)  # The join is to find records in hand.
    second = stage.members.start()
    second.wait(lambda: second.partitions("running"), "the second member to have partitions")
    wait_handled(stage, second, 6000)
    stage.wait_all_committed()
    assert (first.stop(), second.stop()) == (0, 0)
    after = ended(stage.members.audit)
    of_victim = {
        (e.partition, e.offset) for f in read_audit(stage.members.audit) if f.pid == victim for e in f.entries()
    }
    assert {place for place, count in after.items() if count > 1} <= of_victim, "the join repeats nothing"
    assert sum(count - 1 for count in after.values()) <= CONCURRENCY
    assert len(after) == 6000
    assert begun_out_of_order(stage) == []


def test_a_record_in_retry_wait_holds_up_no_other_and_its_next_owner_repeats_nothing(scene: SceneMaker) -> None:
    settings = {"handler": {"ordering": "key", "retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}}
    stage = scene(1, workers=1, handler="marked:handle_async", settings=settings)
    stage.send(0, "raise once", *(f"v{n}" for n in range(50)))
    first = stage.members.start()
    first.wait(lambda: len(stage.handled(0)) == 50, "all others to be handled")
    first.wait(lambda: [worker["waiting"] for worker in first.workers()] == [{"retry": 1}], "the first one to wait")
    assert first.stop() == 0
    assert stage.committed() == {0: 0}, "invariant 1"
    second = stage.members.start()
    second.wait(lambda: 0 in stage.handled(0), "the first one to be handled by its next owner")
    wait_until(lambda: stage.committed() == {0: 51}, "everything to be committed", every=0.2)
    assert second.stop() == 0
    assert sorted(stage.handled(0)) == list(range(51))


def test_where_a_script_has_moved_the_offset_nothing_counts_as_done_ahead_of_it(scene: SceneMaker) -> None:
    """It commits what it has read, with another offset in it: clients take the metadata along, as MirrorMaker does."""
    settings = {"handler": {"ordering": "key", "retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}}
    stage = scene(1, workers=1, handler="marked:handle_async", settings=settings)
    stage.send(0, *(f"v{n}" for n in range(10)), "raise once", *(f"v{n}" for n in range(11, 50)))
    first = stage.members.start()
    first.wait(lambda: len(stage.handled(0)) == 49, "all others to be handled")
    assert first.stop() == 0
    move_back(stage, 4)
    second = stage.members.start()
    stage.wait_all_committed()
    assert second.stop() == 0
    assert Counter(stage.handled(0)) == Counter([*range(50), *range(6, 10), *range(11, 50)])


def move_back(stage: Scene, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": stage.kafka.bootstrap, "group.id": stage.topic})
    try:
        (place,) = consumer.committed([TopicPartition(stage.topic, 0)], timeout=60)
        assert place.metadata, "what is done ahead"
        place.offset -= count
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.long
@pytest.mark.parametrize("handler", ["audited:handle", "audited:handle_async"])
@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_whatever_instant_workers_are_killed_at_nothing_is_lost_and_lanes_keep_their_order(
    scene: SceneMaker, ordering: str, handler: str
) -> None:
    settings = {
        "handler": {"ordering": ordering, "concurrency": CONCURRENCY},
        "workers": {"max_crashes": 1000},
        "group": {"commit_interval_ms": 50},
    }
    stage = scene(PARTITIONS, workers=2, handler=handler, settings=settings, env={"KUNICORN_HANDLER_MS": "100"})
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    rng, kills, sent = random.Random(8), 25, 0
    for _ in range(kills):
        send_keyed(stage, 200)
        sent += 200
        wait_handled(stage, member, min(len(ended(stage.members.audit)) + rng.randrange(150), sent))
        os.kill(rng.choice([w["pid"] for w in member.wait(member.workers, "workers") if w["pid"]]), signal.SIGKILL)
    wait_handled(stage, member, sent)
    stage.wait_all_committed()
    assert member.stop() == 0
    begun = Counter((e.partition, e.offset) for e in entries(stage) if e.kind == Kind.BEGIN)
    assert sum(count - 1 for count in begun.values()) <= kills * CONCURRENCY
    assert len(ended(stage.members.audit)) == sent
    if ordering != "none":
        assert begun_out_of_order(stage) == [], "a partition's order is each key's, too"
