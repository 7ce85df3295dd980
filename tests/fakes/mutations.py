"""Answers to any request, spoilt at random."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from kunicorn.kafka.versions import RESPONSES, Api
from tests.fakes.messages import response_frame, sample
from tests.fakes.spoiling import spoilt

_HEADER = 4
"""The correlation id; spoilt, the connection is closed before anything is decoded."""


def _tagged(data: bytearray, rng: Random) -> None:
    """Where no tags were: one that nobody knows."""
    at = rng.randrange(len(data))
    data[at : at + 1] = bytes([1, rng.randrange(128), 3]) + rng.randbytes(3)


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
        spoiling = spoilt_frame(self._samples[version], self._rng)
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


def spoilt_frame(frame: bytes, rng: Random) -> bytes:
    """The frame (without its length) spoilt; its header stays."""
    return frame[:_HEADER] + spoilt(frame[_HEADER:], rng, _tagged)
