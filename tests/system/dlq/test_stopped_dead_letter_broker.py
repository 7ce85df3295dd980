"""The broker that has the dead-letter topic is down: nothing is lost, and nobody else waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from kunicorn.handler.dead_letters import read
from tests.kafka import Broker, KafkaCluster
from tests.system.members import Members
from tests.system.producing import consumed_so_far, headers_of
from tests.system.scene import Scene
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as cluster:
        yield cluster


def create_on(kafka: KafkaCluster, topic: str, broker: Broker) -> None:
    """A topic of one partition with one replica, there."""
    kafka.admin().create_topics([NewTopic(topic, 1, replica_assignment=[[broker.id]])])[topic].result(60)


@pytest.mark.long
def test_while_its_broker_is_stopped_a_partition_waits_with_its_letter_and_the_others_go_on(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    three.create_topic(topic, 2)
    letters = f"{topic}.dead-letters"
    victim = three.broker(3)
    create_on(three, letters, victim)
    # So short that letters are refused and sent anew, and not only late.
    settings = {
        "handler": {"on_failure": "dead_letter", "max_attempts": 1},
        "dead_letters": {"delivery_timeout_ms": 2000},
    }
    entrypoint = "tests.system.handlers.marked:handle"
    stage = Scene(
        three, topic, 2, members_of(three.bootstrap, topic, entrypoint=entrypoint, settings=settings), tmp_path
    )
    member = stage.members.start()
    member.wait_running(2)
    victim.stop()
    stage.send(0, "fine", "raise", "behind it")
    waiting = f'kunicorn_partitions_waiting{{group="{topic}",waits_for="dead_letter"}} 1.0'
    member.wait(lambda: waiting in member.get("/metrics")[1], "the letter to wait")
    stage.send(1, *["flows"] * 50)
    stage.wait_handled(1, 49, member)
    (parked,) = [p for p in member.partitions("running") if p["partition"] == 0]
    assert parked["position"] == 1, "the record is not done before its letter is acknowledged"
    assert f"waits for the dead-letter topic '{letters}'" in parked["reason"]
    assert member.get("/livez")[0] == 200, "a restart would not cure it"
    wait_until(lambda: stage.committed() == {0: 1, 1: 50}, "everything before the letter to be committed", 120, 0.2)
    victim.start()
    three.wait_until_whole()
    stage.wait_handled(0, 2, member)
    assert member.stop() == 0
    assert stage.committed() == {0: 3, 1: 50}
    assert stage.handled(0) == [0, 2]
    # One that was sent as the broker came up may have been acknowledged too late, and sent anew.
    assert {read(headers_of(letter)).offset for letter in consumed_so_far(three.bootstrap, letters)} == {1}
