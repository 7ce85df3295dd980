"""Which ranges are begun next: how much of each partition, and of how many. Pure, but that it remembers paces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import OffsetRange, TopicPartition, cut, first_of_each, total
from kunicorn.settings import PipelineSettings

_FIRST = 1_000
"""Offsets of a partition's first range: enough to learn the handler's pace, little to repeat."""
_LARGEST_STEP = 50
"""No range has so many times the offsets of the one before: the first ones measure a start more than the handler."""


class Shares:
    """Each partition's next range takes `range_seconds` at the partition's own pace, so that a slow one holds up itself
    alone.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._seconds = settings.range_seconds
        self._most = settings.max_offsets_per_trigger
        self._pieces = settings.min_partitions
        self._next: dict[TopicPartition, int] = {}
        """Offsets that take so long."""

    def of(self, state: RunState, room: int) -> list[OffsetRange]:
        """Ranges to begin beside those underway, of at most `room` partitions: of those that wait, the largest
        first. All that is underway has `max_offsets_per_trigger` at most, shared out in proportion to what each has
        left; a partition gets one offset at least.
        """
        left = state.left
        whole = total(left)
        found = []
        for each in state.waiting[: max(0, room)]:
            size = self._next.get(each.tp, _FIRST)
            if self._most is not None:
                size = min(size, max(1, each.size * self._most // whole))
            found.append(each._replace(stop=min(each.stop, each.start + size)))
        if self._pieces is None or not found:
            return found
        return cut(found, -(-self._pieces * len(found) // len(left)))

    def learn(self, summaries: Iterable[Summary]) -> None:
        """Note how long the ranges of these partitions took."""
        by_partition = sorted(summaries, key=lambda each: each.range)
        for tp, several in groupby(by_partition, key=lambda each: each.range.tp):
            ended = list(several)
            offsets = sum(each.until - each.start for each in ended)
            seconds = max(each.seconds for each in ended)
            self._next[tp] = next_size(offsets, seconds, self._seconds)


def next_size(last: int, seconds: float, wanted_seconds: float) -> int:
    """Number of offsets that take `wanted_seconds`, if `last` took `seconds`. Pure."""
    return max(1, min(int(last / max(seconds, 0.001) * wanted_seconds), max(_FIRST, last * _LARGEST_STEP)))


class WholeRounds:
    """Round after round over all partitions, so many offsets together: for what is committed a round at a time."""

    def __init__(self, size: int | None, of_each: int, pieces: int | None) -> None:
        """`size`: offsets of a round, shared out by what partitions have left; None: `of_each` of a partition at most.
        `pieces`: cut a round into so many tasks.
        """
        self._size, self._of_each, self._pieces = size, of_each, pieces

    def of(self, state: RunState, room: int) -> list[OffsetRange]:
        """See `Shares.of`; none while a round is underway."""
        if state.underway:
            return []
        left: Sequence[OffsetRange] = state.left
        if self._size is None:
            # Not their sum: a hot partition alone would have it, in one task, which a lost executor begins anew.
            begun = [each._replace(stop=min(each.stop, each.start + self._of_each)) for each in left]
        else:
            begun = first_of_each(left, self._size)
        return cut(begun, self._pieces)

    def learn(self, summaries: Iterable[Summary]) -> None:
        """See `Shares.learn`: every round has the same size."""
