"""What a worker's client holds for a handler that cannot keep up."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kunicorn.librdkafka.properties import client_properties
from tests.kafka import KafkaCluster
from tests.system import procfs
from tests.system.bare_worker.rig import Rig
from tests.system.producing import producer
from tests.waiting import wait_until

MB = 1024 * 1024
SOURCE = """
import time

def never_return(record):
    time.sleep(60)

def count(record):
    assert len(record.value) == 1 or set(record.value) == {120}
"""


def client_of(bootstrap: str, megabytes: int) -> dict[str, str | int | float | bool]:
    return client_properties(
        bootstrap_servers=[bootstrap], client_id="rig", group_id="rig", isolation_level="read_committed",
        client_rack=None, security={}, extra={}, memory_per_worker_mb=megabytes, brokers=1,
    )  # fmt: skip


@pytest.mark.scenario("0082 fetch_max_bytes")
def test_small_records_for_a_stuck_handler_do_not_outgrow_the_plan(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 4)
    sender = producer(kafka.bootstrap)
    for number in range(300_000):
        sender.produce(topic, b"x" * 20, partition=number % 4)
        if number % 10_000 == 0:
            sender.flush(60)
    assert sender.flush(60) == 0
    processes.module(SOURCE)
    worker = processes.worker("never_return", kafka.bootstrap, [topic], client=client_of(kafka.bootstrap, 64))
    before = procfs.resident_bytes(worker.pid)
    worker.start(topic, dict.fromkeys(range(4), 0))
    found = [before]

    def settled() -> bool:
        found.append(procfs.resident_bytes(worker.pid))
        return len(found) > 20 and found[-1] == found[-20] > before + MB

    wait_until(settled, "the client to have fetched all that it will", every=0.1)
    assert max(found) < 64 * MB, f"{max(found) // MB} MB"


@pytest.mark.parametrize("size", [3_000_000, pytest.param(40_000_000, marks=pytest.mark.long)])
@pytest.mark.scenario("0041 fetch_max_bytes", "testFetchRequestWhenRecordTooLarge")
def test_a_record_larger_than_any_limit_of_the_plan_gets_through_alone(
    processes: Rig, kafka: KafkaCluster, topic: str, size: int
) -> None:
    """The larger one does not even fit into memory_per_worker_mb."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    config = {"max.message.bytes": str(size + 1_000_000)}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    sender = producer(kafka.bootstrap, **{"message.max.bytes": size + 1_000_000})
    for value in (b"x", b"x" * size, b"x"):
        sender.produce(topic, value, partition=0)
        assert sender.flush(60) == 0
    processes.module(SOURCE)
    client = client_of(kafka.bootstrap, 32)
    assert int(client["fetch.max.bytes"]) < size
    worker = processes.worker("count", kafka.bootstrap, [topic], client=client)
    worker.start(topic, {0: 0})
    worker.consumed(1, 3)
