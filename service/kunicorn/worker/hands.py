"""The hands that one handler has: how many of its records may be in hand at a time, and what they may take next. Pure.

Every handler of a worker has its own, with its own order; `lanes.Lanes` decides over all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kunicorn.worker.flight import Lane

LaneKey = Callable[[int, bytes | None], object]

LANE_KEYS: dict[str, LaneKey] = {
    "partition": lambda offset, key: None,
    # Without a key there is no order to keep: Kafka itself spreads such records over the partitions as it likes.
    "key": lambda offset, key: offset if key is None else key,
    "none": lambda offset, key: offset,
}
"""By ordering: what records of one lane have in common, by offset and key."""


@dataclass(slots=True, eq=False)
class Hands:
    """Changed by `Lanes` alone."""

    ordering: str
    most: int
    """Records in hand at a time, over all partitions of the handler."""
    busy: int = 0
    ready: deque[Lane] = field(default_factory=deque)
    """Lanes whose first record may be started, if nothing of it has changed since."""
    lane_key: LaneKey = field(init=False)

    def __post_init__(self) -> None:
        self.lane_key = LANE_KEYS[self.ordering]
