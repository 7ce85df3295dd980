"""Poison pills: which record is to blame for a worker's death. Pure.

1. A death counts against a record only where it can have no other cause: nothing else was in hand, and of nothing else
   were the outputs on their way. `max_crashes` of such deaths, and the record is poison.
2. What shares a death with others is counted apart. After `max_crashes` of those it is handled with nothing beside it,
   and delivered before anything else is begun. If the worker dies again, that record is the poison; if the record
   completes, it is cleared. So crash loops end, and a record is never blamed for having been in flight beside poison.

Tasks of jobs find theirs by `kunicorn.pipeline.tasks.in_hand_file`: there no supervisor sees how a process ended.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from kunicorn.ipc.messages import PoisonTold
from kunicorn.positions import NO_OFFSET

Offsets = frozenset[int] | range
"""Records of one partition. A range may have gaps: what its offsets hold, the log knows."""


class Held(NamedTuple):
    """What a dead worker had of one partition, as its ledger says."""

    every: Offsets
    """In hand, or handled while its outputs were not delivered."""
    oldest: Offsets
    """In hand for the longest: one record, or a batch, of which nobody knows which record it was."""
    before: int = NO_OFFSET
    """Where the ledger says where the record before ended: the one that died was before this offset, and what is there
    by now may be another one. `NO_OFFSET`: the offsets are records' own."""


NOTHING_HELD = Held(range(0), range(0))


def blamed(held: Held, *, killed_for: bool, killed: bool) -> Offsets:
    """Offsets of one partition that a death speaks against.

    `killed`: we ended the worker ourselves, `killed_for`: for what it had in hand of this partition for the longest.
    What else it had then is not to blame.
    """
    if not killed:
        return held.every
    return held.oldest if killed_for else range(0)


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that killed workers, each time alone."""

    offset: int
    """The record's own."""
    deaths: int
    how: str
    returned: bool = False
    """When the last one died, the handler had returned from it."""

    def warning(self, position: int) -> dict[str, Any]:
        """What `FetcherStart` says of it to the next worker, which starts at `position`."""
        if position > self.offset:
            return {}
        return {"poison": str(self), "poison_deaths": self.deaths, "poison_offset": self.offset}

    def __str__(self) -> str:
        state = "handled and its outputs not delivered" if self.returned else "in hand"
        return f"{self.deaths} workers died ({self.how}) with offset {self.offset} {state}"


class Suspicions:
    """Deaths of workers counted against the records of one partition, as long as the partition is ours."""

    def __init__(self) -> None:
        self.poison: Poison | None = None
        """The record that was found last."""
        self.more_poison: dict[int, Poison] = {}
        """Those that were found before it and may not be passed yet, by offset. One can wait for its letter while
        another, with another key, is in hand."""
        self.suspects: frozenset[int] = frozenset()
        """Each is to be handled with nothing beside it."""
        self.singly_until = NO_OFFSET
        """So is everything before this offset."""
        self._alone: Counter[int] = Counter()
        self._in_gaps: Counter[int] = Counter()
        """Deaths with the first record from that offset on, whichever it was."""
        self._among: Counter[int] = Counter()
        self._shared, self._until = 0, NO_OFFSET
        """Deaths with some range, none of which was passed since, and their farthest end."""

    def name(self, offset: int, max_crashes: int, *, before: int = NO_OFFSET) -> int:
        """Count a death with nothing else in hand against that record; returns how many there were. Caller: after
        `passed`.

        With `before`, the record is the first one from `offset` on, and before that: the death counts for the one that
        is named next, as nothing in between is done. By such deaths alone none is poison. After `max_crashes` of those
        each record is handled alone: where a handler keeps offsets, each worker may begin before the gap.
        """
        (self._alone if before == NO_OFFSET else self._in_gaps)[offset] += 1
        in_gaps = sum(deaths for named, deaths in self._in_gaps.items() if named <= offset)
        if in_gaps >= max_crashes:
            self.singly_until = max(self.singly_until, before)
        return self._alone[offset] + min(in_gaps, max_crashes - 1)

    def share(self, offsets: Offsets, max_crashes: int) -> bool:
        """Count a death against several records; returns whether more of them are to be handled alone from now on."""
        if isinstance(offsets, range):
            return self._share_range(offsets, max_crashes)
        self._among.update(offsets)
        found = frozenset(offset for offset in offsets if self._among[offset] >= max_crashes) - self.suspects
        self.suspects |= found
        return bool(found)

    def _share_range(self, offsets: range, max_crashes: int) -> bool:
        self._shared, self._until = self._shared + 1, max(self._until, offsets.stop)
        if self._shared < max_crashes or self._until <= self.singly_until:
            return False
        self.singly_until = self._until
        return True

    def meet(self, poison: Poison) -> None:
        """Keep the record from the handler, and those that were found before it."""
        before, self.poison = self.poison, poison
        if before is not None:
            self.more_poison[before.offset] = before
        self.more_poison.pop(poison.offset, None)

    def weighs_on(self, position: int) -> bool:
        """Whether anything at or behind the position is suspected."""
        known = (*self.suspects, *self._alone, *self._in_gaps, *self._among, self._until - 1)
        met = () if self.poison is None else (self.poison.offset,)
        return any(offset >= position for offset in (*known, *met))

    def passed(self, position: int) -> None:
        """Clear every record before the position: it is done."""
        self.suspects = frozenset(offset for offset in self.suspects if offset >= position)
        self._alone, self._in_gaps = _from(position, self._alone), _from(position, self._in_gaps)
        self._among = _from(position, self._among)
        self.more_poison = {offset: poison for offset, poison in self.more_poison.items() if offset >= position}
        if position >= self._until:
            self._shared, self._until = 0, NO_OFFSET

    def warning(self, position: int) -> dict[str, Any]:
        """What `FetcherStart` says to the next worker, which starts at `position`."""
        told = self.poison.warning(position) if self.poison is not None else {}
        if position < self.singly_until:
            told["singly_until"] = self.singly_until
        more = [PoisonTold(offset, str(each), each.deaths) for offset, each in sorted(self.more_poison.items())]
        return {**told, "suspects": sorted(self.suspects), "more_poison": more}


def _from(position: int, counts: Counter[int]) -> Counter[int]:
    return Counter({offset: count for offset, count in counts.items() if offset >= position})
