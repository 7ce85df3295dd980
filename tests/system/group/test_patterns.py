"""Subscriptions by pattern: topics that appear later are found, whoever matches them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import own
from tests.system.members import Members
from tests.system.producing import produce


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=[pytest.mark.consumer, pytest.mark.long])]
)
@pytest.mark.scenario("0113 d_change_subscription_add_topic", "0113 n_wildcard", "0033 regex_subscribe")
def test_topics_that_match_a_pattern_later_are_taken_up_and_those_of_others_left_alone(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], protocol: str
) -> None:
    """The service matches in the classic protocol, the brokers do in the consumer protocol: by the same rules."""
    name = topic.replace("_", "-")
    kafka.create_topic(f"{name}.one", 2)
    kafka.create_topic(f"not-{name}.one", 1)
    kafka.create_topic(f"{name}-by-name", 1)
    members = members_of(
        kafka.bootstrap,
        topic,
        settings={
            "kafka": {"metadata_max_age_ms": 1000},
            # Matched from the beginning of a name, not to its end.
            "group": {"group_protocol": protocol, "topics": [f"^{name}\\.", f"{name}-by-name"]},
        },
    )
    member = members.start()
    member.wait_running(3)
    kafka.create_topic(f"{name}.two", 3)
    member.wait_running(6)
    produce(kafka.bootstrap, f"{name}.two", 30)
    member.wait(lambda: sum(p["position"] or 0 for p in member.partitions()) == 30, "the new topic's records")
    assert {tp.topic for tp in own(member)} == {f"{name}.one", f"{name}.two", f"{name}-by-name"}
    assert member.stop() == 0
