"""What became of the outputs of a leg, read as a stream: each input has its own, once where that is promised."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tests.chaos.offsets import Offsets
from tests.system.outputs import each_committed

Log = tuple[int, int]
"""A partition, and the number of the load that wrote to it."""
Place = tuple[Log, int]
"""Log and offset of an input."""


@dataclass(frozen=True)
class Outputs:
    """Counted by the inputs that they name."""

    made: int
    twice: int
    found: dict[Log, Offsets]

    def missing(self, inputs: Mapping[Log, Offsets], owed: Mapping[Log, range]) -> int:
        """How many of these inputs have none, of those that are to have one."""
        return sum(
            offset in inputs[log]
            for log, offsets in owed.items()
            for gap in self.found.get(log, Offsets()).missing(offsets.stop)
            for offset in gap[max(0, offsets.start - gap.start) :]
        )


def counted(places: Iterable[Place]) -> Outputs:
    """Whatever order they are in; what is kept grows with gaps, not with outputs."""
    found: defaultdict[Log, Offsets] = defaultdict(Offsets)
    made = twice = 0
    for log, offset in places:
        made += 1
        twice += not found[log].add(offset)
    return Outputs(made, twice, dict(found))


def of_topic(bootstrap: str, topic: str, partitions: int, load_of: Callable[[int], int]) -> Iterator[Place]:
    """The inputs that a topic's committed records name. They have their inputs' keys: `load_of` knows their CRC-32."""
    for message in each_committed(bootstrap, topic, partitions):
        partition, _, offset = (message.value() or b"").partition(b":")
        yield (int(partition), load_of(crc32(message.key() or b""))), int(offset)


def of_database(path: Path) -> Iterator[Place]:
    """The inputs whose effects a database has."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for partition, offset in database.execute("SELECT partition, at FROM payments ORDER BY partition, at"):
            yield (partition, 0), offset
