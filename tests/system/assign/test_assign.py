"""Partitions named by [assign]: a replay handles what lies between start and end, and touches no group."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from confluent_kafka import ConsumerGroupState

from kunicorn.commands.demo.judge import Audit
from kunicorn.ipc.clock import now_ns
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.audits import ended
from tests.system.group.journal import handled_up_to, own
from tests.system.members import Members
from tests.system.producing import committed_offsets, produce, producer, transaction

Assigned = Callable[..., Members]


def written(kafka: KafkaCluster, topic: str, partition: int, timestamps_ms: list[int]) -> None:
    """One record for each timestamp, delivered."""
    sender = producer(kafka.bootstrap)
    for at in timestamps_ms:
        sender.produce(topic, key=b"k", value=b"v", partition=partition, timestamp=at)
    assert sender.flush(60) == 0


def test_a_replay_from_a_time_to_the_end_handles_exactly_the_records_between(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    """While more is written: the end is where the logs ended at the start."""
    kafka.create_topic(topic, 3)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    at = int(noon.timestamp() * 1000)
    written(kafka, topic, 0, [at - 2, at - 1, at, at + 1, at + 2])
    written(kafka, topic, 1, [at - 2, at - 1])
    written(kafka, topic, 2, list(range(at, at + 500)))
    members = assigned([topic], start=noon.isoformat(), stop="end", env={"KUNICORN_HANDLER_MS": "20"})
    member = members.start()
    member.wait(lambda: member.partitions("running") or member.partitions("released"), "the first partitions")
    written(kafka, topic, 0, [at + 10_000] * 500)
    written(kafka, topic, 1, [at + 10_000] * 500)
    assert member.exit_code() == 0, member.output()
    report = Audit(members.audit).check(
        {
            TopicPartition(topic, 0): range(2, 5),
            TopicPartition(topic, 1): range(0),
            TopicPartition(topic, 2): range(500),
        }
    )
    assert report.holds, report
    assert report.repeated == ()


def test_a_worker_killed_in_the_middle_repeats_no_more_than_it_had_in_hand(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    """There are no commits to go back to: the ledger says where its partitions go on."""
    kafka.create_topic(topic, 4)
    for partition in range(4):
        produce(kafka.bootstrap, topic, 400, partition=partition)
    members = assigned([topic], start="earliest", stop="end", env={"KUNICORN_HANDLER_MS": "15"})
    member = members.start()
    for kills in (1, 2):
        member.wait(lambda kills=kills: handled_up_to(member) > 150 * kills, "some records")
        os.kill(member.workers()[0]["pid"], signal.SIGKILL)
    assert member.exit_code() == 0, member.output()
    report = Audit(members.audit).check({TopicPartition(topic, partition): range(400) for partition in range(4)})
    assert report.holds, report
    assert len(report.repeated) <= 2


@pytest.mark.long
def test_a_hot_partition_gets_a_worker_to_itself_and_each_is_handled_once_up_to_its_end(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    kafka.create_topic(topic, 8)
    counts = {0: 14_000, **dict.fromkeys(range(1, 8), 2000)}
    for partition, count in counts.items():
        produce(kafka.bootstrap, topic, count, partition=partition, value=b"x")
    eager = {"workers": {"sharing_interval_ms": 300}}
    members = assigned([topic], start="earliest", stop="end", settings=eager, env={"KUNICORN_HANDLER_MS": "2"})
    member = members.start()
    member.wait(lambda: member.output().count(" moves from worker ") >= 2, "two moves")
    produce(kafka.bootstrap, topic, 500, partition=0)
    assert member.exit_code() == 0, member.output()
    report = Audit(members.audit).check({TopicPartition(topic, each): range(count) for each, count in counts.items()})
    assert report.holds, report
    assert report.repeated == ()


@pytest.mark.long
def test_a_live_group_on_the_same_topic_is_not_touched(
    kafka: KafkaCluster, topic: str, assigned: Assigned, members_of: Callable[..., Members]
) -> None:
    """Even where the replay carries the group's own id, as access lists may demand."""
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 200)
    group = members_of(kafka.bootstrap, topic, env={"KUNICORN_AUDIT_DIR": "group"}).start(name="group")
    group.wait(lambda: group.lag() == 0, "everything committed")
    generation = group.generation()
    before = committed_offsets(kafka.bootstrap, topic, topic, 2)

    members = assigned([topic], stop="end", settings={"group": {"id": topic}})
    replay = members.start(name="replay")
    assert replay.exit_code() == 0, replay.output()
    described = kafka.admin().describe_consumer_groups([topic])[topic].result(60)
    assert described.state is ConsumerGroupState.STABLE
    assert [each.client_id for each in described.members] == ["kunicorn"]
    assert (group.generation(), committed_offsets(kafka.bootstrap, topic, topic, 2)) == (generation, before)
    report = Audit(members.audit).check({tp: range(end) for tp, end in before.items()})
    assert report.holds, report
    assert group.stop() == 0


@pytest.mark.long
def test_a_stop_finishes_what_is_in_hand_and_tells_where_to_go_on(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka.bootstrap, topic, 2000, partition=partition)
    members = assigned([f"{topic}:0-1"], env={"KUNICORN_HANDLER_MS": "20"})
    first = members.start()
    first.wait(lambda: handled_up_to(first) > 100, "some records")
    assert first.stop() == 0
    (line,) = [line for line in first.output().splitlines() if "to go on from here" in line]
    start = tomllib.loads(line[line.index("start = ") :])["start"]
    second = members.start({"assign": {"start": start, "stop": "end"}}, env={"KUNICORN_HANDLER_MS": "0"})
    assert second.exit_code() == 0, second.output()
    report = Audit(members.audit).check({TopicPartition(topic, partition): range(2000) for partition in range(2)})
    assert report.holds, report
    assert report.repeated == ()
    assert set(report.handled_by) == {"member-1", "member-2"}


def test_an_end_behind_a_transactions_marker_is_reached(kafka: KafkaCluster, topic: str, assigned: Assigned) -> None:
    """No record carries the last offset: the marker does."""
    kafka.create_topic(topic, 1)
    transaction(kafka.bootstrap, topic, 10, commit=True)
    members = assigned([topic], stop="end", settings={"kafka": {"isolation_level": "read_committed"}})
    member = members.start()
    assert member.exit_code() == 0, member.output()
    report = Audit(members.audit).check({TopicPartition(topic, 0): range(10)})
    assert report.holds, report


def test_a_start_outside_the_log_follows_the_policy(kafka: KafkaCluster, topic: str, assigned: Assigned) -> None:
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka.bootstrap, topic, 10, partition=partition)
    kafka.delete_records(topic, {0: 5})
    members = assigned([topic], start={f"{topic}:0": 2, f"{topic}:1": 8}, stop="end")
    member = members.start()
    assert member.exit_code() == 0, member.output()
    report = Audit(members.audit).check(
        {TopicPartition(topic, 0): range(5, 10), TopicPartition(topic, 1): range(8, 10)}
    )
    assert report.holds, report
    assert "position 2 is not in the log (5-10), going on at 5" in member.output()


def test_partitions_that_a_topic_gains_are_fetched_where_no_numbers_were_given(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    """From their beginning, whatever the start; and not those of a topic given with numbers."""
    numbered = f"{topic}-numbered"
    for name in (topic, numbered):
        kafka.create_topic(name, 1)
    members = assigned([topic, f"{numbered}:0"], start="latest", settings={"kafka": {"metadata_max_age_ms": 500}})
    member = members.start()
    member.wait_running(2)
    for name in (numbered, topic):
        kafka.add_partitions(name, 2)
        produce(kafka.bootstrap, name, 20, partition=1)
    member.wait(lambda: handled_up_to(member) == 20, "the new partition's records")
    assert own(member) == {TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(numbered, 0)}
    assert member.stop() == 0


def test_status_and_metrics_show_positions_and_lag_but_no_group(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 30, partition=1)
    member = assigned([topic]).start()
    member.wait(lambda: member.get("/readyz")[0] == 200, "readiness")
    member.wait(lambda: [p["lag"] for p in member.partitions()] == [0, 0], "no lag")
    status = member.status()
    assert (status["group"], status["commit"]) == (None, None)
    assert status["assign"] == {"stop": "never", "partitions": 2, "finished": 0, "fetched": True}
    assert [p["position"] for p in member.partitions()] == [0, 30]
    assert [p["committed"] for p in member.partitions()] == [None, None]
    series = {line.split("{")[0].split(" ")[0] for line in member.get("/metrics")[1].splitlines() if line[0] != "#"}
    assert {"kafka_consumer_records_lag", "kunicorn_ready"} <= series
    assert not [name for name in series if "rebalance" in name or "heartbeat" in name or "commit" in name], series
    assert member.stop() == 0


def test_a_halted_partition_does_not_keep_a_replay_from_ending(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    """The others are finished; nothing more can happen, and exit code 6 says that something is missing."""
    kafka.create_topic(topic, 2)
    for partition in range(2):
        produce(kafka.bootstrap, topic, 10, partition=partition, value=b"poison" if partition else b"fine")
    handler = {"entrypoint": "tests.system.handlers.poisoned:handle", "max_attempts": 1}
    member = assigned([topic], stop="end", settings={"handler": handler}).start()
    assert member.exit_code() == 6, member.output()
    assert f"1 partitions are halted, or their topic is deleted, before their end: {topic}:1" in member.output()


def test_a_topic_created_anew_is_consumed_from_its_beginning(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    """The new topic is longer than the old one was: no position is out of range to give it away."""
    kafka.create_topic(topic, 2)
    members = assigned([topic], start="earliest", settings={"kafka": {"metadata_max_age_ms": 2000}})
    member = members.start()
    for partition in range(2):
        produce(kafka.bootstrap, topic, 100, partition=partition)
    member.wait(lambda: handled_up_to(member) == 200, "the old topic")
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 2)
    began = now_ns()
    for partition in range(2):
        produce(kafka.bootstrap, topic, 300, partition=partition)
    every = {(partition, offset) for partition in range(2) for offset in range(300)}
    member.wait(lambda: "deleted and created anew" in member.output(), "the new topic to be noticed")
    member.wait(lambda: ended(members.audit, since=began).keys() == every, "the new topic")
    assert member.stop() == 0


@pytest.mark.long
def test_a_topic_deleted_in_the_middle_does_not_keep_a_replay_from_ending(
    kafka: KafkaCluster, topic: str, assigned: Assigned
) -> None:
    doomed = f"{topic}-doomed"
    for name in (topic, doomed):
        kafka.create_topic(name, 1)
        produce(kafka.bootstrap, name, 1_000, value=b"x" * 10_000)
    small = {"fetch.message.max.bytes": 50_000, "queued.max.messages.kbytes": 100}
    member = assigned(
        [topic, doomed],
        stop="end",
        env={"KUNICORN_HANDLER_MS": "15"},
        settings={"kafka": {"metadata_max_age_ms": 500, "librdkafka": small}},
    ).start()
    member.wait_running(2)
    kafka.admin().delete_topics([doomed])[doomed].result(60)
    assert member.exit_code() == 6, member.output()
    assert f"halted, or their topic is deleted, before their end: {doomed}:0" in member.output()


@pytest.mark.parametrize(
    ("partitions", "start", "message"),
    [
        (["{topic}:0-2", "{topic}:7"], "earliest", "assign.partitions: {topic}:2, {topic}:7 do not exist"),
        (["{topic}-other"], "earliest", "'{topic}-other' does not exist on this cluster: create it, or correct assign"),
        pytest.param(["{topic}"], {"{topic}:0": 1}, "assign.start has no offset for {topic}:1", marks=pytest.mark.long),
    ],
)
def test_partitions_that_cannot_be_had_are_refused_by_name(
    kafka: KafkaCluster, topic: str, assigned: Assigned, partitions: list[str], start: object, message: str
) -> None:
    kafka.create_topic(topic, 2)
    if isinstance(start, dict):
        start = {key.format(topic=topic): offset for key, offset in start.items()}
    member = assigned([each.format(topic=topic) for each in partitions], start=start).start()
    assert member.exit_code() == 2
    assert message.format(topic=topic) in member.output()
