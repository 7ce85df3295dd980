"""From the classic protocol to the consumer protocol and back while records flow, and never by mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, judgement, own
from tests.system.members import Members
from tests.system.producing import Flow, produce

pytestmark = pytest.mark.consumer

PARTITIONS = 6
CONSUMER = {"group": {"group_protocol": "consumer", "allow_protocol_upgrade": True}}
CLASSIC = {"group": {"group_protocol": "classic"}}
TYPO = {"group": {"group_protocol": "consumer", "allow_protocol_upgrade": False}}


@pytest.mark.long
@pytest.mark.scenario("consumer_protocol_migration_test.py")
def test_a_live_group_changes_its_protocol_and_changes_it_back_one_member_at_a_time(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Invariants 2 to 4: nothing is lost and nothing is handled twice on either way."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(kafka.bootstrap, topic)
    serving = [members.start(CLASSIC), members.start(CLASSIC)]
    for member in serving:
        member.wait_running(PARTITIONS // 2)
    with Flow(kafka.bootstrap, topic, 500) as flow:
        for settings in (CONSUMER, CLASSIC):
            for old in list(serving):
                new = members.start(settings)
                new.wait(lambda new=new: own(new), "partitions for the newcomer")
                assert old.stop() == 0
                serving = [member for member in serving if member is not old] + [new]
            for member in serving:
                member.wait_running(PARTITIONS // 2)
                assert member.status()["group"]["protocol"] == settings["group"]["group_protocol"]
    first, second = serving
    first.wait(lambda: handled_up_to(first) + handled_up_to(second) == flow.sent, "the end of the flow", 180)
    assert [first.stop(), second.stop()] == [0, 0]
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())


@pytest.mark.long
def test_a_classic_group_is_not_converted_by_a_typo(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """Neither a live one nor one that has only offsets left."""
    kafka.create_topic(topic, PARTITIONS)
    produce(kafka.bootstrap, topic, 100)
    members = members_of(kafka.bootstrap, topic)
    first = members.start(CLASSIC)
    first.wait(lambda: handled_up_to(first) == 100, "everything handled")
    before = first.generation()
    typo = members.start(TYPO)
    assert typo.exit_code() == 2
    assert "group.allow_protocol_upgrade = true" in typo.output()
    assert first.generation() == before
    assert first.stop() == 0
    assert members.start(TYPO).exit_code() == 2
    wanted = members.start(CONSUMER)
    wanted.wait_running(PARTITIONS)
    assert handled_up_to(wanted) == 100, "the offsets stayed"
    assert wanted.stop() == 0
    again = members.start(TYPO)
    again.wait_running(PARTITIONS)
    assert again.stop() == 0
