"""Offsets that no handler ever sees: transaction markers, aborted records, compacted ones. None may remain as lag."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.producing import COMPACTED_END, begun, committed_offsets, compacted_log, produce, transaction

OFTEN = {"commit_interval_ms": 200}


@pytest.mark.parametrize(
    ("isolation", "handled"),
    [
        # 50 committed and their marker, 30 aborted and theirs.
        ("read_committed", range(50)),
        ("read_uncommitted", [*range(50), *range(51, 81)]),
    ],
)
def test_behind_an_aborted_transaction_at_the_tail_the_lag_reaches_zero(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], isolation: str, handled: list[int]
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    members = members_of(kafka.bootstrap, topic, settings={"kafka": {"isolation_level": isolation}, "group": OFTEN})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert [p["position"] for p in member.partitions()] == [82]
    assert member.stop() == 0
    assert committed_offsets(kafka.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): 82}
    report = Audit(members.audit).check({TopicPartition(topic, 0): handled})
    assert report.holds, report


@pytest.mark.scenario("testRefreshOffsetWithPendingTransactions")
def test_an_open_transaction_is_not_lag_until_it_ends(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """The log's end is the last stable offset to a reader of committed records only."""
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 10)
    sender = begun(kafka.bootstrap, topic)
    sender.produce(topic, b"x", partition=0)
    sender.flush(60)
    members = members_of(
        kafka.bootstrap, topic, settings={"kafka": {"isolation_level": "read_committed"}, "group": OFTEN}
    )
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert [(p["position"], p["log_end"]) for p in member.partitions()] == [(10, 10)]
    sender.commit_transaction(30)
    member.wait(lambda: [p["position"] for p in member.partitions()] == [12], "the record and its marker")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, 0): range(11)})
    assert report.holds, report


def test_a_compacted_log_is_handled_to_its_end(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    left = compacted_log(kafka, topic)
    members = members_of(kafka.bootstrap, topic, settings={"group": OFTEN})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert member.stop() == 0
    assert committed_offsets(kafka.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): COMPACTED_END}
    report = Audit(members.audit).check({TopicPartition(topic, 0): left})
    assert report.holds, report
