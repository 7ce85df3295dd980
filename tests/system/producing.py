"""Producing as a user's producer would, and knowing exactly what the topic holds."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from random import Random
from types import TracebackType

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.handler.record import Record
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.waiting import wait_until

_MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError._TIMED_OUT,
)
"""What is answered differently a moment later."""


def producer(bootstrap: str, **more: str | int) -> Producer:
    """Java's partitioner: a key stays where Java producers put it. `more`: further properties."""
    own = {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5, "acks": "all"}
    return Producer({**own, **more})


def produce(bootstrap: str, topic: str, count: int, *, partition: int | None = None, value: bytes = b"x" * 200) -> None:
    """`count` keyed records, delivered when it returns."""
    sender = producer(bootstrap)
    failed: list[str] = []

    def told(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error.str())

    where = -1 if partition is None else partition  # -1: librdkafka's RD_KAFKA_PARTITION_UA, by key
    for number in range(count):
        while True:
            try:
                key = b"%d" % (number % 1000)
                sender.produce(topic, key=key, value=value, partition=where, on_delivery=told)
                break
            except BufferError:
                sender.poll(0.05)
        if number % 1000 == 0:
            sender.poll(0)
    assert sender.flush(60) == 0, "not everything was delivered"
    assert not failed, f"{len(failed)} records were not delivered: {failed[0]}"


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[TopicPartition, int]:
    """Log ends as the broker says."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "end-offsets"})
    try:
        return {
            TopicPartition(topic, number): consumer.get_watermark_offsets(Coordinates(topic, number), timeout=60)[1]
            for number in range(partitions)
        }
    finally:
        consumer.close()


def committed_offsets(
    bootstrap: str, group: str, topic: str, partitions: int, stable: bool = True
) -> dict[TopicPartition, int]:
    """What the group has committed, as the broker says; −1001 for nothing. `stable`: wait until no transaction that is
    open has offsets of these partitions, which under load may not be for minutes: then it raises `KafkaException`."""
    wanted = [Coordinates(topic, number) for number in range(partitions)]
    deadline = time.monotonic() + 60

    def answered() -> list[Coordinates] | None:
        """None: the client was told of another coordinator, of one that still loads, of an open transaction, or
        nothing."""
        try:
            found = _client_of(bootstrap, group, stable).committed(wanted, timeout=10)
            for error in filter(None, (each.error for each in found)):
                raise KafkaException(error)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError._TIMED_OUT:
                # A client of before the coordinator's restart was seen to get no answer for a minute, asked again and
                # again, while the group's commits went on.
                _client_of.cache_clear()
            if code in _MOVING and time.monotonic() < deadline:
                return None
            raise
        return found

    found = wait_until(answered, f"the offsets of {group}", every=0.5)
    return {TopicPartition(topic, each.partition): each.offset for each in found}


def committed_inputs(bootstrap: str, group: str, topic: str, partitions: int) -> int:
    """So many records of the topic, which has no gaps and was begun at its beginning, the group has committed."""
    return sum(max(0, at) for at in committed_offsets(bootstrap, group, topic, partitions).values())


@lru_cache(maxsize=8)
def _client_of(bootstrap: str, group: str, stable: bool) -> Consumer:
    """One client for all that is asked of a group, which it does not join: a new one costs threads, connections and
    five requests. An `AdminClient` of librdkafka 2.16 dies of the answer that the coordinator has moved
    (confluentinc/librdkafka#5318).
    """
    isolation = "read_committed" if stable else "read_uncommitted"
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": isolation, "log_level": 0})


def consumed(bootstrap: str, topic: str, count: int) -> list[Message]:
    """The records of a topic of one partition, which has so many and no more."""
    found = consumed_so_far(bootstrap, topic)
    assert len(found) == count, f"{topic} has {len(found)} records, not {count}"
    return found


def consumed_so_far(bootstrap: str, topic: str) -> list[Message]:
    """The records that a topic of one partition has now."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "consumed", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    found: list[Message] = []

    def at_end() -> bool:
        message = consumer.poll(0.5)
        while message is not None:
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return True
            message = consumer.poll(0)
        return False

    try:
        consumer.assign([Coordinates(topic, 0, 0)])
        wait_until(at_end, f"the end of {topic}", every=0)
        return found
    finally:
        consumer.close()


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """As a list, with values as bytes."""
    return Record.of(message).headers


def held(ends: dict[TopicPartition, int]) -> dict[TopicPartition, range]:
    """Every offset of topics without transactions or compaction, as the audit wants it."""
    return {tp: range(end) for tp, end in ends.items()}


class Flow:
    """Keyed records at a steady rate from a thread, until the block ends; then everything sent is delivered."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._producer = producer(bootstrap)
        self._topic = topic
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._producer.flush(60) == 0, "not everything was delivered"

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            while self.sent < due:
                try:
                    self._producer.produce(self._topic, key=b"%d" % (self.sent % 1000), value=b"x" * 200)
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0)


def transaction(bootstrap: str, topic: str, records: int, *, commit: bool) -> None:
    """So many records to partition 0 in one transaction, and its end: the marker is written behind the answer."""
    end = end_offsets(bootstrap, topic, 1)[TopicPartition(topic, 0)] + records + 1
    sender = begun(bootstrap, topic)
    for number in range(records):
        sender.produce(topic, b"x", key=b"%d" % number, partition=0)
    sender.flush(60)
    (sender.commit_transaction if commit else sender.abort_transaction)(30)
    at = {TopicPartition(topic, 0): end}
    wait_until(lambda: end_offsets(bootstrap, topic, 1) == at, f"the log to end at {end}", every=0.2)


def begun(bootstrap: str, topic: str) -> Producer:
    """A producer with an open transaction."""
    sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    sender.init_transactions(30)
    sender.begin_transaction()
    return sender


COMPACTED_END = 20_000
"""Where a log of `compacted_log` ends."""


def compacted_log(kafka: KafkaCluster, topic: str, **properties: str | int) -> list[int]:
    """Create the topic, of one partition, and have most of its log compacted; the offsets that are left.
    `properties`: the producer's.
    """
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    kafka.create_topic(topic, config=compact)
    small: dict[str, str | int] = {"batch.size": 2000}
    sender = producer(kafka.bootstrap, **small, **properties)
    # What does not shrink fills the segments, of which the last one is never compacted.
    chance = Random(1)
    for number in range(COMPACTED_END):
        sender.produce(topic, chance.randbytes(200), key=b"%d" % (number if number % 10 == 0 else number % 7))
    assert sender.flush(120) == 0
    return _offsets_compacted(kafka, topic)


def _offsets_compacted(kafka: KafkaCluster, topic: str) -> list[int]:
    """What compaction has left of that log. It is stopped once it has taken half: a record that went between two
    readers would be missed by one of them."""
    half = COMPACTED_END // 2
    wait_until(lambda: len(_offsets_left(kafka.bootstrap, topic)) < half, "a compacted log", every=0.5)
    kafka.alter_topic(topic, {"cleanup.policy": "delete"})
    reads = [_offsets_left(kafka.bootstrap, topic)]

    def stopped() -> bool:
        reads.append(_offsets_left(kafka.bootstrap, topic))
        return reads[-1] == reads[-2]

    wait_until(stopped, "compaction to have stopped, which a broker does a moment after it knows of it")
    return reads[-1]


def _offsets_left(bootstrap: str, topic: str) -> list[int]:
    """What another consumer still finds of partition 0."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "left", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([Coordinates(topic, 0, 0)])
    found: list[int] = []
    try:
        while not found or found[-1] < COMPACTED_END - 1:
            found += [offset for message in consumer.consume(1_000, 1) if (offset := message.offset()) is not None]
    finally:
        consumer.close()
    return found
