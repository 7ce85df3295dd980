"""What became of the outputs of a leg, read as a stream: each input has its own, once where that is promised."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.offsets import Offsets
from tests.system.outputs import each_committed

Place = tuple[int, int]
"""Partition and offset of an input."""


@dataclass(frozen=True)
class Outputs:
    """Counted by the inputs that they name."""

    made: int
    twice: int
    found: dict[int, Offsets]

    def missing(self, inputs: dict[int, Offsets], ends: dict[int, int]) -> int:
        """How many of these inputs have none."""
        return sum(
            offset in inputs[partition]
            for partition, end in ends.items()
            for gap in self.found.get(partition, Offsets()).missing(end)
            for offset in gap
        )


def counted(places: Iterable[Place]) -> Outputs:
    """Whatever order they are in; what is kept grows with gaps, not with outputs."""
    found: defaultdict[int, Offsets] = defaultdict(Offsets)
    made = twice = 0
    for partition, offset in places:
        made += 1
        twice += not found[partition].add(offset)
    return Outputs(made, twice, dict(found))


def of_topic(bootstrap: str, topic: str, partitions: int) -> Iterator[Place]:
    """The inputs that a topic's committed records name."""
    for message in each_committed(bootstrap, topic, partitions):
        partition, _, offset = (message.value() or b"").partition(b":")
        yield int(partition), int(offset)


def of_database(path: Path) -> Iterator[Place]:
    """The inputs whose effects a database has."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        yield from database.execute("SELECT partition, at FROM payments ORDER BY partition, at")
