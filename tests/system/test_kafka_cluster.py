"""The brokers that every other system test stands on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka import Broker, KafkaCluster
from tests.kafka.artifacts import KafkaUnavailable
from tests.system.procfs import info, running
from tests.waiting import wait_until

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def test_a_missing_topic_is_not_created_by_asking_for_it(kafka: KafkaCluster, topic: str) -> None:
    kafka.admin().list_topics(topic, timeout=60)
    assert topic not in kafka.admin().list_topics(timeout=60).topics


def test_a_tool_that_fails_says_what_it_printed(kafka: KafkaCluster) -> None:
    with pytest.raises(RuntimeError, match="no-such-option"):
        kafka.tool(GROUPS, "--no-such-option")


@pytest.mark.long
def test_a_frozen_broker_is_silent_until_it_is_thawed(kafka_factory: Callable[..., KafkaCluster], topic: str) -> None:
    kafka = kafka_factory()
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    kafka.broker(1).freeze()
    wait_until(lambda: _state_of(kafka.broker(1)) == "T", "it to be frozen")
    producer.produce(topic, b"late")
    assert producer.flush(1) == 1
    assert _state_of(kafka.broker(1)) == "T", "it was silent because it was frozen, not because it was slow"
    kafka.broker(1).thaw()
    assert producer.flush(60) == 0


def _state_of(broker: Broker) -> str | None:
    found = info(broker.pid)
    return None if found is None else found.state


def test_a_configuration_that_kafka_refuses_is_reported_with_its_own_words() -> None:
    cluster = KafkaCluster(overrides={"log.retention.ms": "soon"})
    with pytest.raises(KafkaUnavailable, match=r"log\.retention\.ms"):
        cluster.start()


@pytest.mark.long
def test_no_broker_survives_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kafka", "--workdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert starter.stdout is not None
    assert starter.stdout.readline().startswith("127.0.0.1:")
    assert running(str(tmp_path / "broker-1"))
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    wait_until(lambda: not running(str(tmp_path / "broker-1")), "the broker's end")
