"""What one load wrote, where it lies in the log, and what the brokers still have of it. Pure. Small, as it is one rule.

A log may lose its end: its topic is deleted and created anew, or a broker leads that had not replicated it. Another
load then writes at offsets that were taken before. What is gone is excused by what brokers say, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.chaos.offsets import Offsets


@dataclass(frozen=True)
class Stretch:
    """Offsets by partition; where nothing is said, 0."""

    begins: Mapping[int, int]
    """Of its first record."""
    ends: Mapping[int, int]
    """Behind the last that was confirmed."""
    start: Mapping[int, int]
    """Where the brokers' log begins: what is below was deleted."""
    left: Mapping[int, int] | None
    """From here on the brokers' log has other records, or ends; None: the topic has another id, nothing is left."""
    committed: Mapping[int, int] | None = None
    """By the group, of a topic that is gone since; None: its records were handled in order."""

    def records(self, partition: int) -> int:
        """How many were confirmed."""
        return self.ends.get(partition, 0) - self.begins.get(partition, 0)

    def owed(self, partition: int, ended: Offsets) -> tuple[int, int]:
        """From where to where each record is to be handled. Of a topic that is gone nobody can tell what might still
        have been fetched: none may be left out before one that was handled. Where several are in hand at once, those
        between them may wait for their turn when the topic goes: none may be left out before a committed offset."""
        first = max(self.begins.get(partition, 0), self.start.get(partition, 0))
        if self.left is not None:
            last = min(self.left.get(partition, 0), self.ends.get(partition, 0))
        elif self.committed is not None:
            last = self.committed.get(partition, 0)
        else:
            last = ended.end
        return first, max(first, last)

    def lost(self, partition: int, ended: Offsets, poison: Collection[int] = ()) -> int:
        """How many of those no call has ended with, but for poison."""
        return ended.lacking(*self.owed(partition, ended), poison)

    def gone(self, partition: int, ended: Offsets, poison: Collection[int] = ()) -> int:
        """How many no call has ended with before the brokers had them no more."""
        whole = self.begins.get(partition, 0), self.ends.get(partition, 0)
        return max(0, ended.lacking(*whole, poison) - self.lost(partition, ended, poison))
