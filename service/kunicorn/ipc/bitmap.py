"""Bitmaps of offsets behind a partition's ledger slot: those done ahead of the lowest unfinished one, and those in
hand.

Each is a ring of bits in shared memory, written by a worker with several records in hand and read by the supervisor. As
text the done offsets travel over pipes and in the metadata of commits (`written`, `read`).

1. The ring has twice as many bits as the window: when the window moves on, the offset is stored first and the bits
   behind it are cleared afterwards. Whoever reads in between (after SIGKILL) takes none of those for a later offset, as
   long as the window moves by less than its size. Before a larger move (compaction leaves gaps) the ring is cleared:
   nothing that it marks lies behind the move.
2. One writer, one byte a store: a reader never sees half of a change.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator

WINDOW = 4096
"""Offsets beyond the lowest unfinished one of a partition within which records may be started."""
_RING = 2 * WINDOW
RING_BYTES = _RING // 8

_FORM = "kunicorn:done:1:"
"""Beginning of the text form; that of another version is not understood, which costs repetitions and no record."""
_PARTITIONS = "kunicorn:partitions:"
"""How a commit's metadata begins that says how many partitions the topic had when the group began to consume it. What
is done, if anything, follows behind a space."""


class Marks:
    """One ring of bits of a slot. Holds no view of its own into the memory: views would keep the ledger from being
    closed.
    """

    __slots__ = ("_at", "_memory")

    def __init__(self, memory: memoryview, at: int) -> None:
        """`memory`: the ledger's bytes; the ring begins at `at`."""
        self._memory = memory
        self._at = at

    def mark(self, offset: int) -> None:
        bit = offset % _RING
        self._memory[self._at + (bit >> 3)] |= 1 << (bit & 7)

    def unmark(self, offset: int) -> None:
        bit = offset % _RING
        self._memory[self._at + (bit >> 3)] &= ~(1 << (bit & 7))

    def clear(self) -> None:
        """Clear every bit. Caller: a worker that marks; elsewhere the page is never touched, so that it takes no
        memory.
        """
        self._memory[self._at : self._at + RING_BYTES] = bytes(RING_BYTES)

    def from_offset(self, first: int) -> frozenset[int]:
        """Marked offsets of the window that begins with `first`."""
        ring = int.from_bytes(self._memory[self._at : self._at + RING_BYTES], "little")
        if not ring:
            return frozenset()
        start = first % _RING
        turned = (ring >> start | ring << (_RING - start)) & ((1 << WINDOW) - 1)
        return frozenset(first + bit for bit in _bits(turned))


def written(first: int, offsets: Collection[int]) -> str:
    """The offsets as text, relative to `first`, without those outside its window. Empty where there are none.

    At most 700 characters, 731 with the number of partitions: well below the 4096 that brokers take as a commit's
    metadata (offset.metadata.max.bytes).
    """
    bits = 0
    for offset in offsets:
        if 0 <= offset - first < WINDOW:
            bits |= 1 << (offset - first)
    if not bits:
        return ""
    return _FORM + base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def read(first: int, text: str) -> frozenset[int]:
    """Offsets in a text of `written`, also behind a number of partitions or in front of who committed it. Other texts,
    which other clients may have committed with their offsets, yield none.

    confluent-kafka commits a text with the NUL that ends it in C (`py_to_c_parts` counts it into `metadata_size`).
    """
    done = next((word for word in text.rstrip("\0").split(" ") if word.startswith(_FORM)), None)
    if done is None:
        return frozenset()
    try:
        data = base64.b64decode(done.removeprefix(_FORM), validate=True)
    except (binascii.Error, ValueError):
        return frozenset()
    if len(data) > WINDOW // 8:
        return frozenset()
    return frozenset(first + bit for bit in _bits(int.from_bytes(data, "little")))


def with_partitions(partitions: int | None, done: str) -> str:
    """Metadata of a commit: the done offsets, and the topic's number of partitions when the group began to consume it.

    `partitions`: None where that is not known. The number takes 31 characters at most.
    """
    return done if partitions is None else f"{_PARTITIONS}{partitions} {done}".rstrip()


def partitions(text: str) -> int | None:
    """Number of partitions in a commit's metadata; None where it has none."""
    number = text.partition(" ")[0].removeprefix(_PARTITIONS).rstrip("\0")
    return int(number) if text.startswith(_PARTITIONS) and number.isascii() and number.isdigit() else None


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
