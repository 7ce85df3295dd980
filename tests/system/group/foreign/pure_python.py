"""aiokafka's consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as Coordinates
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.foreign.client import Desk, InThread
from tests.system.members import Members

_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class AiokafkaConsumer(InThread):
    """Runs its own event loop in a thread until the block ends; commits only in its revoke callback."""

    def __init__(self, kafka: KafkaCluster, group: str, topic: str, strategy: str, members: Members) -> None:
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap,
            "group_id": group,
            "partition_assignment_strategy": [_ASSIGNORS[strategy]],
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 500,
        }
        super().__init__(members.audit)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(**self._settings)
        listener = _Listener(consumer, self._desk)
        await consumer.start()
        consumer.subscribe([self._topic], listener=listener)
        try:
            while not self._stop.is_set():
                for tp, records in (await consumer.getmany(timeout_ms=100)).items():
                    for record in records:
                        self._desk.handle(TopicPartition(tp.topic, tp.partition), record.offset)
            # Its `stop` leaves the group without calling the listener.
            await listener.on_partitions_revoked(consumer.assignment())
        finally:
            await consumer.stop()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # the package has no types
    """What a careful user hangs in: commit what was handled, before it is somebody else's."""

    def __init__(self, consumer: Any, desk: Desk) -> None:
        self._consumer = consumer
        self._desk = desk

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        leaving = {TopicPartition(each.topic, each.partition) for each in revoked}
        if offsets := self._desk.clear(leaving):
            await self._consumer.commit({Coordinates(*tp): offset for tp, offset in offsets.items()})
        self._desk.let_go(leaving)

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self._desk.take({TopicPartition(each.topic, each.partition) for each in assigned})
