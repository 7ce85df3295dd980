"""Fetch responses and record batches for tests, written by other code than what reads them: frames by kio's classes,
batches here.
"""

from __future__ import annotations

import gzip
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
import pyarrow as pa
from kio.schema.errors import ErrorCode
from kio.schema.fetch import v12, v13, v14, v15, v16, v17, v18
from kio.static.constants import uuid_zero

from kunicorn.kafka.codec import encode
from tests.fakes.messages import blank, nested

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
VERSIONS = {12: v12, 13: v13, 14: v14, 15: v15, 16: v16, 17: v17, 18: v18}
NO_TAGS = b"\0"
"""The tagged fields of a response's header."""
Headers = Sequence[tuple[bytes, bytes | None]]


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte."""
    return uvarint((number << 1) ^ (number >> 63))


def uvarint(left: int) -> bytes:
    """Seven bits a byte."""
    left &= 2**64 - 1
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def sized(data: bytes | None) -> bytes:
    """Bytes behind their length, or null."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    headers: Headers = (),
    time_delta: int = 0,
) -> bytes:
    """One record with its length in front."""
    body = b"\0" + varint(time_delta) + varint(delta) + sized(key) + sized(value)
    body += varint(len(headers)) + b"".join(sized(name) + sized(content) for name, content in headers)
    return varint(len(body)) + body


def records(number: int, first: int = 0) -> list[bytes]:
    """So many records, the delta in key and value."""
    return [record(first + each, b"value %d" % each, b"key %d" % each) for each in range(number)]


def packed(data: bytes, codec: str) -> bytes:
    """Compressed, as Java's producer does it; `raw snappy` as C's do."""
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        blocks = [bytes(pa.compress(data[at : at + 32768], codec="snappy")) for at in range(0, len(data), 32768)]
        return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    if codec == "none":
        return data
    return bytes(pa.compress(data, codec=codec.removeprefix("raw ")))


@dataclass(frozen=True, slots=True)
class BatchFields:
    """The header's fields that readers mind, where they are not reckoned from the records."""

    base_offset: int = 0
    last_delta: int | None = None
    attributes: int = 0
    base_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_000_999
    producer_id: int = -1
    epoch: int = 5
    count: int | None = None
    magic: int = 2


def batch(of: Sequence[bytes], codec: str = "none", **fields: Any) -> bytes:
    """A record batch; its checksum is right."""
    header = BatchFields(**fields)
    return batch_of(packed(b"".join(of), codec), len(of), codec, header)


def batch_of(content: bytes, number: int, codec: str, header: BatchFields) -> bytes:
    """A batch with that behind its header."""
    covered = struct.pack(
        ">hiqqqhii",
        header.attributes | CODECS[codec.removeprefix("raw ")],
        max(number - 1, 0) if header.last_delta is None else header.last_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        0,
        -1,
        number if header.count is None else header.count,
    )
    return signed(struct.pack(">qiiBI", header.base_offset, 0, header.epoch, header.magic, 0) + covered + content)


def signed(spoilt: bytes) -> bytes:
    """The batch with its length and its checksum made right."""
    body = struct.pack(">I", crc32c.crc32c(spoilt[21:])) + spoilt[21:]
    return spoilt[:8] + struct.pack(">i", len(spoilt) - 12) + spoilt[12:17] + body


def marker(base_offset: int, producer_id: int, commits: bool, epoch: int = 5) -> bytes:
    """The batch that ends a transaction."""
    end = record(0, value=struct.pack(">hi", 0, 0), key=struct.pack(">hh", 0, int(commits)))
    attributes = TRANSACTIONAL | CONTROL
    return batch([end], base_offset=base_offset, producer_id=producer_id, attributes=attributes, epoch=epoch)


def partition(version: int, number: int = 0, batches: Iterable[bytes] = (), **fields: Any) -> Any:
    """One partition of a response; `fields` by kio's names."""
    schema = nested(nested(VERSIONS[version].FetchResponse, "responses"), "partitions")
    if "error_code" in fields:
        fields["error_code"] = ErrorCode(fields["error_code"])
    if aborted := fields.get("aborted_transactions"):
        kind = nested(schema, "aborted_transactions")
        fields["aborted_transactions"] = tuple(kind(producer_id=who, first_offset=at) for who, at in aborted)
    whole = {"high_watermark": 100, "last_stable_offset": 100, "log_start_offset": 0, **fields}
    return blank(schema, partition_index=number, records=b"".join(batches), **whole)


def body(version: int, topics: Mapping[bytes, Sequence[Any]], **fields: Any) -> bytes:
    """A response from behind its correlation id; topics by their ids, for version 12 by their names."""
    kind = nested(VERSIONS[version].FetchResponse, "responses")
    told = [
        blank(
            kind, partitions=tuple(parts), **({"topic": name.decode()} if version == 12 else {"topic_id": _uuid(name)})
        )
        for name, parts in topics.items()
    ]
    return NO_TAGS + encode(blank(VERSIONS[version].FetchResponse, responses=tuple(told), **fields))


def _uuid(name: bytes) -> uuid.UUID:
    found = uuid.UUID(bytes=name)
    return uuid_zero if found == uuid_zero else found
