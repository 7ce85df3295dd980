"""Answers spoilt at random, as a broken broker, a bug of ours or a stranger on the line would spoil them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from kunicorn.wire.schemas import RESPONSES
from kunicorn.wire.versions import OURS, Api
from tests.unit.wire.messages import response_frame, sample

_TELLING = (0, 1, 2, 0x7F, 0x80, 0x81, 0xFE, 0xFF)
"""Bytes that mean something where a length, a count, a null or a tag is read."""
_HEADER = 4
"""The correlation id; spoilt, the connection is closed before anything is decoded."""


def _flipped(frame: bytearray, rng: Random) -> None:
    for _ in range(rng.randrange(1, 4)):
        frame[rng.randrange(_HEADER, len(frame))] = rng.choice((*_TELLING, rng.randrange(256)))


def _cut(frame: bytearray, rng: Random) -> None:
    del frame[rng.randrange(_HEADER, len(frame)) :]


def _longer(frame: bytearray, rng: Random) -> None:
    frame += rng.randbytes(rng.randrange(1, 40))


def _huge(frame: bytearray, rng: Random) -> None:
    """A length or a count of billions, or a negative one."""
    at = rng.randrange(_HEADER, len(frame))
    frame[at : at + 5] = rng.choice(
        (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe")
    )


def _doubled(frame: bytearray, rng: Random) -> None:
    at, to = sorted((rng.randrange(_HEADER, len(frame)), rng.randrange(_HEADER, len(frame))))
    frame[at:at] = frame[at:to]


def _tagged(frame: bytearray, rng: Random) -> None:
    """Where no tags were: one that nobody knows."""
    at = rng.randrange(_HEADER, len(frame))
    frame[at : at + 1] = bytes([1, rng.randrange(128), 3]) + rng.randbytes(3)


_KINDS: tuple[Callable[[bytearray, Random], None], ...] = (
    _flipped,
    _flipped,
    _flipped,
    _cut,
    _longer,
    _huge,
    _doubled,
    _tagged,
)


def mutations(api: Api, count: int, rng: Random) -> Iterator[tuple[int, bytes]]:
    """Versions and frames (without their length), in every version of the API by turns."""
    versions = range(OURS[api].low, OURS[api].high + 1)
    samples: dict[int, bytes] = {}
    for number in range(count):
        # Samples are dear: each is spoilt in several ways.
        if number % (5 * len(versions)) == 0:
            samples = {each: response_frame(0, sample(RESPONSES[api, each], rng)) for each in versions}
        version = versions[number % len(versions)]
        yield version, spoilt(samples[version], rng)


def spoilt(frame: bytes, rng: Random) -> bytes:
    """The frame (without its length) spoilt in one way or two; its header stays."""
    spoiling = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2))):
        if len(spoiling) > _HEADER:
            rng.choice(_KINDS)(spoiling, rng)
    return bytes(spoiling)
