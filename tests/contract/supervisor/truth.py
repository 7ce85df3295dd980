"""What really happened to a topic's records, held against every record that is begun and every offset committed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol

from kunicorn.ipc import bitmap
from kunicorn.positions import TopicPartition


class Violation(AssertionError):
    """A promise is broken."""


class Hand(Protocol):
    """A worker."""

    def certain(self) -> bool:
        """Whether its member is a member beyond doubt."""


class Log:
    """One partition of one topic that lived under its name. Offsets without gaps, from `begin` to below `end`."""

    def __init__(self, tp: TopicPartition, begin: int, end: int, *, owed_from: int | None) -> None:
        """`owed_from`: the first record that the group has to handle; None where that is for its first commit to say,
        which may leave out what there is now."""
        self.tp = tp
        self.begin, self.end = begin, end
        self.existed = end
        """Where it ended when the story began: nothing before it is handled by a group that begins with "latest"."""
        self.owed_from = owed_from
        self.committed = -1
        self.metadata = ""
        self.gone = False
        self.denied = False
        self.handled: Counter[int] = Counter()
        self.repeatable: Counter[int] = Counter()
        """Offsets that may be handled again, and how often more."""
        self.in_hand: defaultdict[Hand, set[int]] = defaultdict(set)
        self.strays: set[tuple[Hand, int]] = set()
        """What workers have in hand whose member has lost the partition: another one may begin it."""
        self._sought: int | None = None
        """Where a person has put it, until that is committed."""
        self._unsure = False
        """Its member may have lost it before that was committed."""

    # -- what is done --------------------------------------------------------------------------------------------------

    def begin_record(self, worker: Hand, offset: int) -> None:
        """A worker that may handle takes it in hand."""
        if self.owed_from is None:
            raise Violation(f"{self.tp}@{offset} is handled before the start of {self.tp} was committed (invariant 9)")
        if offset < self.owed_from:
            raise Violation(f"{self.tp}@{offset} is older than where the group began: {self.owed_from}")
        for other, hand in self.in_hand.items():
            if other is not worker and (held := {at for at in hand if (other, at) not in self.strays}):
                if other.certain():
                    raise Violation(
                        f"invariant 4: {self.tp}@{offset} is begun while another worker has {min(held)} in hand"
                    )
                self.stray(other)
        if offset in self.in_hand[worker]:
            raise Violation(f"{self.tp}@{offset} is begun while the same worker has it in hand")
        self.in_hand[worker].add(offset)

    def finish_record(self, worker: Hand, offset: int) -> None:
        """It is done."""
        self.in_hand[worker].remove(offset)
        self.strays.discard((worker, offset))
        if self.handled[offset] and not self.repeatable[offset]:
            raise Violation(f"{self.tp}@{offset} is handled again, and nothing has happened that allows it")
        if self.handled[offset]:
            self.repeatable[offset] -= 1
        self.handled[offset] += 1

    def let(self, worker: Hand, offset: int) -> None:
        """It is not done, and in nobody's hands any more."""
        self.in_hand[worker].remove(offset)
        self.strays.discard((worker, offset))

    def stray(self, worker: Hand) -> None:
        """Its member has lost the partition: another one may handle what it has in hand, before it is done or after."""
        for offset in self.in_hand[worker]:
            if (worker, offset) not in self.strays:
                self.strays.add((worker, offset))
                self.repeatable[offset] += 1

    def drop(self, worker: Hand) -> None:
        """That worker is dead, or does not count any more: what it had in hand may be handled by somebody else."""
        self.stray(worker)
        self.strays.difference_update((worker, offset) for offset in self.in_hand.pop(worker, ()))

    def retain(self, begin: int) -> None:
        """What lies before is deleted. With a position that is in the log no more goes what was known to be done ahead
        of it."""
        if begin > self.unfinished:
            for offset in self.handled:
                self.repeatable[offset] += offset >= begin
        self.begin = begin

    def excuse(self) -> None:
        """What was handled and is not committed may be handled again."""
        done = bitmap.read(self.committed, self.metadata) if self.committed >= 0 else frozenset()
        for offset in self.handled:
            if offset >= self.committed and offset not in done:
                self.repeatable[offset] += 1
        if self._sought is not None:
            # It goes on there, or where it was committed before.
            self._unsure = True
            for offset in range(max(0, min(self._sought, self.committed)), self.end):
                self.handled[offset] = max(self.handled[offset], 1)
                self.repeatable[offset] += 2

    def sought(self, offset: int) -> None:
        """A person has put it there: what lies before is passed over, the rest is to be handled, again or not."""
        for each in range(self.unfinished, offset):
            self.handled[each] = max(self.handled[each], 1)
        for each in [each for each in self.handled if each >= offset]:
            del self.handled[each]
        assert self.owed_from is not None
        self.owed_from, self._sought = min(self.owed_from, offset), offset

    def commit(self, offset: int, metadata: str) -> None:
        """A coordinator takes it."""
        if self.owed_from is None:
            if offset < self.existed:
                raise Violation(f"a new group begins {self.tp} at {offset}, and the log ended at {self.existed}")
            self.owed_from = offset
        if self._sought is not None and offset < self._sought and not self._unsure:
            raise Violation(f"{self.tp} is committed at {offset}, and a person has put it at {self._sought}")
        if offset < self.committed and self._sought is None:
            raise Violation(f"{self.tp} is taken back from {self.committed} to {offset} (invariant 3)")
        if offset > self.unfinished:
            raise Violation(f"invariant 1: {self.tp} is committed at {offset}, and {self.unfinished} is not finished")
        if unfinished := [each for each in bitmap.read(offset, metadata) if not self.handled[each]]:
            raise Violation(f"{self.tp} is committed with {sorted(unfinished)} as done, which are not finished")
        self.committed, self.metadata = offset, metadata
        self._sought, self._unsure = None, False

    # -- what is left --------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """The first record that is owed, still there, and not finished; the end where there is none."""
        first = max(self.begin, self.owed_from if self.owed_from is not None else self.existed)
        return next((offset for offset in range(first, self.end) if not self.handled[offset]), max(first, self.end))
