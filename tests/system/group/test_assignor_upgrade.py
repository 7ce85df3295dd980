"""A group changes its assignor while it works: from an eager one to a cooperative one, in two rounds (KIP-429)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, judgement
from tests.system.members import Members
from tests.system.producing import Flow

PARTITIONS = 6
ROUNDS = (["cooperative-sticky", "range"], ["cooperative-sticky"])
"""Offered by every member in turn. In the second round some let go of everything before they join, others keep it."""


@pytest.mark.long
@pytest.mark.classic
@pytest.mark.scenario("TestClassicProtocolVoting", "0132 strategy_ordering")
def test_a_group_goes_from_eager_to_cooperative_without_a_stop(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Invariants 2 to 4."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic, env={"KUNICORN_HANDLER_MS": "1"})
    range_only = {"group": {"partition_assignment_strategy": ["range"]}}
    serving = [members.start(range_only), members.start(range_only)]
    for member in serving:
        member.wait_running(PARTITIONS // 2)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        for strategies in ROUNDS:
            for old in list(serving):
                assert old.stop() == 0
                serving.remove(old)
                serving.append(members.start({"group": {"partition_assignment_strategy": strategies}}))
                for member in serving:
                    member.wait_running(PARTITIONS // 2)
    first, second = serving
    assert first.status()["group"]["assignor"] == "cooperative-sticky"
    first.wait(lambda: handled_up_to(first) + handled_up_to(second) == flow.sent, "the end of the flow", 180)
    assert [first.stop(), second.stop()] == [0, 0]
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())
