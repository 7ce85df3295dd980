"""Records that are not handled before their time, in a real service; the audit judges that none is lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.commands.desk import Desk
from tests.system.members import Members
from tests.system.producing import committed_offsets, end_offsets

RECORDS, DELAY_MS, YEARS_MS = 50, 4_000, 10**11
MODULE = f"""
import time

from kunicorn.commands.demo.audit import handle as note


def handle(record):
    age = time.time() * 1000 - record.timestamp
    if 0 <= age < {DELAY_MS}:
        raise AssertionError(f"handled {{age}} ms after its timestamp")
    note(record)
"""
HANDLER = {"entrypoint": "timed:handle", "delay_ms": DELAY_MS, "max_attempts": 1}


def test_no_record_is_handled_before_its_time_and_clocks_that_lie_hold_nothing_up(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    kafka.create_topic(topic, 3, {"message.timestamp.after.max.ms": str(2 * YEARS_MS)})
    (tmp_path / "timed.py").write_text(MODULE)
    producer, now = Producer({"bootstrap.servers": kafka.bootstrap}), int(time.time() * 1000)
    for partition, ahead in ((0, 0), (1, -3_600_000), (2, YEARS_MS)):
        for number in range(RECORDS):
            producer.produce(topic, str(number), partition=partition, timestamp=now + ahead + number)
    assert producer.flush(60) == 0
    settings = {"handler": HANDLER, "group": {"commit_interval_ms": 500}}
    members = members_of(kafka.bootstrap, topic, workers=2, settings=settings)
    member, ends = members.start(), end_offsets(kafka.bootstrap, topic, 3)
    assert set(ends.values()) == {RECORDS}
    member.wait(lambda: committed_offsets(kafka.bootstrap, topic, topic, 3) == ends, "all is handled")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, number): range(RECORDS) for number in range(3)})
    assert report.holds, report
    assert report.repeated == ()


def test_a_stop_waits_for_no_record_whose_time_has_not_come(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    kafka.create_topic(topic, 1)
    (tmp_path / "timed.py").write_text(MODULE)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, "early", partition=0)
    assert producer.flush(60) == 0
    members = members_of(kafka.bootstrap, topic, settings={"handler": {**HANDLER, "delay_ms": 3_600_000}})
    member = members.start()
    waiting = {"group": topic, "waits_for": "delay"}
    member.wait(lambda: member.metric("kunicorn_partitions_waiting", **waiting) == 1, "the partition to wait")
    assert "waits for its time" in str(member.status())
    # Ages are looked for where a partition stands still.
    member.wait(lambda: member.partitions()[0]["lag_seconds"] is not None, "the age to be known")
    assert (member.partitions()[0]["lag"], member.partitions()[0]["lag_seconds"]) == (1, 0.0)
    assert Desk(member.config).told("lag")["partitions"][0]["oldest_seconds"] == 0.0
    assert member.stop() == 0
    assert Audit(members.audit).check({TopicPartition(topic, 0): range(0)}).handled == 0
