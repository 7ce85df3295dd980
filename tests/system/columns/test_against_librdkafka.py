"""Logs of a real broker by librdkafka, by the reference and by the compiled decoder: equal, record by record."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.columns import reference
from kunicorn.columns.decoding import Decoder
from kunicorn.handler.record import Record, milliseconds_of
from kunicorn.positions import TopicPartition
from tests.compiled import compiled
from tests.kafka import KafkaCluster
from tests.system.columns.fetching import READ_COMMITTED, READ_UNCOMMITTED, asker
from tests.system.producing import begun, compacted_log, end_offsets, producer, transaction
from tests.waiting import wait_until

COMPILED = compiled()
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
ISOLATIONS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
MOST_UNPACKED = 4 << 20
COLUMNS = ("timestamp", "key", "value")


def produce_by_c(kafka: KafkaCluster, topic: str, codec: str) -> None:
    """Nulls, empty values, headers, times of their own, and a record of almost a megabyte."""
    written: dict[str, str | int] = {"compression.type": codec, "linger.ms": 20}
    sender = producer(kafka.bootstrap, **written)
    named: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("caf\u00e9", b"")]
    for number in range(500):
        sender.produce(
            topic,
            None if number % 7 == 0 else b"%d" % number * (number % 50),
            key=None if number % 5 == 0 else b"" if number % 6 == 0 else b"key %d" % number,
            headers=named[: number % 4],
            timestamp=1_600_000_000_000 + number * 977,
            partition=0,
        )
    sender.produce(topic, bytes(range(256)) * 3900, key=b"large", partition=0)
    assert sender.flush(60) == 0


def produce_by_java(kafka: KafkaCluster, topic: str, codec: str, number: int) -> None:
    """As fast as it goes, so that batches are full."""
    properties = f"bootstrap.servers={kafka.bootstrap}", f"compression.type={codec}", "batch.size=65536", "linger.ms=5"
    given = ("--num-records", str(number), "--record-size", "200", "--throughput", "-1")
    kafka.tool(PERFORMANCE, "--topic", topic, *given, "--producer-props", *properties, timeout=600)


class Reader:
    """librdkafka's reader of partition 0."""

    def __init__(self, bootstrap: str, topic: str, isolation: str) -> None:
        own = {"group.id": "columns", "isolation.level": isolation, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **own})
        self._consumer.assign([Coordinates(topic, 0, 0)])

    def take(self, number: int) -> list[Message]:
        """So many records, or as many as come within the deadline."""
        found: list[Message] = []

        def enough() -> bool:
            found.extend(self._consumer.consume(min(number - len(found), 10_000), 1))
            return len(found) >= number

        wait_until(enough, f"{number} records of librdkafka's", every=0)
        assert not any(message.error() for message in found)
        return found

    def end(self) -> int:
        """The log's end for this isolation."""
        (assigned,) = self._consumer.assignment()
        return int(self._consumer.get_watermark_offsets(assigned, timeout=60)[1])

    def close(self) -> None:
        """Give the connection back."""
        self._consumer.close()


def compare(kafka: KafkaCluster, topic: str, isolation: str, version: int = 16, most: int = 300_000) -> list[int]:
    """Read all of the topic's only partition in three ways; the offsets of its records."""
    reader = Reader(kafka.bootstrap, topic, isolation)
    classes: tuple[type[Decoder], type[Decoder]] = reference.Decoder, COMPILED.Decoder
    both = [each(read_committed=isolation == "read_committed", max_unpacked=MOST_UNPACKED) for each in classes]
    offsets: list[int] = []
    try:
        end = reader.end()
        with asker(kafka, topic, version, ISOLATIONS[isolation]) as asking:
            for decoder in both:
                decoder.place(topic.encode() if version < 13 else asking.identity, 0, topic, 0)
            position = 0
            while position < end:
                body = asking.body(position, most)
                more = 0
                while True:
                    judged, found = (decoder.decode(body, version, more) for decoder in both)
                    rows = pa.record_batch(found.rows)
                    assert rows.equals(pa.record_batch(judged.rows))
                    (part,), (expected,) = found.partitions, judged.partitions
                    assert (part.damage, part.error, part.next_offset) == ("", 0, expected.next_offset)
                    assert part.next_offset > position or part.incomplete, "no progress"
                    as_librdkafka(rows, reader)
                    offsets += rows.column("offset").to_pylist()
                    position, more = part.next_offset, found.more
                    if not more:
                        break
                most = most * 2 if part.incomplete else most
    finally:
        reader.close()
    return offsets


def as_librdkafka(rows: pa.RecordBatch, reader: Reader) -> None:
    """The rows are librdkafka's next records."""
    messages = reader.take(len(rows))
    assert rows.column("offset").to_pylist() == [message.offset() for message in messages]
    times = pa.array(map(milliseconds_of, messages), pa.int64()).cast(rows.schema.field("timestamp").type)
    values = (
        times,
        pa.array(map(Message.key, messages), pa.binary()),
        pa.array(map(Message.value, messages), pa.binary()),
    )
    for name, column in zip(COLUMNS, values, strict=True):
        assert rows.column(name).equals(column), name
    headers = [[(each["name"], each["value"]) for each in row or ()] for row in rows.column("headers").to_pylist()]
    assert headers == [Record.of(message).headers for message in messages]


@pytest.fixture(scope="module")
def every_codec(kafka: KafkaCluster) -> str:
    """A topic with a thousand records of each codec, of both producers."""
    topic = kafka.create_topic(f"every-codec-{uuid.uuid4().hex}")
    for codec in CODECS:
        produce_by_c(kafka, topic, codec)
        produce_by_java(kafka, topic, codec, 500)
    return topic


@pytest.mark.parametrize("version", [12, 13, 17])
@pytest.mark.scenario("0017 compression", "0073 headers", "0070 null_empty")
def test_every_codec_of_two_producers_is_read_as_librdkafka_reads_it(
    kafka: KafkaCluster, every_codec: str, version: int
) -> None:
    assert compare(kafka, every_codec, "read_committed", version) == list(range(len(CODECS) * 1001))


@pytest.mark.scenario("0052 msg_timestamps")
def test_a_log_of_append_times_is_read_as_librdkafka_reads_it(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    produce_by_c(kafka, topic, "lz4")
    assert compare(kafka, topic, "read_committed") == list(range(501))


@pytest.mark.parametrize(("isolation", "read"), [("read_committed", 50 + 5 + 1), ("read_uncommitted", 50 + 30 + 11)])
@pytest.mark.scenario("0098 consumer-txn", "testReadCommittedWithCommittedAndAbortedTransactions")
def test_transactions_are_read_as_librdkafka_reads_them(
    kafka: KafkaCluster, topic: str, isolation: str, read: int
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    senders = begun(kafka.bootstrap, topic), begun(kafka.bootstrap, f"{topic}-other")
    for number in range(10):
        senders[number % 2].produce(topic, b"%d" % number, partition=0)
        senders[number % 2].flush(60)
        if number == 8:
            # The first one's next transaction, behind one that is aborted.
            senders[0].abort_transaction(30)
            senders[0].begin_transaction()
    senders[0].produce(topic, b"the last", partition=0)
    senders[1].commit_transaction(30)
    senders[0].commit_transaction(30)
    end = {TopicPartition(topic, 0): 50 + 1 + 30 + 1 + 10 + 1 + 1 + 1 + 1}
    wait_until(
        lambda: end_offsets(kafka.bootstrap, topic, 1) == end, "all markers, which are written behind the answers"
    )
    assert len(compare(kafka, topic, isolation, most=400)) == read


@pytest.mark.scenario("0077 compaction")
def test_a_compacted_log_is_read_as_librdkafka_reads_it(kafka: KafkaCluster, topic: str) -> None:
    written: dict[str, str | int] = {"compression.type": "zstd"}
    left = compacted_log(kafka, topic, **written)
    assert compare(kafka, topic, "read_committed") == left


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_million_records_are_read_as_librdkafka_reads_them(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic)
    for codec in CODECS:
        produce_by_java(kafka, topic, codec, 2_000_000)
    assert len(compare(kafka, topic, "read_committed", most=4 << 20)) == 10_000_000
