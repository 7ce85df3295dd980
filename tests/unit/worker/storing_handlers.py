"""A handler that keeps its offsets beside its effects, in a database that the test looks into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kunicorn import Batch, BatchError, DeadLetter
from kunicorn.positions import TopicPartition

rows: list[int] = []
"""Offsets of the records that are stored."""
following: dict[TopicPartition, int] = {}
"""The next offset, which is stored with them."""
hopeless: set[int] = set()
"""Offsets of records that become dead letters."""


def forget() -> None:
    """Before each test."""
    rows.clear()
    following.clear()
    hopeless.clear()


class Keeper:
    """Stores a batch, but for what is hopeless, and the offset behind it in one transaction."""

    def load_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: following[tp] for tp in partitions if tp in following}

    def handle(self, records: Batch) -> BatchError | None:
        tp = TopicPartition(records[0].topic, records[0].partition)
        offsets = [record.offset for record in records]
        bad = [offset in hopeless for offset in offsets]
        rows.extend(offset for offset, is_bad in zip(offsets, bad, strict=True) if not is_bad)
        following[tp] = offsets[-1] + 1
        return BatchError(outcomes=[(DeadLetter("a bad row"), bad)]) if any(bad) else None
