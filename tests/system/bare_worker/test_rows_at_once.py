"""A handler of columns in a real worker, over our own fetcher."""

from __future__ import annotations

from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Rig
from tests.system.bare_worker.traffic import produce, seen


def test_a_handler_gets_as_many_rows_at_once_as_it_asked_for(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, (f"v{i}" for i in range(5000)))
    columns = {"mode": "arrow", "batch_max_records": 4000, "fetcher": "own"}
    worker = processes.worker("see_columns", kafka.bootstrap, [topic], **columns)
    worker.start(topic, {0: 0})
    worker.consumed(1, 5000)
    assert seen(processes.directory) == ["0@0+4000", "0@4000+1000"]
