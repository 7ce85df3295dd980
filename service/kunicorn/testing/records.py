"""Records as a test gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.topics import TopicPartition

Text = str | bytes | None
Headers = Mapping[str, Text] | Sequence[tuple[str, Text]]


class _Left:
    """What is left out, where None means something."""


_LEFT = _Left()


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """One record of the log in memory. Made by `record`; `topic` and `offset` are None until it is run."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    topic: str | None
    partition: int
    offset: int | None
    timestamp: int | None
    """Milliseconds since 1970."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def tp(self) -> TopicPartition:
        """Its partition, once it has a topic."""
        assert self.topic is not None
        return TopicPartition(self.topic, self.partition)

    @property
    def at(self) -> int:
        """Its offset, once it has one."""
        assert self.offset is not None
        return self.offset


def record(
    value: Text = None,
    *,
    key: Text = None,
    json: Any = _LEFT,
    headers: Headers = (),
    topic: str | None = None,
    partition: int = 0,
    offset: int | None = None,
    timestamp: int | None = None,
) -> GivenRecord:
    """A record to be handled; text is encoded as UTF-8, `json` is a value to be written as JSON.

    Without `topic` it is of the first topic that the handler consumes; without `offset` it follows the record given
    before it in its partition. `timestamp` is milliseconds since 1970. Raises `ValueError` for what no log holds.
    """
    if json is not _LEFT:
        if value is not None:
            raise ValueError("a record has a value or a json value, not both")
        value = orjson.dumps(json)
    if partition < 0 or (offset is not None and offset < 0):
        raise ValueError(f"partition {partition}, offset {offset}: both are counted from 0")
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded = tuple((name, _bytes(each)) for name, each in pairs)
    return GivenRecord(_bytes(value), _bytes(key), encoded, topic, partition, offset, timestamp)


def placed(records: Iterable[GivenRecord], topic: str | None) -> list[GivenRecord]:
    """The records with a topic and an offset each. Raises `ValueError` where an offset does not follow."""
    following: dict[tuple[str, int], int] = {}
    found: list[GivenRecord] = []
    for each in records:
        if not isinstance(each, GivenRecord):
            raise TypeError(f"{each!r} is no record: make one with kunicorn.testing.record(value=…)")
        name = each.topic or topic
        if name is None:
            raise ValueError("the handler consumes patterns of topics only: say record(…, topic=…)")
        least = following.get((name, each.partition), 0)
        offset = least if each.offset is None else each.offset
        if offset < least:
            raise ValueError(f"{name}-{each.partition}: offset {offset} comes behind {least - 1}: offsets only grow")
        following[name, each.partition] = offset + 1
        found.append(replace(each, topic=name, offset=offset))
    return found


def message_of(each: GivenRecord) -> Message:
    """As the client hands it out."""
    kind = TIMESTAMP_NOT_AVAILABLE if each.timestamp is None else TIMESTAMP_CREATE_TIME
    return Message(
        topic=each.topic,
        partition=each.partition,
        offset=each.offset,
        key=each.key,
        value=each.value,
        headers=list(each.headers) or None,
        timestamp=(kind, each.timestamp or 0),
        leader_epoch=0,
    )


def _bytes(text: Text) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is neither text nor bytes; say json=… to have it written as JSON")
    return text.encode()
