"""What is in an output topic, as a consumer with read_committed sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as Coordinates

from tests.waiting import wait_until


def committed_outputs(bootstrap: str, topic: str, partitions: int, within: float = 60.0) -> Counter[str]:
    """The values of all committed records, and how often each is there."""
    return values_of(committed_records(bootstrap, topic, partitions, within))


def values_of(records: Iterable[Message]) -> Counter[str]:
    """How often each is there."""
    return Counter((each.value() or b"").decode() for each in records)


def committed_records(bootstrap: str, topic: str, partitions: int, within: float = 60.0) -> list[Message]:
    """All committed records. Open transactions are waited for."""
    return list(each_committed(bootstrap, topic, partitions, within))


def each_committed(bootstrap: str, topic: str, partitions: int, within: float = 60.0) -> Iterator[Message]:
    """Likewise, one by one; of those that are there when it begins none is kept."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outputs",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    places = [Coordinates(topic, number, 0) for number in range(partitions)]
    read: list[Message] = []
    try:
        consumer.assign(places)
        ends = {
            place.partition: consumer.get_watermark_offsets(Coordinates(topic, place.partition), timeout=60)[1]
            for place in places
        }

        def at_end() -> bool:
            at = {place.partition: place.offset for place in consumer.position(places)}
            return all(end == 0 or at[number] >= end for number, end in ends.items())

        def some() -> bool:
            read[:] = consumer.consume(5000, 0.2)
            return bool(read) or at_end()

        while True:
            wait_until(some, f"everything in {topic} to be read, committed: {ends}", within, 0.0)
            if not read:
                return
            for message in read:
                assert message.error() is None, message.error()
                yield message
    finally:
        consumer.close()


def in_their_order(records: Iterable[Message], *, ordering: str = "partition") -> None:
    """Of each partition's inputs (of each key's, by that ordering), the outputs that are in one partition are in the
    inputs' order. Their values name them: `partition:offset`."""
    last: dict[tuple[int | None, int, object], int] = {}
    for record in records:
        partition, offset = map(int, (record.value() or b"").decode().split(":"))
        lane = {"partition": None, "key": record.key(), "none": offset}[ordering]
        where = record.partition(), partition, lane
        assert last.get(where, -1) < offset, f"{partition}:{offset} comes behind {last[where]}"
        last[where] = offset
