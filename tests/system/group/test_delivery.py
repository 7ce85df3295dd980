"""One member on its own: everything is handled exactly once, and committed by the time it has exited."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, judgement
from tests.system.members import Members
from tests.system.producing import produce

PARTITIONS = 8
DRAIN_BUDGET = 25.0
"""Seconds: `drain_timeout_ms` as it is by default."""


@pytest.mark.parametrize("fetcher", ["librdkafka", "own"])
@pytest.mark.parametrize("records", [30_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.scenario("0113 m_unsubscribe_2")
def test_every_record_is_handled_exactly_once_and_committed_at_the_end(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], records: int, fetcher: str
) -> None:
    """Invariants 1, 4 and 8."""
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap, topic, records)
    members = members_of(kafka.bootstrap, topic, settings={"kafka": {"fetcher": fetcher}})
    member = members.start()
    member.wait(lambda: handled_up_to(member) == records, f"{records} handled records", 60 + records / 4_000)
    assert member.stop(within=DRAIN_BUDGET) == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated, report.processes) == (records, (), 2)
    assert "membership is not certain" not in member.output(), "no worker started without a lease"


@pytest.mark.long
@pytest.mark.scenario("test_consumer_bounce")
def test_a_stop_in_the_middle_of_a_backlog_leaves_the_rest_to_the_next_start(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Invariants 1 and 8: what the first run handled is committed, so that the second one repeats none of it."""
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap, topic, 50_000)
    members = members_of(kafka.bootstrap, topic, env={"KUNICORN_HANDLER_MS": "1"})
    first = members.start()
    first.wait(lambda: handled_up_to(first) > 5_000, "a part of the backlog")
    assert first.stop(within=DRAIN_BUDGET) == 0
    second = members.start(env={"KUNICORN_HANDLER_MS": "0"})
    second.wait(lambda: handled_up_to(second) == 50_000, "the rest")
    assert second.stop(within=DRAIN_BUDGET) == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert report.repeated == ()
    assert all(report.handled_by.values())
    assert set(report.handled_by) == {first.name, second.name}
