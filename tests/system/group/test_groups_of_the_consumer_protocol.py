"""Groups with the consumer protocol (KIP-848) on real brokers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.conftest import SHORT_SESSIONS, USUAL_SESSIONS
from tests.system.group.foreign import Foreign, JavaConsumer, LibrdkafkaConsumer
from tests.system.group.journal import handled_up_to, judgement, own
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow, committed_offsets, produce
from tests.waiting import wait_until

pytestmark = pytest.mark.consumer

PARTITIONS = 6
CONSUMER = {"group": {"group_protocol": "consumer"}}

MembersOf = Callable[..., Members]


def together_own(members: list[MemberProcess], topic: str) -> None:
    """Wait until each runs its even share, and every partition is owned exactly once."""
    for member in members:
        member.wait_running(PARTITIONS // len(members))
    owned = [tp for member in members for tp in own(member)]
    assert sorted(owned) == [TopicPartition(topic, number) for number in range(PARTITIONS)]


@pytest.mark.scenario("consumer_group_848_test.go")
def test_a_member_handles_everything_once_and_leaves_no_trace(
    kafka: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    """Invariants 1, 4 and 8."""
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap, topic, 50_000)
    members = members_of(kafka.bootstrap, topic, settings=CONSUMER)
    member = members.start()
    member.wait(lambda: handled_up_to(member) == 50_000, "everything handled")
    group = member.status()["group"]
    assert (group["protocol"], group["state"]) == ("consumer", "stable")
    assert member.stop() == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (50_000, ())
    # Had the first one not left, its partitions would be its own for 45 s more.
    second = members.start()
    second.wait_running(PARTITIONS)
    assert second.stop() == 0


def test_a_session_timeout_that_the_brokers_have_shorter_for_the_group_ends_the_lease_as_early(
    kafka: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    """Invariant 4: the brokers do not tell it with their heartbeats, and give the partitions away after it."""
    kafka.create_topic(topic, 1)
    kafka.tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", kafka.bootstrap, "--alter", "--entity-type", "groups", "--entity-name", topic),
        *("--add-config", "consumer.session.timeout.ms=47000"),
    )
    settings = {"group": {**CONSUMER["group"], "session_timeout_ms": 60_000}}
    member = members_of(kafka.bootstrap, topic, settings=settings).start()
    member.wait_running(1)
    assert member.status()["group"]["session_timeout"] == 47.0
    assert member.status()["group"]["lease_left"] <= 47.0
    member.wait_said("is 47000, below group.session_timeout_ms = 60000")
    assert member.stop() == 0


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.scenario("Test848PartitionHandoffNoDuplicates", "consumer_group_848_test.go")
def test_members_come_and_go_and_every_record_is_handled_once(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, rounds: int
) -> None:
    """Invariants 1 to 4 and 8."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings=CONSUMER, env={"KUNICORN_HANDLER_MS": "1"})
    first = members.start()
    first.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, topic, 1_000) as flow:
        for _ in range(rounds):
            second = members.start()
            together_own([first, second], topic)
            third = members.start()
            together_own([first, second, third], topic)
            assert [second.stop(), third.stop()] == [0, 0]
            first.wait_running(PARTITIONS)
    first.wait(lambda: handled_up_to(first) == flow.sent, "the end of the flow", 180)
    assert first.stop() == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())


@pytest.mark.long
@pytest.mark.parametrize("client", [LibrdkafkaConsumer, pytest.param(JavaConsumer, marks=pytest.mark.long)])
def test_a_foreign_consumer_shares_the_group(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, client: Callable[..., Foreign]
) -> None:
    """Invariants 2 to 4: whoever comes or goes first."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings=CONSUMER)
    ours = members.start()
    ours.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        with client(kafka, topic, topic, "consumer", members) as foreign:
            ours.wait_running(PARTITIONS // 2)
            wait_until(lambda: len(foreign.owned) == PARTITIONS // 2, "the foreign consumer's half")
            assert not own(ours) & foreign.owned
            before = foreign.handled
            wait_until(lambda: foreign.handled > before + 100, "records handled by the foreign consumer")
            assert ours.stop() == 0
            wait_until(lambda: len(foreign.owned) == PARTITIONS, "all partitions at the foreign consumer")
            ours = members.start()
            ours.wait_running(PARTITIONS // 2)
        ours.wait_running(PARTITIONS)
    ours.wait(lambda: handled_up_to(ours) == flow.sent, "the end of the flow", 180)
    assert ours.stop() == 0
    report = judgement(kafka, members, topic, PARTITIONS, foreign.unaudited)
    assert (report.handled + sum(map(len, foreign.unaudited.values())), report.repeated) == (flow.sent, ())


@pytest.mark.long
def test_a_static_member_keeps_its_partitions_over_a_restart(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: MembersOf
) -> None:
    kafka = kafka_factory(overrides=USUAL_SESSIONS)
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, settings=CONSUMER)
    first, second = (members.start({"group": {"group_instance_id": f"pod-{number}"}}) for number in range(2))
    together_own([first, second], topic)
    before, stayed = own(second), first.status()["group"]["rebalances"]
    assert second.stop() == 0
    again = members.start({"group": {"group_instance_id": "pod-1"}})
    again.wait_running(PARTITIONS // 2)
    assert own(again) == before
    assert first.status()["group"]["rebalances"] == stayed, "the other one noticed nothing"
    assert [first.stop(), again.stop()] == [0, 0]


@pytest.mark.long
@pytest.mark.scenario("0106 do_test_session_timeout", "0106 do_test_commit_on_lost", "0147 fenced")
def test_partitions_are_lost_by_a_member_that_was_frozen_for_too_long_and_won_again(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: MembersOf
) -> None:
    """Invariants 3 and 4: the frozen member's workers pause when its session is over, and repeat nothing."""
    kafka = kafka_factory(overrides=SHORT_SESSIONS)
    kafka.create_topic(topic, PARTITIONS)
    settings = {
        "group": {"group_protocol": "consumer", "session_timeout_ms": 6000, "allow_short_session_timeout": True}
    }
    members = members_of(kafka.bootstrap, topic, settings=settings, env={"KUNICORN_HANDLER_MS": "1"})
    first = members.start()
    first.wait_running(PARTITIONS)
    second = members.start()
    together_own([first, second], topic)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        second.process.send_signal(signal.SIGSTOP)
        first.wait_running(PARTITIONS)
        second.process.send_signal(signal.SIGCONT)
        second.wait(lambda: "partitions are lost" in second.output(), "the loss to be noticed")
        together_own([first, second], topic)
    first.wait(lambda: handled_up_to(first) + handled_up_to(second) == flow.sent, "the end of the flow", 180)
    assert [first.stop(), second.stop()] == [0, 0]
    assert sum(committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS).values()) == flow.sent
