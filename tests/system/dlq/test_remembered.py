"""What `kunicorn dlq replay` remembers outlives the time for which brokers keep offsets of groups without members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka import KafkaCluster
from tests.system.dlq.desk import Desk
from tests.system.producing import committed_offsets
from tests.waiting import wait_until


@pytest.fixture
def forgetful() -> Iterator[KafkaCluster]:
    """A broker that forgets a minute after the commit, the least that it can be set to."""
    with KafkaCluster(
        overrides={"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 500}
    ) as cluster:
        yield cluster


@pytest.mark.long
def test_a_replay_is_remembered_when_other_offsets_of_its_age_are_forgotten(
    forgetful: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    desk = Desk(forgetful, topic, tmp_path)
    desk.fill()
    assert "sent back and acknowledged: 3" in desk.said("replay", "--yes")
    other = Consumer({"bootstrap.servers": forgetful.bootstrap, "group.id": f"{topic}.other"})
    other.commit(offsets=[TopicPartition(desk.letters, 0, 4)], asynchronous=False)
    other.close()

    def committed() -> int:
        (offset,) = committed_offsets(forgetful.bootstrap, f"{topic}.other", desk.letters, 1).values()
        return offset

    assert committed() == 4
    wait_until(lambda: committed() < 0, "the other offset to be forgotten", 180, 1.0)
    assert "to send back: 0" in desk.said("replay", "--yes")
