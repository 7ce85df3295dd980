"""A reference consumer beside ours in `bench.handover`: one process, one member, as its documentation has it.

    python -m bench.reference CLIENT PROPERTIES TOPIC MEMBER AUDIT HANDLER_MS COMMITS

CLIENT is "confluent-kafka" or "aiokafka", PROPERTIES are JSON in the client's own names. COMMITS is "auto", or
"synchronous": every second, and in the revoke callback. A record takes 0 to HANDLER_MS milliseconds and is written to
the audit like ours. SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kunicorn.commands.demo.audit import AuditLog

COMMIT_SECONDS = 1.0
ASSIGNORS = {"roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}


class Handled(NamedTuple):
    """A record as the audit reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None


class Confluent:
    """librdkafka's consumer, polled by the main thread."""

    def __init__(self, properties: dict[str, Any], topic: str, audit: AuditLog, seconds: float, commits: str) -> None:
        self._synchronous = commits == "synchronous"
        more = {"enable.auto.commit": False} if self._synchronous else {}
        self._consumer = Consumer({**properties, **more, "auto.offset.reset": "earliest"})
        self._topic, self._audit, self._seconds = topic, audit, seconds
        self._positions: dict[int, int] = {}
        self._stop = threading.Event()

    def run(self) -> None:
        """Until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._consumer.subscribe([self._topic], on_revoke=self._revoked)
        due = time.monotonic() + COMMIT_SECONDS
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._handle(Handled(self._topic, message.partition() or 0, message.offset() or 0))
            if self._synchronous and time.monotonic() > due:
                self._commit(self._positions)
                due = time.monotonic() + COMMIT_SECONDS
        self._consumer.close()

    def _handle(self, record: Handled) -> None:
        self._audit.begin([record])
        time.sleep(random.uniform(0, self._seconds))
        self._audit.end([record])
        self._positions[record.partition] = record.offset + 1

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        leaving = {each.partition: self._positions.pop(each.partition, None) for each in partitions}
        if self._synchronous:
            self._commit({number: offset for number, offset in leaving.items() if offset is not None})

    def _commit(self, positions: dict[int, int]) -> None:
        offsets = [TopicPartition(self._topic, number, offset) for number, offset in positions.items()]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            print(f"a commit failed: {error}", file=sys.stderr, flush=True)


class Aiokafka(ConsumerRebalanceListener):  # type: ignore[misc] # the package has no types
    """aiokafka's consumer, iterated by one task."""

    def __init__(self, properties: dict[str, Any], topic: str, audit: AuditLog, seconds: float, commits: str) -> None:
        self._synchronous = commits == "synchronous"
        strategy = [ASSIGNORS[properties.pop("partition_assignment_strategy")]]
        self._properties = {**properties, "partition_assignment_strategy": strategy, "auto_offset_reset": "earliest"}
        self._topic, self._audit, self._seconds = topic, audit, seconds
        self._positions: dict[Any, int] = {}
        self._consumer: Any = None

    def run(self) -> None:
        """Until SIGTERM."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        more = {"enable_auto_commit": False} if self._synchronous else {}
        self._consumer = AIOKafkaConsumer(**self._properties, **more)
        await self._consumer.start()
        self._consumer.subscribe([self._topic], listener=self)
        handling = asyncio.create_task(self._handle_all())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, handling.cancel)
        await asyncio.wait({handling})
        await self.on_partitions_revoked(self._consumer.assignment())
        await self._consumer.stop()

    async def _handle_all(self) -> None:
        due = time.monotonic() + COMMIT_SECONDS
        while True:
            for records in (await self._consumer.getmany(timeout_ms=100, max_records=1)).values():
                for each in records:
                    record = Handled(each.topic, each.partition, each.offset)
                    # As one piece: the stop must not fall between a record and its mark.
                    await asyncio.shield(asyncio.ensure_future(self._handle(record)))
            if self._synchronous and time.monotonic() > due:
                await self._commit(self._positions)
                due = time.monotonic() + COMMIT_SECONDS

    async def _handle(self, record: Handled) -> None:
        self._audit.begin([record])
        await asyncio.sleep(random.uniform(0, self._seconds))
        self._audit.end([record])
        self._positions[AioTopicPartition(record.topic, record.partition)] = record.offset + 1

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """Commit what was handled, before it is somebody else's."""
        leaving = {tp: self._positions.pop(tp) for tp in revoked if tp in self._positions}
        if self._synchronous:
            await self._commit(leaving)

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Nothing to do."""

    async def _commit(self, positions: dict[Any, int]) -> None:
        if not positions:
            return
        try:
            await self._consumer.commit(dict(positions))
        except Exception as error:
            print(f"a commit failed: {error!r}", file=sys.stderr, flush=True)


CLIENTS: dict[str, type[Confluent] | type[Aiokafka]] = {"confluent-kafka": Confluent, "aiokafka": Aiokafka}


def main(client: str, properties: str, topic: str, member: str, audit: str, handler_ms: str, commits: str) -> None:
    """One member."""
    seconds = float(handler_ms) / 1000
    CLIENTS[client](json.loads(properties), topic, AuditLog(Path(audit), member), seconds, commits).run()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
