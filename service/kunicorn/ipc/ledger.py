"""The ledger: a worker's consumed offsets in shared memory, so that the supervisor can read them after a SIGKILL.

One sparse memfd for each worker process, mapped by supervisor and worker; it vanishes with its last descriptor. Each
grant (one hand-out of a partition to this worker) has a slot of 64 bytes. The worker stores into it without a lock or a
system call; the supervisor reads it for commits, for lag, and after the worker's death.

1. Cells are int64 and are stored only through `memoryview.cast("q")`: one aligned 64-bit store is never torn.
   `struct.pack_into` zeroes first, and another process then reads 0.
2. One writer per line: the supervisor writes the lease line, the worker everything else.
3. The leader epoch is stored before the offset and loaded after it. The one possible mismatch, an older offset with a
   newer epoch, is harmless; the opposite would claim an epoch that never held the record.
4. A slot counts only for the grant written in it. A reader that finds another grant knows: not started.
5. The worker writes the grant last when it opens a slot, so a half-open slot is never believed. On either side lies a
   fence between the grant and the rest (`_fence`). Where processors reorder stores and loads (arm64), a reader might
   else see the new grant with the consumed offset of the slot's former partition, which would be committed. An offset
   and its epoch have none, as each record would pay for it.
6. Where several records of a partition are handled at a time, the worker also marks which are done beyond the consumed
   offset, and which are in hand. Those bits lie behind the slots; for other partitions they are never touched, and cost
   nothing.
7. Between slots and bits lie three words a slot: the time that its records have taken so far, where the run in hand
   ends, and how the slot is written. The slot's own line is full. They are read only together with the grant.
"""

from __future__ import annotations

import _thread
import mmap
import os
from typing import NamedTuple

from kunicorn.ipc.bitmap import RING_BYTES, Marks
from kunicorn.linux import memory_file
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position

_WORD = 8
_LINE = 8
"""Words in a cache line: one slot is one line, so that two slots never share one."""
_HEADER_LINES = 2
_BESIDE = 3
"""Words of a slot that are not in its line."""
_RINGS = 2
_SLOT_BYTES = (_LINE + _BESIDE) * _WORD + _RINGS * RING_BYTES

_LEASE = 0
"""Until when membership is certain (nanoseconds, `clock.now_ns`); written by the supervisor."""

GRANT, CONSUMED, LEADER_EPOCH, HAND_OFFSET, HAND_COUNT, HAND_SINCE, TIMESTAMP, HANDLED = range(_LINE)
"""A slot's words: grant; next offset to handle; leader epoch of the last record handled; first offset, number of
records and start (nanoseconds) of the run in hand; the timestamp (milliseconds since 1970) of its first record, which
stays when it is done; records finished under this grant. Where outputs are sent the consumed offset is that of the next
one to be delivered, and with nothing in hand the hand's offset is where the handled ones end."""

HAND_END = 1
"""Counted from `Ledger.busy_index`: the offset behind the last record of the run in hand, which may have gaps. Says
something only where one run is in hand at a time, and not the bits."""

_WRITTEN = 2
"""Likewise: how the slot is written, one of the following."""
_BY_RUNS, _BY_DELIVERED_RUNS, _BY_MARKS = range(3)


class SlotReading(NamedTuple):
    """Content of one slot, as read by the supervisor."""

    consumed: Position
    hand_offset: int
    hand_count: int
    hand_since_ns: int
    timestamp_ms: int
    handled: int
    hand_end: int = NO_OFFSET

    @property
    def started(self) -> bool:
        """Whether the worker has opened the slot under the grant that was asked for."""
        return self.consumed.offset != NO_OFFSET

    @property
    def in_hand(self) -> int:
        """First unfinished offset that the handler may have seen; `NO_OFFSET` with nothing in hand."""
        if self.hand_count == 0:
            return NO_OFFSET
        return max(self.hand_offset, self.consumed.offset)


NOT_STARTED = SlotReading(Position(NO_OFFSET, NO_EPOCH), NO_OFFSET, 0, 0, NO_TIMESTAMP, 0)


def _fence() -> None:
    """Keep what this thread loads and stores before from being seen behind what it does afterwards.

    Python has no fence, but a lock that is let go of and taken again is one. Its release keeps what was before in
    place, the acquisition that follows what comes after, and those two keep their order. So say the processors' rules:
    no test runs on a machine that reorders.
    """
    lock = _thread.allocate_lock()
    with lock:
        pass
    with lock:
        pass


class Ledger:
    """The mapped memory of one worker. The owner of the descriptor calls `close()`."""

    def __init__(self, fd: int) -> None:
        """Map the ledger behind `fd`, made by `create` here or in another process."""
        self.fd = fd
        self._size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, self._size)
        self.cells: memoryview = memoryview(self._map).cast("q")
        """The words; the worker's hot loop stores straight into it, at `index(slot) + CONSUMED`."""
        self._bytes = memoryview(self._map)

    @classmethod
    def create(cls, slots: int) -> Ledger:
        """A new ledger. A page takes memory only once a slot on it is used."""
        fd = memory_file("kunicorn-ledger")
        os.ftruncate(fd, _HEADER_LINES * _LINE * _WORD + slots * _SLOT_BYTES)
        return cls(fd)

    @property
    def slots(self) -> int:
        """Number of grants that can be open at once."""
        return (self._size - _HEADER_LINES * _LINE * _WORD) // _SLOT_BYTES

    @staticmethod
    def index(slot: int) -> int:
        """Index of the slot's first word in `cells`."""
        return (_HEADER_LINES + slot) * _LINE

    def busy_index(self, slot: int) -> int:
        """Index in `cells` of the nanoseconds that the slot's records took under this grant, in parts of what the
        worker can do at a time: with 100 records in hand, one that takes a second counts for ten milliseconds.
        """
        return (_HEADER_LINES + self.slots) * _LINE + _BESIDE * slot

    def busy_ns(self, slot: int) -> int:
        """Nanoseconds that the slot's records took, as above. Caller: the supervisor, while the slot is open."""
        return self.cells[self.busy_index(slot)]

    def is_in_hand(self, slot: int) -> bool:
        """Whether something is in hand, under whatever grant: cheaper than `read`. Caller: the supervisor."""
        return self.cells[self.index(slot) + HAND_COUNT] != 0

    @property
    def lease_ns(self) -> int:
        """End of the lease: until then (nanoseconds of `clock.now_ns`) records may be started. 0 before the first."""
        return self.cells[_LEASE]

    @lease_ns.setter
    def lease_ns(self, until: int) -> None:
        """Caller: supervisor."""
        self.cells[_LEASE] = until

    def marked(self, slot: int) -> bool:
        """Whether the slot's bitmaps are in use. If not, reading them would only have the kernel allocate their
        pages.
        """
        return self.cells[self.busy_index(slot) + _WRITTEN] == _BY_MARKS

    def use_marks(self, slot: int) -> None:
        """Turn the slot's bitmaps on. Caller: a worker that handles several records of the partition at a time, before
        it opens the slot.
        """
        self.cells[self.busy_index(slot) + _WRITTEN] = _BY_MARKS

    def delivers(self, slot: int) -> bool:
        """Whether records may be handled and not delivered yet: those from the consumed offset to the one in hand."""
        return self.cells[self.busy_index(slot) + _WRITTEN] == _BY_DELIVERED_RUNS

    def use_runs(self, slot: int, *, delivered: bool) -> None:
        """Declare that one run of the partition is in hand at a time; `delivered`: its records count as consumed once
        they are delivered. Caller: a worker, before it opens the slot.
        """
        self.cells[self.busy_index(slot) + _WRITTEN] = _BY_DELIVERED_RUNS if delivered else _BY_RUNS

    def done(self, slot: int) -> Marks:
        """Bitmap of the slot's offsets that are done beyond the consumed one. Written by a worker with several in
        hand.
        """
        return Marks(self._bytes, self._ring(slot, 0))

    def in_hand(self, slot: int) -> Marks:
        """Bitmap of the slot's offsets that are in hand. Written by a worker with several in hand."""
        return Marks(self._bytes, self._ring(slot, 1))

    def _ring(self, slot: int, number: int) -> int:
        behind_words = ((_HEADER_LINES + self.slots) * _LINE + _BESIDE * self.slots) * _WORD
        return behind_words + (_RINGS * slot + number) * RING_BYTES

    def open_slot(self, slot: int, grant: int, start: Position) -> None:
        """Begin a slot at `start`. Caller: worker, before the first record of the grant is fetched."""
        cells, at = self.cells, self.index(slot)
        cells[at + GRANT] = 0
        cells[at + HAND_COUNT] = 0
        cells[at + HAND_OFFSET] = NO_OFFSET
        cells[at + HAND_SINCE] = 0
        cells[at + TIMESTAMP] = NO_TIMESTAMP
        cells[at + HANDLED] = 0
        cells[self.busy_index(slot)] = 0
        cells[self.busy_index(slot) + HAND_END] = NO_OFFSET
        cells[at + LEADER_EPOCH] = start.leader_epoch
        cells[at + CONSUMED] = start.offset
        _fence()
        cells[at + GRANT] = grant

    def read(self, slot: int, grant: int) -> SlotReading:
        """The slot under `grant`; `NOT_STARTED` if another grant is written in it.

        Caller: supervisor. Of a living worker each word is true, but they are not of one instant; of a dead one (its
        pidfd has said so) they are final.
        """
        cells, at = self.cells, self.index(slot)
        if cells[at + GRANT] != grant:
            return NOT_STARTED
        _fence()
        offset = cells[at + CONSUMED]
        epoch = cells[at + LEADER_EPOCH]
        return SlotReading(
            Position(offset, epoch),
            cells[at + HAND_OFFSET],
            cells[at + HAND_COUNT],
            cells[at + HAND_SINCE],
            cells[at + TIMESTAMP],
            cells[at + HANDLED],
            cells[self.busy_index(slot) + HAND_END],
        )

    def close(self) -> None:
        """Unmap and close; the memory is freed when the other side has done the same."""
        self.cells.release()
        self._bytes.release()
        self._map.close()
        os.close(self.fd)
