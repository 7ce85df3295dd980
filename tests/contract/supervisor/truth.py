"""What really happened to a topic's records, held against every record that is begun and every offset committed."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

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
        self.in_hand: dict[Hand, int] = {}
        self.strays: set[Hand] = set()
        """Workers that have one in hand and whose member has lost the partition: another one may begin it."""

    # -- what is done --------------------------------------------------------------------------------------------------

    def begin_record(self, worker: Hand, offset: int) -> None:
        """A worker that may handle takes it in hand."""
        if self.owed_from is None:
            raise Violation(f"{self.tp}@{offset} is handled before the start of {self.tp} was committed (invariant 9)")
        if offset < self.owed_from:
            raise Violation(f"{self.tp}@{offset} is older than where the group began: {self.owed_from}")
        for other, at in self.in_hand.items():
            if other not in self.strays and other.certain():
                raise Violation(f"invariant 4: {self.tp}@{offset} is begun while another worker has {at} in hand")
            self.stray(other)
        self.in_hand[worker] = offset

    def finish_record(self, worker: Hand) -> None:
        """It is done."""
        offset = self.in_hand.pop(worker)
        self.strays.discard(worker)
        if self.handled[offset] and not self.repeatable[offset]:
            raise Violation(f"{self.tp}@{offset} is handled again, and nothing has happened that allows it")
        if self.handled[offset]:
            self.repeatable[offset] -= 1
        self.handled[offset] += 1

    def stray(self, worker: Hand) -> None:
        """Its member has lost the partition: another one may handle what it has in hand, before it is done or after."""
        if worker in self.in_hand and worker not in self.strays:
            self.strays.add(worker)
            self.repeatable[self.in_hand[worker]] += 1

    def drop(self, worker: Hand) -> None:
        """That worker is dead, or does not count any more: what it had in hand may be handled by somebody else."""
        self.stray(worker)
        self.in_hand.pop(worker, None)
        self.strays.discard(worker)

    def excuse(self) -> None:
        """What was handled and is not committed may be handled again."""
        for offset in self.handled:
            if offset >= self.committed:
                self.repeatable[offset] += 1

    def commit(self, offset: int, metadata: str) -> None:
        """A coordinator takes it."""
        if self.owed_from is None:
            if offset < self.existed:
                raise Violation(f"a new group begins {self.tp} at {offset}, and the log ended at {self.existed}")
            self.owed_from = offset
        if offset < self.committed:
            raise Violation(f"{self.tp} is taken back from {self.committed} to {offset} (invariant 3)")
        if offset > self.unfinished:
            raise Violation(f"invariant 1: {self.tp} is committed at {offset}, and {self.unfinished} is not finished")
        self.committed, self.metadata = offset, metadata

    # -- what is left --------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """The first record that is owed, still there, and not finished; the end where there is none."""
        first = max(self.begin, self.owed_from if self.owed_from is not None else self.existed)
        return next((offset for offset in range(first, self.end) if not self.handled[offset]), max(first, self.end))
