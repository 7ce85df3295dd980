"""What an operator sees of us with Kafka's own tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupState

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import Members
from tests.system.producing import committed_offsets, end_offsets, produce

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def rows(printed: str) -> list[dict[str, str]]:
    """A table of the tool, by its header; the last column may hold spaces."""
    lines = [line for line in printed.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if line.startswith("GROUP"))
    header = lines[start].split()
    return [dict(zip(header, line.split(maxsplit=len(header) - 1), strict=True)) for line in lines[start + 1 :]]


@pytest.mark.classic
@pytest.mark.kafka4
def test_kafkas_group_command_shows_our_member_and_agrees_with_our_offsets(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    kafka.create_topic(topic, 4)
    produce(kafka.bootstrap, topic, 1_000)
    settings = {"kafka": {"client_id": "orders-7"}, "group": {"commit_interval_ms": 200}}
    member = members_of(kafka.bootstrap, topic, settings=settings).start()
    member.wait(lambda: handled_up_to(member) == 1_000, "1000 handled records")
    ends = end_offsets(kafka.bootstrap, topic, 4)
    member.wait(lambda: committed_offsets(kafka.bootstrap, topic, topic, 4) == ends, "1000 committed records")

    def describe(*what: str) -> list[dict[str, str]]:
        return rows(kafka.tool(GROUPS, "--bootstrap-server", kafka.bootstrap, "--describe", "--group", topic, *what))

    (shown,) = describe("--members", "--verbose")
    group = member.status()["group"]
    assert (shown["CONSUMER-ID"], shown["CLIENT-ID"]) == (group["member_id"], "orders-7")
    assert shown["#PARTITIONS"] == "4"
    assert f"{topic}:0,1,2,3" in shown.values()
    assert {
        int(row["PARTITION"]): (int(row["CURRENT-OFFSET"]), int(row["LOG-END-OFFSET"]), row["LAG"], row["CONSUMER-ID"])
        for row in describe("--offsets")
    } == {tp.partition: (end, end, "0", group["member_id"]) for tp, end in ends.items()}
    # What its third table is made of, without a third program.
    told = kafka.admin().describe_consumer_groups([topic])[topic].result(60)
    assert (told.state, len(told.members)) == (ConsumerGroupState.STABLE, 1)
    assert told.partition_assignor == "cooperative-sticky"
    assert member.stop() == 0
