"""What there is to consume: topics of JSON records, filled once for all contenders."""

from __future__ import annotations

import json
import random
import string
import sys
from dataclasses import dataclass

from confluent_kafka import Producer

from bench.topics import create
from tests.kafka import KafkaCluster

_MOST_OF_A_PARTITION = 2_900_000
"""The audit's sum of offsets holds no more (clients/tally.py, ONE)."""


@dataclass(frozen=True)
class Load:
    """A topic's content."""

    partitions: int
    value_bytes: int
    compression: str
    records: int

    @property
    def topic(self) -> str:
        """Its name, which says what it holds."""
        return f"peers-{self.partitions}-{self.value_bytes}-{self.compression}-{self.records}"

    @property
    def produced(self) -> list[int]:
        """Records of each partition."""
        least, more = divmod(self.records, self.partitions)
        return [least + (number < more) for number in range(self.partitions)]

    def __str__(self) -> str:
        packed = "" if self.compression == "none" else f", {self.compression}"
        return f"{self.partitions:,} partitions × {self.value_bytes:,} B{packed}"


def values(size: int) -> list[bytes]:
    """JSON documents of that size, which compress as documents do: field names repeat, contents do not. As many as make
    a few megabytes: a broker's batches must not repeat one document."""
    source = random.Random(size)
    return [_document(source, number, size) for number in range(max(8, min(997, 8_000_000 // size)))]


def _document(source: random.Random, number: int, size: int) -> bytes:
    document: dict[str, object] = {"id": number, "note": ""}
    left = size - len(json.dumps(document))
    while left > 40:
        name, content = f"field{len(document)}", "".join(source.choices(string.ascii_letters, k=8))
        document[name] = content
        left -= len(name) + len(content) + len('"": "", ')
    document["note"] = "x" * left
    return json.dumps(document).encode()


def fill(kafka: KafkaCluster, load: Load) -> None:
    """Make the topic and write its records. Blocks."""
    if max(load.produced) > _MOST_OF_A_PARTITION:
        sys.exit(f"{load}: the audit holds for {_MOST_OF_A_PARTITION:,} records of a partition; choose a lower --scale")
    create(kafka.admin(), load.topic, load.partitions)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "linger.ms": 50,
            "batch.size": 262_144,
            "compression.type": load.compression,
            "queue.buffering.max.messages": 500_000,
        }
    )
    documents = values(load.value_bytes)
    for number in range(load.records):
        value, key, partition = documents[number % len(documents)], b"%07d" % number, number % load.partitions
        while True:
            try:
                producer.produce(load.topic, value, key, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(300):
        sys.exit(f"{kafka.bootstrap} did not take the records of {load.topic} within five minutes")
