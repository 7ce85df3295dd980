"""Ours and a foreign consumer in one group: each plans for the other, and each lets go in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.foreign import AiokafkaConsumer, Foreign, JavaConsumer, LibrdkafkaConsumer
from tests.system.group.journal import handled_up_to, judgement, own
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow
from tests.waiting import wait_until

pytestmark = pytest.mark.classic

PARTITIONS = 6
ForeignMaker = Callable[[KafkaCluster, str, str, str, Members], Foreign]


def clients_and_strategies(*at_length: str) -> pytest.MarkDecorator:
    """Every foreign client with each of its strategies; `at_length`: further ones that are no part of CI."""
    every = (
        ("librdkafka", LibrdkafkaConsumer, ["range", "cooperative-sticky"], ()),
        ("aiokafka", AiokafkaConsumer, ["sticky", "range", "roundrobin"], (pytest.mark.long,)),
        ("java", JavaConsumer, ["cooperative-sticky"], (pytest.mark.kafka4,)),
        ("java", JavaConsumer, ["range", "roundrobin", "sticky"], (pytest.mark.long, pytest.mark.kafka4)),
    )
    cells = []
    for name, client, strategies, marks in every:
        for strategy in strategies:
            cell = f"{name}-{strategy}"
            more = (pytest.mark.long,) if cell in at_length else ()
            cells.append(pytest.param(client, strategy, id=cell, marks=(*marks, *more)))
    return pytest.mark.parametrize(("client", "strategy"), cells)


def share(member: MemberProcess, foreign: Foreign, topic: str) -> None:
    """Wait until each runs half, and every partition is owned exactly once."""
    every = {TopicPartition(topic, number) for number in range(PARTITIONS)}
    member.wait_running(PARTITIONS // 2)
    member.wait(lambda: len(foreign.owned) == PARTITIONS // 2, "the foreign consumer's half")
    ours = own(member)
    assert not ours & foreign.owned
    assert ours | foreign.owned == every


def handled_by_all(members: Members, foreign: Foreign) -> int:
    """Different records that any of them has handled."""
    return Audit(members.audit).check({}).handled + sum(map(len, foreign.unaudited.values()))


def judge(kafka: KafkaCluster, members: Members, topic: str, foreign: Foreign, sent: int) -> None:
    """Of all that was sent, everything is handled and committed once, by ours or by the foreign consumer."""
    report = judgement(kafka, members, topic, PARTITIONS, foreign.unaudited)
    assert (report.handled + sum(map(len, foreign.unaudited.values())), report.repeated) == (sent, ())


@clients_and_strategies()
@pytest.mark.scenario("0113 o_java_interop")
def test_as_leader_we_share_the_group_with_a_foreign_consumer(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], client: ForeignMaker, strategy: str
) -> None:
    """Invariants 2 to 4. Ours is there first, and there last."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings={"group": {"partition_assignment_strategy": [strategy]}})
    ours = members.start()
    ours.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        with client(kafka, topic, topic, strategy, members) as foreign:
            share(ours, foreign, topic)
            assert ours.status()["group"]["leader"]
            assert ours.status()["group"]["assignor"] == strategy
            before = foreign.handled
            wait_until(lambda: foreign.handled > before + 100, "records handled by the foreign consumer")
        ours.wait_running(PARTITIONS)
    ours.wait(lambda: handled_up_to(ours) == flow.sent, "the end of the flow", 180)
    assert ours.stop() == 0
    judge(kafka, members, topic, foreign, flow.sent)
    assert foreign.handled


# A follower decodes what it is given: strategies differ in the leader's plan.
@clients_and_strategies("librdkafka-range")
@pytest.mark.scenario("0113 o_java_interop")
def test_as_follower_we_take_the_share_that_a_foreign_leader_gives_us(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], client: ForeignMaker, strategy: str
) -> None:
    """Invariants 2 to 4. Ours comes later and leaves earlier."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings={"group": {"partition_assignment_strategy": [strategy]}})
    with client(kafka, topic, topic, strategy, members) as foreign:
        wait_until(lambda: len(foreign.owned) == PARTITIONS, "all partitions at the foreign consumer")
        with Flow(kafka.bootstrap, topic, 500) as flow:
            ours = members.start()
            share(ours, foreign, topic)
            assert not ours.status()["group"]["leader"]
            ours.wait(lambda: sum(w["handled"] for w in ours.workers()) > 100, "records handled by ours")
            assert ours.stop() == 0
            wait_until(lambda: len(foreign.owned) == PARTITIONS, "all partitions at the foreign consumer")
            # Its commits were refused while the group rebalanced, and it commits with records only.
            enough = handled_by_all(members, foreign) + 200
            commits = "its commits after the rebalance"
            wait_until(lambda: handled_by_all(members, foreign) >= enough, commits, every=0.5)
        wait_until(lambda: handled_by_all(members, foreign) >= flow.sent, "the end of the flow", 180, every=0.5)
    judge(kafka, members, topic, foreign, flow.sent)
