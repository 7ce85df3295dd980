"""Which letters are meant, and which have been replayed before. Pure; times are milliseconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kunicorn.handling.deadletters import Told

_METADATA_BYTES = 4_000
"""The broker takes 4096 (`offset.metadata.max.bytes`)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters; a letter is meant that passes all. None: that filter is not set."""

    since_ms: int | None = None
    until_ms: int | None = None
    error: str | None = None
    """Error type, with or without its module."""
    key: bytes | None = None
    topic: str | None = None
    """The topic the record came from."""

    def takes(self, told: Told, key: bytes | None) -> bool:
        """Whether this letter is meant."""
        return (
            (self.since_ms is None or told.time_ms >= self.since_ms)
            and (self.until_ms is None or told.time_ms < self.until_ms)
            and (self.error is None or self.error in (told.cause.type, told.cause.type.rpartition(".")[2]))
            and (self.key is None or self.key == key)
            and (self.topic is None or self.topic == told.topic)
        )


class Replayed:
    """What has been replayed of one partition of the dead-letter topic.

    Kept in the side group's committed offset and its metadata: everything before `upto`, and single ranges behind it,
    since filters leave letters out.
    """

    def __init__(self, upto: int = 0, metadata: str = "") -> None:
        """Metadata that is not ours counts as none: at worst letters are sent a second time."""
        self.upto = upto
        self._beyond: set[int] = set()
        if re.fullmatch(r"\d+-\d+(,\d+-\d+)*", metadata):
            for part in metadata.split(","):
                first, _, last = part.partition("-")
                self._beyond.update(range(int(first), int(last) + 1))

    def __contains__(self, offset: int) -> bool:
        return offset < self.upto or offset in self._beyond

    def add(self, offset: int) -> None:
        """It was delivered to where it came from."""
        self._beyond.add(offset)

    def settle(self, left: Iterable[int], end: int) -> None:
        """Move `upto` to the first offset that is `left` to be replayed (of those below `end`), else to `end`."""
        upto = min((offset for offset in left if offset not in self), default=end)
        self.upto = max(self.upto, upto)
        self._beyond = {offset for offset in self._beyond if offset >= self.upto}

    def metadata(self) -> str:
        """The ranges behind `upto`, as many as a commit can carry."""
        text = ""
        for first, last in _ranges(sorted(self._beyond)):
            longer = f"{text},{first}-{last}" if text else f"{first}-{last}"
            if len(longer) > _METADATA_BYTES:
                break
            text = longer
        return text


def _ranges(offsets: list[int]) -> Iterable[tuple[int, int]]:
    first = last = None
    for offset in offsets:
        if first is None or last is None or offset != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last
