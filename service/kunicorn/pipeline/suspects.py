"""Which records killed the processes that had them in hand. Pure.

1. A record that was in hand alone, and in hand at `max_crashes` deaths in all, is kept from the handler, as live.
2. Of a batch nobody knows which one it was: once it has died `max_crashes` times its records are handled one at a time,
   and the next death names one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message


class Hand(NamedTuple):
    """The records that a process died with: the first at or behind `start`, and others up to `stop`, not included.

    Offsets have gaps, and who handles one record at a time notes where the last one ended: so the first record counts
    even if it is behind `stop`.
    """

    start: int
    stop: int


class Piece(NamedTuple):
    """Records for one call; or, with `deaths`, one that no handler shall have."""

    messages: Sequence[Message]
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Suspects:
    """What earlier tries of a range died with."""

    hands: Sequence[Hand] = ()
    max_crashes: int = 2

    def pieces(self, messages: Sequence[Message], begin: int, most: int | None) -> Iterator[Piece]:
        """Cut into calls of at most `most` records (None: no limit), suspects apart.

        `begin`: where the records before these ended, so that a hand in a gap is not seen twice.
        """
        if not self.hands:
            yield from _cut(messages, most)
            return
        deaths, alone = self._deaths(messages, begin)
        plain: list[Message] = []
        for at, message in enumerate(messages):
            if deaths[at] < self.max_crashes:
                plain.append(message)
                continue
            yield from _cut(plain, most)
            plain = []
            yield Piece([message], deaths[at] if at in alone else 0)
        yield from _cut(plain, most)

    def _deaths(self, messages: Sequence[Message], begin: int) -> tuple[Counter[int], set[int]]:
        """Deaths by place in `messages`, and which of these were in hand alone."""
        offsets = [-1 if offset is None else offset for offset in map(Message.offset, messages)]
        deaths, alone = Counter[int](), set[int]()
        for hand in self.hands:
            first = bisect_left(offsets, hand.start)
            last = bisect_left(offsets, hand.stop)
            if hand.start >= begin:
                last = min(max(last, first + 1), len(offsets))
            deaths.update(range(first, last))
            if hand.stop - hand.start == 1 and first < last:
                alone.add(first)
        return deaths, alone


def _cut(messages: Sequence[Message], most: int | None) -> Iterator[Piece]:
    if most is None:
        if messages:
            yield Piece(messages)
        return
    yield from (Piece(messages[at : at + most]) for at in range(0, len(messages), most))
