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

    def records(self, partition: int) -> int:
        """How many were confirmed."""
        return self.ends.get(partition, 0) - self.begins.get(partition, 0)

    def owed(self, partition: int, ended: Offsets) -> tuple[int, int]:
        """From where to where each record is to be handled. Of a topic that is gone nobody can tell what might still
        have been fetched: none may be left out before one that was handled."""
        first = max(self.begins.get(partition, 0), self.start.get(partition, 0))
        last = ended.end if self.left is None else min(self.left.get(partition, 0), self.ends.get(partition, 0))
        return first, max(first, last)

    def lost(self, partition: int, ended: Offsets, poison: Collection[int] = ()) -> int:
        """How many of those no call has ended with, but for poison."""
        return ended.lacking(*self.owed(partition, ended), poison)

    def gone(self, partition: int, ended: Offsets, poison: Collection[int] = ()) -> int:
        """How many no call has ended with before the brokers had them no more."""
        whole = self.begins.get(partition, 0), self.ends.get(partition, 0)
        return max(0, ended.lacking(*whole, poison) - self.lost(partition, ended, poison))
