"""Fetch responses of a real broker, as they come: one plain socket, one partition, one request at a time."""

from __future__ import annotations

import base64
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from confluent_kafka import TopicCollection
from kio.index import load_request_schema

from kunicorn.kafka.codec import encode
from tests.fakes.messages import blank, nested
from tests.kafka import KafkaCluster

_FETCH = 1
_FIRST_WITH_IDS = 13
_LENGTH = 4
_CORRELATION_ID = 4
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


def topic_id(kafka: KafkaCluster, topic: str) -> bytes:
    """The topic's id, as the broker says."""
    told = kafka.admin().describe_topics(TopicCollection([topic]))[topic].result(60)
    # Printed as base64 without its padding (Uuid.java).
    return base64.urlsafe_b64decode(f"{told.topic_id}==")


class Asker:
    """Asks for records of partition 0 of one topic. Blocks."""

    def __init__(self, connection: socket.socket, topic: str, identity: bytes, version: int, isolation: int) -> None:
        self._connection = connection
        self._topic = topic
        self.identity = identity
        """The topic's id."""
        self._version = version
        self._isolation = isolation

    def body(self, offset: int, most: int) -> bytes:
        """The response from behind its correlation id, with at most about `most` bytes of records."""
        self._connection.sendall(self._request(offset, most))
        (length,) = struct.unpack(">i", self._received(_LENGTH))
        return self._received(length)[_CORRELATION_ID:]

    def _request(self, offset: int, most: int) -> bytes:
        schema = load_request_schema(_FETCH, self._version)
        topics = nested(schema, "topics")
        asked = blank(
            nested(topics, "partitions"), fetch_offset=offset, partition_max_bytes=most, current_leader_epoch=-1
        )
        message = blank(
            schema,
            max_wait=timedelta(seconds=1),
            min_bytes=1,
            max_bytes=most,
            isolation_level=self._isolation,
            session_epoch=-1,
            topics=(blank(topics, partitions=(asked,), **self._named()),),
        )
        header = message.__header_schema__(
            request_api_key=_FETCH, request_api_version=self._version, correlation_id=7, client_id="columns"
        )
        whole = encode(header) + encode(message)
        return struct.pack(">i", len(whole)) + whole

    def _named(self) -> dict[str, Any]:
        if self._version < _FIRST_WITH_IDS:
            return {"topic": self._topic}
        return {"topic_id": uuid.UUID(bytes=self.identity)}

    def _received(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            step = self._connection.recv(size - len(found))
            assert step, "the broker has hung up"
            found += step
        return bytes(found)


@contextmanager
def asker(kafka: KafkaCluster, topic: str, version: int, isolation: int) -> Iterator[Asker]:
    """One whose connection ends with the block; the broker must lead the partition."""
    host, _, port = kafka.bootstrap.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield Asker(connection, topic, topic_id(kafka, topic), version, isolation)
