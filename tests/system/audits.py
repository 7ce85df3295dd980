"""What handlers have written of their calls, for whoever waits for it: looked for in the words of the audit, of which a
busy group has tens of thousands at each look."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kunicorn.commands.demo.audit import WORDS, Entry, Kind, read_audit

_PARTITION = 0xFFFF_FFFF
Place = tuple[int, int]
"""A partition and an offset."""


def noted(audit: Path, kind: Kind, partition: int) -> list[Entry]:
    """Every begin or every end of a call with a record of the partition, in order."""
    wanted = kind << 32 | partition
    found = [
        Entry(kind, partition, *file.words[WORDS * at + 1 : WORDS * (at + 1)])
        for file in read_audit(audit)
        for at, word in enumerate(file.words[::WORDS])
        if word == wanted
    ]
    return sorted(found, key=lambda entry: (entry.time_ns, entry.offset))


def ended(audit: Path, since: int = 0) -> Counter[Place]:
    """How often each record was handled to its end, behind that time."""
    found: Counter[Place] = Counter()
    for file in read_audit(audit):
        kinds, offsets, times = file.words[::WORDS], file.words[1::WORDS], file.words[3::WORDS]
        found.update(
            (word & _PARTITION, offset)
            for word, offset, time_ns in zip(kinds, offsets, times, strict=True)
            if word >> 32 == Kind.END and time_ns > since
        )
    return found
