"""A running member's log shrinks: by retention from below, by an unclean election from above (invariant 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic

from kunicorn.commands.demo.audit import Kind, read_audit
from kunicorn.ipc.messages import FailureKind
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.fetching.client import Client, KnownTopics, Librdkafka, Login
from tests.kafka import KafkaCluster
from tests.system.commands.desk import Desk
from tests.system.group.journal import handled_up_to
from tests.system.group.one_client import own_client, taken
from tests.system.group.outside_the_log import resets, says_where_it_goes_on
from tests.system.members import Members, group_settings, toml
from tests.system.producing import committed_offsets, produce
from tests.waiting import wait_until

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture
def three() -> Iterator[KafkaCluster]:
    """Each in a rack of its own."""
    with KafkaCluster(brokers=3, overrides={"broker.rack": "rack-{id}", "replica.selector.class": SELECTOR}) as cluster:
        yield cluster


def handled(members: Members) -> list[int]:
    """Offsets of partition 0 in the order in which their handling ended."""
    entries = [entry for file in read_audit(members.audit) for entry in file.entries() if entry.kind == Kind.END]
    return [entry.offset for entry in sorted(entries, key=lambda entry: entry.time_ns)]


def test_retention_that_overtakes_a_slow_member_is_said_and_what_is_left_is_handled(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """More is produced than a worker fetches ahead, so that it meets the gap in the middle of its work."""
    end, start = 60_000, 55_000
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, end, value=b"x" * 1_000)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="kunicorn.commands.demo.audit:handle_batch",
        # It fetches a few megabytes ahead of 60, and is long on its way to where the log will begin.
        settings={"handler": {"mode": "batch", "batch_max_records": 100}, "workers": {"memory_per_worker_mb": 32}},
        env={"KUNICORN_HANDLER_MS": "80"},
    )
    member = members.start()
    member.wait_running(1)
    member.wait(lambda: handled_up_to(member) > 200, "its first records")
    kafka.delete_records(topic, {0: start})
    member.wait(lambda: resets(member) == 1, "the gap to be met")
    member.wait(lambda: handled_up_to(member) == end, "the end of the log")
    assert member.stop() == 0
    done = handled(members)
    (gap,) = [at for at in range(1, len(done)) if done[at] != done[at - 1] + 1]
    assert done[0] == 0
    assert (done[gap], done[-1]) == (start, end - 1)
    assert f"position {done[gap - 1] + 1} is not in the log" in member.output()


@pytest.mark.long
@pytest.mark.scenario("0139 offset_validation", "truncation_test.py")
def test_after_an_unclean_election_a_running_member_goes_on_where_the_logs_part(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Neither at the end of the log, which would skip what came since, nor at its start (KIP-320)."""
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    wanted = NewTopic(topic, num_partitions=1, replica_assignment=[[1, 2]], config=config)
    three.admin().create_topics([wanted])[topic].result(60)
    leader, follower = three.broker(1), three.broker(2)
    members = members_of(three.bootstrap, topic, settings={"group": {"auto_offset_reset": "latest"}})
    member = members.start()
    member.wait_running(1)
    produce(three.bootstrap, topic, 100)
    three.wait_until_whole()
    follower.kill()
    produce(three.bootstrap, topic, 50)
    member.wait(lambda: handled_up_to(member) == 150, "what only the leader has")
    leader.kill()
    follower.start()
    wait_until(lambda: leader_of(three, topic) == follower.id, "an unclean election", every=0.2)
    produce(three.bootstrap, topic, 20)
    member.wait(lambda: says_where_it_goes_on(member, 150, 100), "a word about the truncation")
    member.wait(lambda: handled_up_to(member) == 120, "what came after the election")
    member.wait(lambda: resets(member) == 1, "the reset to be counted")
    leader.start()
    three.wait_until_whole()
    assert member.stop() == 0
    assert handled(members) == [*range(150), *range(100, 120)]
    assert committed_offsets(three.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): 120}


@pytest.mark.long
def test_after_an_unclean_election_commands_count_from_where_the_logs_part_as_a_restart_does(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    """The log has grown beyond the committed offset by then, so that its edges alone tell nothing (KIP-320)."""
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    wanted = NewTopic(topic, num_partitions=1, replica_assignment=[[1, 2]], config=config)
    three.admin().create_topics([wanted])[topic].result(60)
    leader, follower = three.broker(1), three.broker(2)
    members = members_of(three.bootstrap, topic)
    member = members.start()
    member.wait_running(1)
    produce(three.bootstrap, topic, 100)
    three.wait_until_whole()
    follower.kill()
    produce(three.bootstrap, topic, 50)
    member.wait(lambda: handled_up_to(member) == 150, "what only the leader has")
    assert member.stop() == 0
    leader.kill()
    follower.start()
    wait_until(lambda: leader_of(three, topic) == follower.id, "an unclean election", every=0.2)
    produce(three.bootstrap, topic, 80)
    config_file = tmp_path / "config.toml"
    config_file.write_text(toml(group_settings(three.bootstrap, [topic], topic)))
    (shown,) = Desk(config_file).told("offsets", "show")["partitions"]
    assert (shown["committed"], shown["log_end"], shown["lag"]) == (150, 180, 80)
    again = members.start()
    again.wait(lambda: handled_up_to(again) == 180, "what came after the election")
    again.wait(lambda: resets(again) == 1, "the reset to be counted")
    assert again.stop() == 0
    assert handled(members) == [*range(150), *range(100, 180)]


@contextmanager
def librdkafka(kafka: KafkaCluster, topic: str) -> Iterator[Client]:
    # As workers have it: what has no offset in the log is an error.
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "error"})
    client = Librdkafka(consumer, KnownTopics(consumer), Login(None))
    try:
        client.learn([topic], 60)
        yield client
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "client_of",
    [librdkafka, own_client, partial(own_client, rack="rack-1")],
    ids=["librdkafka", "our own fetcher", "our own fetcher from the closest replica"],
)
def test_a_worker_that_takes_over_a_log_that_was_cut_and_has_grown_again_notices(
    three: KafkaCluster, topic: str, client_of: Callable[[KafkaCluster, str], AbstractContextManager[Client]]
) -> None:
    """Nobody fetched it meanwhile, as where it moves from one worker to another in an unclean election (KIP-320). A
    leader that names a replica nearer to us compares nothing."""
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    wanted = NewTopic(topic, num_partitions=1, replica_assignment=[[1, 2]], config=config)
    three.admin().create_topics([wanted])[topic].result(60)
    leader, follower = three.broker(1), three.broker(2)
    produce(three.bootstrap, topic, 100)
    three.wait_until_whole()
    follower.kill()
    produce(three.bootstrap, topic, 50)
    leader.kill()
    follower.start()
    wait_until(lambda: leader_of(three, topic) == follower.id, "an unclean election", every=0.2)
    produce(three.bootstrap, topic, 80)
    leader.start()
    three.wait_until_whole()
    place = TopicPartition(topic, 0)
    with client_of(three, topic) as client:
        client.assign({place: Position(150, 0)})
        found = taken(client)
    ((at_fault, kind, _),) = found.faults
    assert (list(found.runs), at_fault, kind) == ([], place, FailureKind.TRUNCATED)


def leader_of(kafka: KafkaCluster, topic: str) -> int:
    """Of partition 0; −1 while it has none."""
    return kafka.admin().list_topics(topic, timeout=60).topics[topic].partitions[0].leader
