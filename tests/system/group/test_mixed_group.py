"""Ours and a librdkafka consumer in one group: each plans for the other, and each lets go in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kunicorn.demo.check import Audit
from kunicorn.topics import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.foreign import ForeignConsumer
from tests.system.group.journal import handled_up_to, judgement, own
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow
from tests.waiting import wait_until

pytestmark = pytest.mark.classic

PARTITIONS = 6
STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


def share(member: MemberProcess, foreign: ForeignConsumer, topic: str) -> None:
    """Wait until each runs half, and every partition is owned exactly once."""
    every = {TopicPartition(topic, number) for number in range(PARTITIONS)}
    member.wait_running(PARTITIONS // 2)
    member.wait(lambda: len(foreign.owned) == PARTITIONS // 2, "the foreign consumer's half")
    ours = own(member)
    assert not ours & foreign.owned
    assert ours | foreign.owned == every


@STRATEGIES
def test_as_leader_we_share_the_group_with_a_foreign_consumer(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], strategy: str
) -> None:
    """Invariants 2 to 4. Ours is there first, and there last."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings={"group": {"partition_assignment_strategy": [strategy]}})
    ours = members.start()
    ours.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        with ForeignConsumer(kafka.bootstrap, topic, topic, strategy, members.audit) as foreign:
            share(ours, foreign, topic)
            assert ours.status()["group"]["leader"]
            assert ours.status()["group"]["assignor"] == strategy
            before = foreign.handled
            wait_until(lambda: foreign.handled > before + 100, "records handled by the foreign consumer")
        ours.wait_running(PARTITIONS)
    ours.wait(lambda: handled_up_to(ours) == flow.sent, "the end of the flow")
    assert ours.stop() == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())
    assert all(report.handled_by[name] for name in (ours.name, "foreign"))


@STRATEGIES
def test_as_follower_we_take_the_share_that_a_foreign_leader_gives_us(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], strategy: str
) -> None:
    """Invariants 2 to 4. Ours comes later and leaves earlier."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings={"group": {"partition_assignment_strategy": [strategy]}})
    with ForeignConsumer(kafka.bootstrap, topic, topic, strategy, members.audit) as foreign:
        wait_until(lambda: len(foreign.owned) == PARTITIONS, "all partitions at the foreign consumer", 20)
        with Flow(kafka.bootstrap, topic, 500) as flow:
            ours = members.start()
            share(ours, foreign, topic)
            assert not ours.status()["group"]["leader"]
            ours.wait(lambda: sum(w["handled"] for w in ours.workers()) > 100, "records handled by ours")
            assert ours.stop() == 0
            wait_until(lambda: len(foreign.owned) == PARTITIONS, "all partitions at the foreign consumer", 20)
        wait_until(lambda: Audit(members.audit).check({}).handled == flow.sent, "the end of the flow", 30, every=0.5)
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())
