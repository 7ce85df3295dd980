"""What became of the outputs of a leg, read as a stream: each input has its own, once where that is promised."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from tests.chaos.offsets import Offsets
from tests.system.outputs import each_committed

Log = tuple[int, int]
"""A partition, and the number of the load that wrote to it."""
Place = tuple[Log, int]
"""Log and offset of an input."""


class Output(NamedTuple):
    """One output that is there, or an effect."""

    log: Log
    offset: int
    """Of its input, as of the log."""
    made: int = 0
    """When, nanoseconds of `kunicorn.ipc.clock`, after the call with the input began; 0: not told."""


@dataclass(frozen=True)
class Outputs:
    """Counted by the inputs that they name."""

    made: int
    twice: int
    early: Sequence[Place]
    """Inputs that were handled again although a transaction already had their output."""
    found: dict[Log, Offsets]

    def missing(self, inputs: Mapping[Log, Offsets], owed: Mapping[Log, range]) -> int:
        """How many of these inputs have none, of those that are to have one."""
        return sum(
            offset in inputs[log]
            for log, offsets in owed.items()
            for gap in self.found.get(log, Offsets()).missing(offsets.stop)
            for offset in gap[max(0, offsets.start - gap.start) :]
        )


def counted(outputs: Iterable[Output], again: Mapping[Place, int] = MappingProxyType({})) -> Outputs:
    """Whatever order they are in; what is kept grows with gaps, not with outputs.

    `again`: when the last call began with an input that was handled again, nanoseconds. Its output must not be older:
    one that is was made by a call before, and committed.
    """
    found: defaultdict[Log, Offsets] = defaultdict(Offsets)
    early: list[Place] = []
    made = twice = 0
    for log, offset, at in outputs:
        made += 1
        twice += not found[log].add(offset)
        if at < again.get((log, offset), 0):
            early.append((log, offset))
    return Outputs(made, twice, early, dict(found))


def of_topic(bootstrap: str, topic: str, partitions: int, load_of: Callable[[int], int]) -> Iterator[Output]:
    """A topic's committed records. They have their inputs' keys: `load_of` knows their CRC-32."""
    for message in each_committed(bootstrap, topic, partitions):
        partition, offset, made = map(int, (message.value() or b"").split(b":"))
        yield Output((partition, load_of(crc32(message.key() or b""))), offset, made)


def of_database(path: Path) -> Iterator[Output]:
    """The effects that a database has."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for partition, offset in database.execute("SELECT partition, at FROM payments ORDER BY partition, at"):
            yield Output((partition, 0), offset)
