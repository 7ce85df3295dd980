"""What producers compress with, unpacked by Python's and Arrow's own libraries up to a limit. Small, as the reference
alone needs it: the compiled decoder has other libraries, so that one judges the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa

from kunicorn.columns.reading import Reader, Unreadable

_XERIAL = b"\x82SNAPPY\x00"
"""What Java's snappy library puts in front of its blocks, two version numbers of four bytes behind it."""
_GZIP = 31
"""zlib's number for gzip's own header."""
_STEP = 1 << 16


class TooLarge(ValueError):
    """The data come to more than the limit."""


def unpack(codec: int, packed: memoryview, limit: int) -> memoryview:
    """The records of a batch, unpacked. `codec`: as in the batch's attributes, a key of `NAMES`.

    Raises `TooLarge` before `limit` bytes are passed by more than a block, `Unreadable` where the library refuses.
    """
    try:
        return memoryview(_UNPACKERS[codec](packed, limit))
    except (zlib.error, EOFError, OSError, pa.ArrowException) as error:
        raise Unreadable(f"{NAMES[codec]} does not unpack") from error


def _gunzip(packed: memoryview, limit: int) -> bytes:
    found = b""
    rest = bytes(packed)
    while rest or not found:
        member = zlib.decompressobj(wbits=_GZIP)
        found += member.decompress(rest, limit + 1 - len(found))
        if len(found) > limit:
            raise TooLarge
        if not member.eof:
            raise EOFError
        if not member.unused_data and not found:
            break
        rest = member.unused_data
    return found


def _unsnap(packed: memoryview, limit: int) -> bytes:
    if bytes(packed[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(packed, limit)
    reader = Reader(packed)
    reader.take(len(_XERIAL) + 8)
    found = bytearray()
    while reader.left:
        found += _unsnap_block(reader.take(reader.integer(4)), limit - len(found))
    return bytes(found)


def _unsnap_block(block: memoryview, limit: int) -> bytes:
    size = Reader(block).unsigned()
    if size > limit:
        raise TooLarge
    return bytes(pa.decompress(bytes(block), decompressed_size=size, codec="snappy"))


def _stream(name: str) -> Callable[[memoryview, int], bytes]:
    def unpack_stream(packed: memoryview, limit: int) -> bytes:
        if not packed:
            raise EOFError
        found = bytearray()
        with pa.CompressedInputStream(pa.BufferReader(bytes(packed)), name) as stream:
            while step := stream.read(_STEP):
                found += step
                if len(found) > limit:
                    raise TooLarge
        return bytes(found)

    return unpack_stream


NAMES = {0: "nothing", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
"""Codecs by their number (`CompressionType.java`)."""
_UNPACKERS: dict[int, Callable[[memoryview, int], bytes]] = {
    1: _gunzip,
    2: _unsnap,
    3: _stream("lz4"),
    4: _stream("zstd"),
}
