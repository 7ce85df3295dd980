"""Static members (KIP-345): a restart moves nothing, a removal frees the partitions at once."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Callable

import pytest

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.journal import own
from tests.system.members import MemberProcess, Members, leave

PARTITIONS = 4

MembersOf = Callable[..., Members]
Pods = Callable[..., tuple[Members, MemberProcess, MemberProcess]]

both_protocols = pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=[pytest.mark.long, pytest.mark.consumer])]
)


@pytest.fixture
def pods(kafka: KafkaCluster, topic: str, members_of: MembersOf) -> Pods:
    """A group of two static members, each with half of the partitions; pod-0 joined first and leads."""

    def make(**group: object) -> tuple[Members, MemberProcess, MemberProcess]:
        kafka.create_topic(topic, PARTITIONS)
        members = members_of(kafka.bootstrap, topic, workers=1, settings={"group": group})
        first = start(members, 0)
        first.wait_running(PARTITIONS)
        second = start(members, 1)
        for member in (first, second):
            member.wait_running(PARTITIONS // 2)
        return members, first, second

    return make


def start(members: Members, number: int, settings: dict[str, dict[str, object]] | None = None) -> MemberProcess:
    """The pod of that number, again or for the first time."""
    own_settings = {"group": {"group_instance_id": f"pod-{number}"}}
    for section, values in (settings or {}).items():
        own_settings.setdefault(section, {}).update(values)  # type: ignore[arg-type]
    return members.start(own_settings, name=f"pod-{number}-{len(members.started)}")


@pytest.mark.long
@both_protocols
@pytest.mark.scenario("TestStaticMemberClassicLeaveByInstance")
def test_a_killed_static_member_keeps_its_slot_until_leave_frees_it(pods: Pods, protocol: str, topic: str) -> None:
    _, first, second = pods(group_protocol=protocol)
    before, generation = own(second), first.generation()
    second.kill()
    refused = leave(first, "--instance", "pod-1")
    assert (refused.returncode, refused.stderr) == (
        2,
        "kunicorn: there is no terminal to ask for a confirmation: look first, then say --yes\n",
    )
    assert (first.generation(), len(own(first))) == (generation, PARTITIONS // 2), "the dead one is expected back"

    done = leave(first, "--instance", "pod-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"group      {topic}: Stable, 2 members" in done.stdout
    assert re.search(r"member     pod-1: \S+", done.stdout)
    assert "client     kunicorn at 127.0.0.1" in done.stdout
    assert f"partitions 2: {' '.join(map(str, sorted(before)))}" in done.stdout
    first.wait_running(PARTITIONS)

    again = leave(first, "--instance", "pod-1", "--yes", "--json")
    assert again.returncode == 2
    assert f"group '{topic}' has no static member 'pod-1': its static members are pod-0" in again.stderr
    assert first.stop() == 0


@pytest.mark.long
def test_on_a_terminal_leave_asks_first(pods: Pods) -> None:
    _, first, second = pods()
    controlling, controlled = pty.openpty()
    try:
        os.write(controlling, b"n\n")
        declined = leave(first, "--instance", "pod-1", stdin=controlled)
        assert (declined.returncode, declined.stderr) == (2, "kunicorn: nothing was removed\n")
        assert "Remove it? [y/N]" in declined.stdout
        assert second.partitions("running")
        os.write(controlling, b"y\n")
        assert leave(first, "--instance", "pod-1", stdin=controlled).returncode == 0
    finally:
        os.close(controlling)
        os.close(controlled)


@pytest.mark.long
def test_a_group_or_a_broker_that_is_not_there_is_told(kafka: KafkaCluster, topic: str, pods: Pods) -> None:
    _, first, _ = pods()
    for changes, message in (
        ({"KUNICORN_GROUP__ID": "nobodys"}, "there is no group 'nobodys' on this cluster: correct group.id"),
        ({"KUNICORN_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}, "correct kafka.bootstrap_servers, or start them"),
    ):
        os.environ.update(changes)
        try:
            done = leave(first, "--instance", "pod-1", "--yes")
        finally:
            for name in changes:
                del os.environ[name]
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@both_protocols
@pytest.mark.scenario(
    "TestStaticMemberClassicRejoin", "static_membership_test.go", "test_static_consumer_bounce_with_eager_assignment"
)
def test_a_static_member_that_restarts_within_its_session_moves_nothing(pods: Pods, protocol: str) -> None:
    members, first, second = pods(group_protocol=protocol)
    generation, before = first.generation(), own(second)
    assert second.stop() == 0
    assert "a static member keeps its place" in second.output()
    again = start(members, 1)
    again.wait_running(PARTITIONS // 2)
    assert own(again) == before
    assert first.generation() == generation, "the other one noticed nothing"
    assert len(own(first)) == PARTITIONS // 2


@pytest.mark.long
@pytest.mark.classic
@pytest.mark.scenario(
    "testOnLeaderElectedShouldSkipAssignment",
    "testStaticLeaderRejoinsGroupAndCanTriggersRebalance",
    "testStaticLeaderRejoinsGroupAndCanDetectMetadataChangesForOtherMembers",
    "test_static_consumer_persisted_after_rejoin",
)
def test_a_static_leader_that_restarts_goes_on_leading(kafka: KafkaCluster, topic: str, pods: Pods) -> None:
    """KIP-814: it is told to skip the assignment, and still watches the topics for the group."""
    members, first, second = pods()
    assert first.status()["group"]["leader"]
    generation, before = second.generation(), own(first)
    assert first.stop() == 0
    again = start(members, 0, {"kafka": {"metadata_max_age_ms": 1_000}})
    again.wait_running(PARTITIONS // 2)
    assert again.status()["group"]["leader"]
    assert (own(again), second.generation()) == (before, generation), "nothing was planned anew"
    kafka.add_partitions(topic, 2 * PARTITIONS)
    for member in (again, second):
        member.wait_running(PARTITIONS)
    assert own(again) | own(second) == {TopicPartition(topic, number) for number in range(2 * PARTITIONS)}


@both_protocols
@pytest.mark.scenario(
    "testJoinGroupRequestWithFencedInstanceIdException",
    "0102 do_test_fenced_member_classic",
    "0102 do_test_fenced_member_consumer",
    "test_fencing_static_consumer",
    "TestUnreleasedInstanceID*",
)
def test_of_two_processes_with_one_instance_id_only_one_goes_on(pods: Pods, protocol: str) -> None:
    members, _, second = pods(group_protocol=protocol)
    # With the consumer protocol the newcomer waits for one and a half of the brokers' sessions (45 s, whatever its own
    # is): the slot may belong to a dead process.
    twin = start(members, 1, {"group": {"session_timeout_ms": 3_000, "allow_short_session_timeout": True}})
    fenced, stays = (second, twin) if protocol == "classic" else (twin, second)
    assert fenced.exit_code(within=120) == 4
    assert "group_instance_id" in fenced.output()
    assert "was never awaited" not in fenced.output(), "what it owned is lost, and its workers are told so"
    stays.wait_running(PARTITIONS // 2)
