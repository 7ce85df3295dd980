"""Answers spoilt at random, as a broken broker, a bug of ours or a stranger on the line would spoil them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from kunicorn.kafka.versions import RESPONSES, Api
from tests.fakes.messages import response_frame, sample

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


_SPOILT_EACH = 5
"""Samples are dear: each is spoilt in several ways."""
_THROTTLED = 0.05
"""How many of them say that we are over quota. Nobody speaks over a connection that does, and nearly any number is more
than the minute for which that is believed."""


class Spoiler:
    """Spoilt answers to requests of one API, in whatever versions they come."""

    def __init__(self, api: Api, rng: Random) -> None:
        self._api, self._rng = api, rng
        self._samples: dict[int, bytes] = {}
        self._used: Counter[int] = Counter()

    def answer(self, version: int, correlation_id: int) -> bytes:
        """A frame (without its length) in that version."""
        if self._used[version] % _SPOILT_EACH == 0:
            self._samples[version] = response_frame(0, self._sample(version))
        self._used[version] += 1
        spoiling = spoilt(self._samples[version], self._rng)
        return correlation_id.to_bytes(_HEADER, "big") + spoiling[_HEADER:]

    def _sample(self, version: int) -> Any:
        drawn = sample(RESPONSES[self._api, version], self._rng)
        if not hasattr(drawn, "throttle_time") or self._rng.random() < _THROTTLED:
            return drawn
        return replace(drawn, throttle_time=timedelta())


def mutations(api: Api, count: int, rng: Random) -> Iterator[tuple[int, bytes]]:
    """Versions and frames (without their length), in every version of the API that is ever asked for by turns."""
    versions = [version for of, version in RESPONSES if of is api]
    spoiler = Spoiler(api, rng)
    for number in range(count):
        version = versions[number % len(versions)]
        yield version, spoiler.answer(version, 0)


def spoilt(frame: bytes, rng: Random) -> bytes:
    """The frame (without its length) spoilt in one way or two; its header stays."""
    spoiling = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2))):
        if len(spoiling) > _HEADER:
            rng.choice(_KINDS)(spoiling, rng)
    return bytes(spoiling)
