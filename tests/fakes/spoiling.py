"""Bytes spoilt at random, as a broken disk or broker, a bug of ours or a stranger on the line would spoil them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_TELLING = (0, 1, 2, 0x0E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
"""Bytes that mean something where a length, a count, a null or a tag is read."""
_HUGE = (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\xff" * 10)
Way = Callable[[bytearray, Random], None]


def _flip(data: bytearray, rng: Random) -> None:
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.choice((*_TELLING, rng.randrange(256)))


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def _lengthen(data: bytearray, rng: Random) -> None:
    data += rng.randbytes(rng.randrange(1, 40))


def _announce(data: bytearray, rng: Random) -> None:
    """A length or a count of billions, or a negative one."""
    at = rng.randrange(len(data))
    data[at : at + 5] = rng.choice(_HUGE)


def _double(data: bytearray, rng: Random) -> None:
    at, to = sorted(rng.randrange(len(data)) for _ in range(2))
    data[at:at] = data[at:to]


_WAYS: tuple[Way, ...] = (_flip, _flip, _flip, _cut, _lengthen, _announce, _double)


def spoilt(data: bytes, rng: Random, *more: Way) -> bytes:
    """The data with one thing wrong, seldom two. `more`: ways in which only such data is spoilt."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        if found:
            rng.choice((*_WAYS, *more))(found, rng)
    return bytes(found)
