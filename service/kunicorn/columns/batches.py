"""Record batches of magic 2 (`DefaultRecordBatch.java`, `DefaultRecord.java`), in plain Python: the checksum always
reckoned, every length checked, nothing unpacked beyond a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from kunicorn.columns.codecs import NAMES, TooLarge, unpack
from kunicorn.columns.reading import Reader, Unreadable

_LENGTH_END = 12
"""Base offset and length of a batch; the length counts what is behind them."""
_MAGIC = 16
_CRC_END = 21
_HEADER = 61
_OLD_HEADER = 14
"""The shortest length that a message of magic 0 has."""
_MAGIC_READ = 2
_SMALLEST_RECORD = 7
"""Bytes: length, attributes, two differences, key's and value's length, number of headers."""
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_MOST = 2**63 - 1
_NO_TEXT = "\N{REPLACEMENT CHARACTER}"
"""In place of a header's name that is not UTF-8, as `Record.headers` has it."""
_ABORT = 0


class Damaged(ValueError):
    """A batch that cannot be read, and so the partition from there on."""


class CutShort(ValueError):
    """The bytes end inside of a batch, as a broker may cut them."""


Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Row:
    """One record."""

    offset: int
    timestamp: int | None
    """Milliseconds since 1970; None where the producer set none."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int = 0
    """`TimestampType.java`: 0 the producer's time, 1 the broker's."""

    @property
    def bytes(self) -> int:
        """Bytes of key, value, and headers."""
        parts = [self.key, self.value, *(part for name, value in self.headers for part in (name.encode(), value))]
        return sum(len(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch whose checksum is right, its records not read yet."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    count: int
    packed: memoryview

    @property
    def control(self) -> bool:
        """Whether it has a marker of a transaction's end instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def transactional(self) -> bool:
        """Whether its records are of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    def unpacked(self, limit: int) -> memoryview:
        """The bytes of its records. Raises `Damaged`."""
        codec = self.attributes & _CODEC
        if codec not in NAMES:
            raise Damaged(f"unknown codec {codec}")
        try:
            found = unpack(codec, self.packed, limit) if codec else self.packed
        except TooLarge:
            raise Damaged(f"unpacks to more than {limit} bytes") from None
        except Unreadable as error:
            raise Damaged(str(error)) from error
        if len(found) > limit:
            raise Damaged(f"unpacks to more than {limit} bytes")
        return found

    def rows(self, unpacked: memoryview) -> list[Row]:
        """All its records. Raises `Damaged`."""
        try:
            return list(self._rows(Reader(unpacked)))
        except Unreadable as error:
            raise Damaged(f"a record does not parse: {error}") from error

    def _rows(self, reader: Reader) -> Iterator[Row]:
        if not 0 <= self.count <= reader.left // _SMALLEST_RECORD:
            raise Unreadable(f"{self.count} records announced where {reader.left} bytes are left")
        before = -1
        for _ in range(self.count):
            record = Reader(reader.take(reader.signed()))
            delta, row = self._row(record)
            if not before < delta <= self.last_offset - self.base_offset:
                raise Unreadable("offsets that do not ascend")
            before = delta
            yield row
        if reader.left:
            raise Unreadable(f"{reader.left} bytes behind the last record")

    def _row(self, reader: Reader) -> tuple[int, Row]:
        """The record's place in the batch, and itself."""
        reader.take(1)
        time_delta, delta = reader.signed(64), reader.signed()
        key, value = reader.nullable(), reader.nullable()
        headers = _headers(reader)
        if reader.left:
            raise Unreadable(f"{reader.left} bytes behind a record's end")
        by_broker = bool(self.attributes & _LOG_APPEND_TIME)
        time = self.max_timestamp if by_broker else _wrapped(self.base_timestamp + time_delta)
        offset, timestamp = self.base_offset + delta, time if time >= 0 else None
        return delta, Row(offset, timestamp, _bytes(key), _bytes(value), headers, int(by_broker))

    def aborts(self, limit: int) -> bool:
        """Whether this batch of control is the marker of a transaction aborted (`EndTransactionMarker.java`). Raises
        `Damaged`."""
        rows = self.rows(self.unpacked(limit))
        if not rows:
            return False
        try:
            reader = Reader(memoryview(rows[0].key or b""))
            reader.integer(2)
            return reader.integer(2) == _ABORT
        except Unreadable as error:
            raise Damaged(f"a marker does not parse: {error}") from error


def read_batch(data: memoryview, at: int) -> tuple[Batch, int]:
    """The batch that begins there, and where the next one does. Raises `CutShort` and `Damaged`."""
    reader = Reader(data[at:])
    if reader.left < _LENGTH_END:
        raise CutShort
    base_offset, length = reader.integer(8), reader.integer(4)
    if length < _OLD_HEADER:
        raise Damaged(f"a length of {length} bytes")
    if reader.left < length:
        raise CutShort
    end = _LENGTH_END + length
    whole = data[at : at + end]
    if whole[_MAGIC] != _MAGIC_READ:
        raise Damaged(f"magic {whole[_MAGIC]}, where {_MAGIC_READ} is read")
    if end < _HEADER:
        raise Damaged(f"a length of {length} bytes")
    if crc32c.crc32c(whole[_CRC_END:]) != int.from_bytes(whole[_MAGIC + 1 : _CRC_END], "big"):
        raise Damaged("wrong checksum")
    return _header(base_offset, whole), at + end


def _header(base_offset: int, whole: memoryview) -> Batch:
    leader_epoch = Reader(whole[_LENGTH_END:]).integer(4)
    reader = Reader(whole[_CRC_END:])
    attributes, last_delta = reader.integer(2), reader.integer(4)
    base_timestamp, max_timestamp, producer_id = reader.integer(8), reader.integer(8), reader.integer(8)
    # Producer's epoch and first sequence number: for brokers.
    reader.take(6)
    count = reader.integer(4)
    if base_offset < 0 or last_delta < 0 or base_offset + last_delta >= _MOST:
        raise Damaged(f"offsets from {base_offset} on, the last one {last_delta} behind")
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        count=count,
        packed=whole[_HEADER:],
    )


def _headers(reader: Reader) -> Headers:
    number = reader.signed()
    if not 0 <= number <= reader.left:
        raise Unreadable(f"{number} headers announced where {reader.left} bytes are left")
    return [_one_header(reader) for _ in range(number)]


def _one_header(reader: Reader) -> tuple[str, bytes | None]:
    name, value = reader.nullable(), reader.nullable()
    if name is None:
        raise Unreadable("a header without a name")
    try:
        return bytes(name).decode(), _bytes(value)
    except UnicodeDecodeError:
        return _NO_TEXT, _bytes(value)


def _bytes(found: memoryview | None) -> bytes | None:
    return None if found is None else bytes(found)


def _wrapped(number: int) -> int:
    """As 64 bits have it, which is how Java adds."""
    return (number + 2**63) % 2**64 - 2**63
