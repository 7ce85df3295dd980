"""confluent-kafka's consumer."""

from __future__ import annotations

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.foreign.client import InThread
from tests.system.members import Members


def _protocol(strategy: str) -> dict[str, str | int]:
    if strategy == "consumer":
        return {"group.protocol": "consumer"}
    return {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 500}


class LibrdkafkaConsumer(InThread):
    """Polls in a thread until the block ends; commits only in its revoke callback, synchronously."""

    def __init__(self, kafka: KafkaCluster, group: str, topic: str, strategy: str, members: Members) -> None:
        """`strategy`: an assignor of the classic protocol, or "consumer" for the protocol of that name."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "client.id": "foreign",
                **_protocol(strategy),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._topic = topic
        super().__init__(members.audit)

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._handle(message)
        self._consumer.close()

    def _handle(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self._desk.handle(TopicPartition(topic, partition), offset)

    def _assigned(self, _: Consumer, partitions: list[Coordinates]) -> None:
        self._desk.take({TopicPartition(each.topic, each.partition) for each in partitions})

    def _revoked(self, consumer: Consumer, partitions: list[Coordinates]) -> None:
        leaving = {TopicPartition(each.topic, each.partition) for each in partitions}
        offsets = [Coordinates(*tp, offset) for tp, offset in self._desk.clear(leaving).items()]
        if offsets:
            consumer.commit(offsets=offsets, asynchronous=False)
        self._desk.let_go(leaving)
