"""A real worker handles a real broker's records."""

from __future__ import annotations

import random
import time

from confluent_kafka import Producer

from tests.fakes.counts import counts
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import OVER_BOTH_FETCHERS, Rig
from tests.system.bare_worker.traffic import produce, seen

pytestmark = OVER_BOTH_FETCHERS


def test_every_record_is_handled_once_and_in_order(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 2)
    for partition in (0, 1):
        produce(kafka.bootstrap, topic, (f"v{i}" for i in range(2000)), partition)
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0, 1: 0})
    worker.handled(1, 2000)
    worker.handled(2, 2000)
    lines = seen(processes.directory)
    for partition in (0, 1):
        mine = [line for line in lines if line.startswith(f"{partition}@")]
        assert mine == [f"{partition}@{i}=v{i}" for i in range(2000)]
    assert worker.slot(1).handled == 2000
    pong = worker.ping()
    assert pong.handled == 4000
    assert [(told.topic, told.records, told.calls) for told in counts(pong)] == [(topic, 4000, 4000)]
    assert pong.rss_bytes > 10_000_000


def test_a_record_has_all_that_kafka_knows(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"v", b"k", timestamp=1234567890123, headers=[("a", b"1"), ("a", b"2")])
    producer.produce(topic, None, None)
    producer.flush(60)
    worker = processes.worker("see_everything", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    worker.consumed(1, 2)
    first, second = map(eval, seen(processes.directory))
    assert first == (topic, 0, 0, 1234567890123, b"k", b"v", [("a", b"1"), ("a", b"2")], 0)
    assert second[4:] == (None, None, [], 0)
    assert worker.slot(1).consumed.leader_epoch == 0


def test_a_worker_killed_at_any_instant_repeats_at_most_the_record_in_hand(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    total, kills, offset = 0, 0, 0
    for round_ in range(8):
        # Each worker finds ten thousand records that none before it had, however fast it is.
        produce(kafka.bootstrap, topic, (str(i) for i in range(total, offset + 10_000)))
        total = offset + 10_000
        worker = processes.worker("see", kafka.bootstrap, [topic])
        worker.start(topic, {0: offset})
        worker.consumed(1, offset + 1)
        until = time.monotonic() + random.uniform(0.0, 0.03)
        while time.monotonic() < until:
            pass
        worker.kill()
        reading = worker.slot(1).consumed.offset
        handled = [int(line.partition("=")[2]) for line in seen(processes.directory)]
        assert handled[-1] in (reading - 1, reading), f"round {round_}"
        kills += reading < total
        offset = reading
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: offset})
    worker.consumed(1, total)
    handled = [int(line.partition("=")[2]) for line in seen(processes.directory)]
    assert sorted(set(handled)) == list(range(total))
    assert len(handled) - total <= kills


def test_a_batch_handler_gets_lists_of_one_partition(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 2)
    for partition in (0, 1):
        produce(kafka.bootstrap, topic, (f"v{i}" for i in range(1000)), partition)
    worker = processes.worker("see_batch", kafka.bootstrap, [topic], mode="batch", batch_max_records=100)
    worker.start(topic, {0: 0, 1: 0})
    worker.consumed(1, 1000)
    worker.consumed(2, 1000)
    for partition in (0, 1):
        batches = [line.partition("@")[2].split("+") for line in seen(processes.directory) if line[0] == str(partition)]
        sizes = [int(size) for _, size in batches]
        assert max(sizes) <= 100
        assert [int(offset) for offset, _ in batches] == [sum(sizes[:i]) for i in range(len(sizes))]
        assert sum(sizes) == 1000


def test_transaction_markers_do_not_leave_lag(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for finish in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=0)
        producer.flush(60)
        finish(30)
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: 0})
    worker.consumed(1, 4)
    assert seen(processes.directory) == ["0@0=v"]


def test_a_worker_that_starts_behind_the_last_record_follows_the_markers(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    producer.commit_transaction(30)
    worker = processes.worker("see", kafka.bootstrap, [topic])
    worker.start(topic, {0: 1})
    worker.consumed(1, 2)
    assert seen(processes.directory) == []
