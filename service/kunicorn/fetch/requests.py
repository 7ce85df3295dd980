"""Fetch requests as bytes (FetchRequest.json, versions 12 to 18), written by hand.

kio's writer takes 20 microseconds for a partition, and a request names each partition of which the answer before had
records. A test compares what is written here with what kio writes. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from kunicorn.fetch.sessions import Ask, Request
from kunicorn.kafka.versions import Api
from kunicorn.positions import TopicPartition

V = TypeVar("V")

BY_ID = 13
"""The first version that names topics by their ids (KIP-516)."""
_WITHOUT_REPLICA = 15
"""The first version in which a consumer does not say that it is none of the replicas (KIP-903)."""
_CONSUMER = struct.pack(">i", -1)
_NO_TAGS = b"\0"
_PARTITION = struct.Struct(">iiqiqib")
_NO_LOG_START = -1


class Limits(NamedTuple):
    """What a request says whatever it asks for."""

    max_wait_ms: int
    """So long the broker may wait until it has `min_bytes`."""
    min_bytes: int
    max_bytes: int
    """Of an answer; a batch that is larger comes alone (KIP-74)."""
    read_committed: bool
    rack: str = ""
    """Where we are: a leader may name a replica there (KIP-392)."""


def fetch_frame(version: int, correlation_id: int, client_id: str, limits: Limits, request: Request) -> bytes:
    """The request as a frame, its length in front. `version`: 12 to 18."""
    client = client_id.encode()
    head = struct.pack(">hhih", Api.FETCH, version, correlation_id, len(client)) + client + _NO_TAGS
    asked = struct.pack(
        ">iiibii",
        limits.max_wait_ms,
        limits.min_bytes,
        limits.max_bytes,
        limits.read_committed,
        request.session_id,
        request.epoch,
    )
    parts = [head, _CONSUMER if version < _WITHOUT_REPLICA else b"", asked]
    topics = _by_topic((tp, (ask.topic_id, ask)) for tp, ask in request.asks.items())
    parts.append(_count(len(topics)))
    for (topic, topic_id), asks in topics:
        parts += (_named(topic, topic_id, version), _count(len(asks)), *(_partition(*each) for each in asks), _NO_TAGS)
    forgotten = _by_topic(
        # By its name a topic under another id is the same one: brokers drop what is to be forgotten last, so that they
        # would never send anything of a partition that they have just been asked for.
        (tp, (topic_id, None))
        for tp, topic_id in request.forgotten
        if version >= BY_ID or tp not in request.asks
    )
    parts.append(_count(len(forgotten)))
    for (topic, topic_id), gone in forgotten:
        numbers = [struct.pack(">i", number) for number, _ in gone]
        parts += (_named(topic, topic_id, version), _count(len(gone)), *numbers, _NO_TAGS)
    parts += (_string(limits.rack), _NO_TAGS)
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def _by_topic(
    partitions: Iterable[tuple[TopicPartition, tuple[bytes, V]]],
) -> Sequence[tuple[tuple[str, bytes], list[tuple[int, V]]]]:
    """Neighbours of one topic together, and no others (`FetchRequest.java`): the order is that of their turns."""
    pieces = groupby(partitions, key=lambda each: (each[0].topic, each[1][0]))
    return [(named, [(tp.partition, value) for tp, (_, value) in piece]) for named, piece in pieces]


def _partition(number: int, ask: Ask) -> bytes:
    return _PARTITION.pack(
        number, ask.leader_epoch, ask.offset, ask.last_epoch, _NO_LOG_START, ask.max_bytes, _NO_TAGS[0]
    )


def _named(topic: str, topic_id: bytes, version: int) -> bytes:
    return topic_id if version >= BY_ID else _string(topic)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _count(len(encoded)) + encoded


def _count(number: int) -> bytes:
    """An unsigned varint, one more than the number: 0 stands for null."""
    number += 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
