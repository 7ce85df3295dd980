"""What a worker with several records in hand keeps in memory for when there is a free hand, and what it does if that is
too much. Every caller holds the table's lock."""

from __future__ import annotations

from collections.abc import Mapping

from kunicorn.topics import Position
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.handed import Handed
from kunicorn.worker.lanes import Lanes


class Ahead:
    """Ordinarily the client is just not asked for more. Where nothing that is kept may start for some handler's free
    hands, one slow key for example fills it all, that would hold up every other partition."""

    def __init__(self, lanes: Lanes, most_bytes: int) -> None:
        self._lanes = lanes
        self._most_bytes = most_bytes
        self._aside: list[Handed] = []

    @property
    def full(self) -> bool:
        """Nothing more is to be fetched."""
        return self._lanes.bytes >= self._most_bytes

    def set_aside(self, handed: Mapping[int, Handed]) -> Grant | None:
        """Keep the partition that has the most only in part, if that is needed: the client is to give out no more of
        it, and the rest is fetched again when that is done."""
        if not self.full or not any(self._lanes.starved(each.track.hands) for each in handed.values()):
            return None
        queued = [each for each in handed.values() if each.track.bytes and each.grant.state is GrantState.FETCHING]
        if not queued:
            return None
        largest = max(queued, key=lambda each: each.track.bytes)
        first = self._lanes.shed(largest.track, self._share(len(handed)))
        if first is None:
            return None
        largest.grant.resume_at = Position(first.offset, first.epoch)
        largest.grant.state = GrantState.ASIDE
        self._aside.append(largest)
        return largest.grant

    def fetched_again(self, partitions: int) -> list[Grant]:
        """Of so many partitions, those set aside of which what was kept is mostly done; they are to be assigned."""
        if not self._aside:
            return []
        aside = [each for each in self._aside if each.grant.state is GrantState.ASIDE]
        ready = [each for each in aside if each.track.bytes * 4 <= self._share(partitions)]
        self._aside = [each for each in aside if each not in ready]
        for each in ready:
            each.grant.state = GrantState.WAITING
        return [each.grant for each in ready]

    def _share(self, partitions: int) -> int:
        """What one may keep while it is set aside: all of them together leave something over."""
        return self._most_bytes // (partitions + 1)
