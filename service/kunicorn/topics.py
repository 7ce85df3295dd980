"""The two coordinates everything else is keyed by: a partition, and a place in it."""

from __future__ import annotations

from typing import NamedTuple

NO_OFFSET = -1
"""No offset: not started, nothing committed, nothing in hand. Never 0, which is a real offset."""

NO_EPOCH = -1
"""The leader epoch is unknown (Kafka's own marker, KIP-320)."""


NO_TIMESTAMP = -1
"""The record carries no time (Kafka's `NO_TIMESTAMP`), or none is known yet."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def place_of(tp: TopicPartition, offset: int) -> dict[str, object]:
    """A record's place, as fields of a log line."""
    return {"topic": tp.topic, "partition": tp.partition, "offset": offset}


class Position(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it (KIP-320)."""

    offset: int
    leader_epoch: int = NO_EPOCH
    done: str = ""
    """Which records from there on are done already, as text (`pipes.marks`); it travels as the commit's metadata. In
    what is committed it may also say how many partitions the topic had when the group began (`with_partitions`)."""
