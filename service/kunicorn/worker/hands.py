"""The hands that one handler has: how many of its records may be in hand at a time, and what they may take next. Pure.

Every handler of a worker has its own, with its own order; `lanes.Lanes` decides over all of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kunicorn.worker.flight import Lane, Track

LaneKey = Callable[[int, bytes | None], object]

LANE_KEYS: dict[str, LaneKey] = {
    "partition": lambda offset, key: None,
    # Without a key there is no order to keep: Kafka itself spreads such records over the partitions as it likes.
    "key": lambda offset, key: offset if key is None else key,
    "none": lambda offset, key: offset,
}
"""By ordering: what records of one lane have in common, by offset and key."""


class ReadyLanes:
    """Lanes whose first record may be started, if nothing of it has changed since: one of each partition in turn, so
    that what comes to a partition waits for none of another one's backlog."""

    def __init__(self) -> None:
        self._of: OrderedDict[Track, deque[Lane]] = OrderedDict()
        """The partition whose turn it is comes first."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, lane: Lane, *, first: bool) -> None:
        """`first`: before all others, as a retry whose wait is over."""
        track = lane.track
        lanes = self._of.get(track)
        if lanes is None:
            self._of[track] = deque((lane,))
        elif first:
            lanes.appendleft(lane)
        else:
            lanes.append(lane)
        if first:
            self._of.move_to_end(track, last=False)

    def take(self) -> Lane:
        """The next one."""
        track = next(iter(self._of))
        lanes = self._of[track]
        lane = lanes.popleft()
        if lanes:
            self._of.move_to_end(track)
        else:
            del self._of[track]
        return lane

    def drop(self, track: Track) -> None:
        """None of that partition is to be started."""
        for lane in self._of.pop(track, ()):
            lane.ready = False


@dataclass(slots=True, eq=False)
class Hands:
    """Changed by `Lanes` alone."""

    ordering: str
    most: int
    """Records in hand at a time, over all partitions of the handler."""
    busy: int = 0
    ready: ReadyLanes = field(default_factory=ReadyLanes)
    lane_key: LaneKey = field(init=False)

    def __post_init__(self) -> None:
        self.lane_key = LANE_KEYS[self.ordering]
