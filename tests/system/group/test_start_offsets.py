"""Where partitions start: no start offset is guessed, and one that a policy chose is kept (invariant 9)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import Members
from tests.system.producing import committed_offsets, produce, producer
from tests.waiting import wait_until

LATEST = {"group": {"auto_offset_reset": "latest"}}


def test_partitions_added_while_running_are_handled_from_their_beginning(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Even under `latest`: what was produced between their creation and our noticing is not skipped."""
    kafka.create_topic(topic, 2)
    members = members_of(kafka.bootstrap, topic, settings={**LATEST, "kafka": {"metadata_max_age_ms": 1_000}})
    member = members.start()
    member.wait_running(2)
    # It must not find them before there are records in them: it would prove nothing.
    member.process.send_signal(signal.SIGSTOP)
    kafka.add_partitions(topic, 5)
    for partition in range(5):
        produce(kafka.bootstrap, topic, 100, partition=partition)
    member.process.send_signal(signal.SIGCONT)
    member.wait_running(5)
    member.wait(lambda: handled_up_to(member) == 500, "500 handled records")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, partition): range(100) for partition in range(5)})
    assert report.holds, report


def test_latest_begins_at_the_end_and_is_committed_before_anything_is_handled(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """A commit interval longer than the test: only the start itself can have committed."""
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 50, partition=0)
    members = members_of(kafka.bootstrap, topic, settings={"group": {**LATEST["group"], "commit_interval_ms": 600_000}})
    member = members.start()
    member.wait_running(2)
    committed = committed_offsets(kafka.bootstrap, topic, topic, 2)
    assert committed == {TopicPartition(topic, 0): 50, TopicPartition(topic, 1): 0}


def test_a_partition_that_was_quiet_under_latest_loses_nothing_over_a_crash_and_a_restart(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    busy, quiet = TopicPartition(topic, 0), TopicPartition(topic, 1)
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka.bootstrap, topic, 50, partition=partition)
    members = members_of(kafka.bootstrap, topic, settings=LATEST)

    crashed = members.start({"group": {"session_timeout_ms": 2_000, "allow_short_session_timeout": True}})
    crashed.wait_running(2)
    crashed.kill()
    produce(kafka.bootstrap, topic, 20, partition=1)

    stopped = members.start()
    produce(kafka.bootstrap, topic, 20, partition=0)
    stopped.wait(lambda: handled_up_to(stopped) == 100 + 40, "what came meanwhile")
    assert stopped.stop() == 0
    produce(kafka.bootstrap, topic, 20, partition=1)

    last = members.start()
    last.wait(lambda: handled_up_to(last) == 100 + 60, "what came meanwhile")
    assert last.stop() == 0
    report = Audit(members.audit).check({busy: range(50, 70), quiet: range(50, 90)})
    assert report.holds, report
    assert report.repeated == ()


def _many_start_together(
    kafka: KafkaCluster,
    topic: str,
    members_of: Callable[..., Members],
    before: dict[TopicPartition, range],
    members: int = 8,
    partitions: int = 64,
) -> None:
    """A new group under `latest` on a topic with old records: nobody handles one of them, and nothing new is missed.

    `before`: what the groups before it have handled, whose audit is the same; this one's is added.
    """
    kafka.create_topic(topic, partitions)

    def produce_each(count: int) -> None:
        sender = producer(kafka.bootstrap)
        for number in range(count * partitions):
            sender.produce(topic, value=b"x", partition=number % partitions)
        assert sender.flush(60) == 0

    produce_each(5)
    group = members_of(kafka.bootstrap, topic, workers=1, settings=LATEST)
    started = [group.start(name=f"{topic}-{number}") for number in range(members)]
    wait_until(
        lambda: (
            all(member.partitions("running") for member in started)
            and sum(len(member.partitions("running")) for member in started) == partitions
        ),
        f"{partitions} running partitions in {members} members",
        120,
    )
    produce_each(2)
    wait_until(lambda: sum(handled_up_to(member) for member in started) == 7 * partitions, "what is new is handled")
    assert [member.stop() for member in started] == [0] * members
    before |= {TopicPartition(topic, number): range(5, 7) for number in range(partitions)}
    report = Audit(group.audit).check(before)
    assert report.holds, report
    group.close()


JOIN_TOGETHER = {"group.initial.rebalance.delay.ms": 3_000}
"""Kafka's default; the brokers of other tests do not wait."""


def test_a_new_group_of_many_members_handles_nothing_old_under_latest(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members]
) -> None:
    _many_start_together(kafka_factory(overrides=JOIN_TOGETHER), topic, members_of, {}, members=4, partitions=32)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_twenty_new_groups_of_many_members_handle_nothing_old_under_latest(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members]
) -> None:
    kafka, handled = kafka_factory(overrides=JOIN_TOGETHER), dict[TopicPartition, range]()
    for number in range(20):
        _many_start_together(kafka, f"{topic}-{number}", members_of, handled)
