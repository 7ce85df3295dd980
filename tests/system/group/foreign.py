"""A consumer that is not ours in our group: confluent-kafka's, used as its documentation tells careful users to."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.demo.audit import AuditLog
from kunicorn.topics import TopicPartition


class _Handled(NamedTuple):
    """A record as the audit reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None


def _protocol(strategy: str) -> dict[str, str | int]:
    if strategy == "consumer":
        return {"group.protocol": "consumer"}
    return {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 500}


class ForeignConsumer:
    """Polls in a thread until the block ends; commits only in its revoke callback, synchronously.

    It writes the same audit as our handlers, so that one judge sees the whole group.
    """

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: str, audit: Path) -> None:
        """`strategy`: an assignor of the classic protocol, or "consumer" for the protocol of that name."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": "foreign",
                **_protocol(strategy),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._topic = topic
        self._audit = AuditLog(audit, "foreign")
        self._next: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.owned: set[TopicPartition] = set()
        """What it owns now; replaced, never changed."""
        self.handled = 0

    def __enter__(self) -> ForeignConsumer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the foreign consumer does not end"

    def _run(self) -> None:
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
        record = _Handled(topic, partition, offset, None)
        self._audit.begin([record])
        self._audit.end([record])
        self._next[partition] = offset + 1
        self.handled += 1

    def _assigned(self, _: Consumer, partitions: list[Coordinates]) -> None:
        self.owned = self.owned | {TopicPartition(each.topic, each.partition) for each in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[Coordinates]) -> None:
        leaving = {each.partition for each in partitions}
        offsets = [
            Coordinates(self._topic, number, self._next.pop(number))
            for number in sorted(leaving)
            if number in self._next
        ]
        if offsets:
            consumer.commit(offsets=offsets, asynchronous=False)
        self.owned = {tp for tp in self.owned if tp.partition not in leaving}
