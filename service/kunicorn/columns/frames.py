"""The Fetch response as a frame (FetchResponse.json, versions 12 to 18), in plain Python. Batches stay bytes."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn.columns.decoding import NEWEST_VERSION, OLDEST_VERSION
from kunicorn.columns.reading import Reader, Unreadable

FIRST_WITH_IDS = 13
"""Version from which topics are named by their ids (KIP-516)."""
_DIVERGING_EPOCH, _CURRENT_LEADER = 0, 1
_NODE_ENDPOINTS = 0
_UUID_BYTES = 16


class MalformedResponse(ValueError):
    """Frame that cannot be read, so nothing in it is believed."""


@dataclass(frozen=True, slots=True)
class PartitionFrame:
    """One partition's part of a response, its records not looked at."""

    topic: bytes
    """The topic's id from version 13 on, its name in version 12."""
    partition: int
    error: int
    watermarks: tuple[int, int, int]
    """High watermark, last stable offset, start of the log."""
    diverging: tuple[int, int]
    """Epoch, and the offset of its end."""
    leader: tuple[int, int]
    """Broker, and its epoch."""
    aborted: tuple[tuple[int, int], ...]
    """Producer and first offset of each transaction aborted."""
    preferred_replica: int
    records: memoryview


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole response."""

    throttle_ms: int
    error: int
    session_id: int
    partitions: tuple[PartitionFrame, ...]
    nodes: tuple[tuple[int, str, int], ...]


def read_frame(body: memoryview, version: int) -> Frame:
    """Read a response from behind its correlation id; bytes behind its end are passed over. Raises
    `MalformedResponse`."""
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise ValueError(f"Fetch v{version} is not read here, only v{OLDEST_VERSION} to v{NEWEST_VERSION}")
    try:
        return _frame(Reader(body), version)
    except Unreadable as error:
        raise MalformedResponse(f"the answer to Fetch v{version} cannot be read: {error}") from error


def _frame(reader: Reader, version: int) -> Frame:
    reader.tags()
    throttle_ms, error, session_id = reader.integer(4), reader.integer(2), reader.integer(4)
    partitions: list[PartitionFrame] = []
    for _ in range(reader.count()):
        topic = bytes(reader.take(_UUID_BYTES) if version >= FIRST_WITH_IDS else reader.compact() or b"")
        partitions += [_partition(reader, topic) for _ in range(reader.count())]
        reader.tags()
    nodes = reader.tags().get(_NODE_ENDPOINTS)
    return Frame(throttle_ms, error, session_id, tuple(partitions), () if nodes is None else _nodes(Reader(nodes)))


def _partition(reader: Reader, topic: bytes) -> PartitionFrame:
    partition, error = reader.integer(4), reader.integer(2)
    watermarks = (reader.integer(8), reader.integer(8), reader.integer(8))
    aborted = tuple(_aborted(reader) for _ in range(reader.count()))
    preferred_replica = reader.integer(4)
    records = reader.compact()
    tags = reader.tags()
    return PartitionFrame(
        topic=topic,
        partition=partition,
        error=error,
        watermarks=watermarks,
        diverging=_pair(tags.get(_DIVERGING_EPOCH), 8),
        leader=_pair(tags.get(_CURRENT_LEADER), 4),
        aborted=aborted,
        preferred_replica=preferred_replica,
        records=memoryview(b"") if records is None else records,
    )


def _aborted(reader: Reader) -> tuple[int, int]:
    producer_id, first_offset = reader.integer(8), reader.integer(8)
    reader.tags()
    return producer_id, first_offset


def _pair(field: memoryview | None, second: int) -> tuple[int, int]:
    """A tagged structure of an integer of four bytes and one of `second`; what a later version adds is passed over."""
    if field is None:
        return -1, -1
    reader = Reader(field)
    return reader.integer(4), reader.integer(second)


def _nodes(reader: Reader) -> tuple[tuple[int, str, int], ...]:
    return tuple(_node(reader) for _ in range(reader.count()))


def _node(reader: Reader) -> tuple[int, str, int]:
    number, host, port = reader.integer(4), bytes(reader.compact() or b""), reader.integer(4)
    reader.compact()
    reader.tags()
    return number, host.decode(errors="replace"), port
