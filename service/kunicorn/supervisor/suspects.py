"""Which records are to blame for a worker's death, where it had several in hand. Pure.

Nobody knows which of them it was. Each is counted; one that was there often enough is handled with nothing beside it
from then on, and the next death singles it out, or nothing happens and it is acquitted by being done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator


def blamed(in_hand: Collection[int], longest: int, *, killed_for: bool, killed: bool) -> frozenset[int]:
    """Offsets of one partition that a death counts against.

    `killed`: we ended the worker ourselves, `killed_for`: for the record of this partition that it had in hand for the
    `longest`. What else it had in hand then is not to blame.
    """
    if not killed:
        return frozenset(in_hand)
    return frozenset(in_hand) & {longest} if killed_for else frozenset()


def convicted(deaths: Counter[int], offsets: Collection[int], max_crashes: int) -> Iterator[int]:
    """Those among the offsets that so many workers have died with, the lowest first. `max_crashes` 0: there is none."""
    if max_crashes > 0:
        yield from (offset for offset in sorted(offsets) if deaths[offset] >= max_crashes)
