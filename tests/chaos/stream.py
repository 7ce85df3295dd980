"""The audit read as it is written, and never kept: what was begun and done, and what happened that is to be judged.

It finds what `tests.chaos.calls` finds in a whole audit (`tests/unit/chaos/test_stream.py` holds the two against each
other), in memory that grows with gaps and time, not with records. A call that is handled again is told to the half
second: `Repeat.before` has the first begin and the last end of what its process did around it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

from kunicorn.commands.demo.audit import SUFFIX, WORDS, Kind
from kunicorn.ipc.clock import now_ns
from tests.chaos.calls import Call, Overlap, Repeat
from tests.chaos.offsets import Offsets
from tests.waiting import runs

T = TypeVar("T")

BEGIN = int(Kind.BEGIN)
KEPT = 100_000
"""Findings of a kind between two `take`: more than any fault may cause. Beyond them they are counted only."""
HISTORY = 20_000
"""Half seconds of a partition that are remembered: hours."""
_SLICE_NS = 500_000_000
_NOTICEABLE_NS = 10_000_000
"""A partition that is served more often than that has no pause that anybody would look at."""
_AT_ONCE = 1 << 20
"""Bytes of a file in one go."""
_ENTRY_BYTES = WORDS * 8

Entry = tuple[int, int, int, int, int]
"""Time, number of the process, kind and partition, offset, CRC of the key."""


class Written(NamedTuple):
    """What one load wrote. Where a log was cut, an offset has had several records: their keys tell them apart."""

    marks: Container[int]
    """CRC-32 of its keys, of which no other load has any."""
    appended: Mapping[int, Sequence[int]]
    """By partition and offset: when it was confirmed."""


@dataclass
class Found:
    """What happened since it was asked for last."""

    repeats: list[Repeat] = field(default_factory=list)
    repeated: int = 0
    """Of which `repeats` has at most `KEPT`."""
    overlaps: list[Overlap] = field(default_factory=list)
    """One for each call that somebody else began beside; likewise."""
    disorder: list[str] = field(default_factory=list)
    waits: dict[int, int] = field(default_factory=dict)
    """Each partition's longest pause, nanoseconds; see `tests.chaos.calls.longest_waits`."""

    def __add__(self, later: Found) -> Found:
        """Both; of the pauses the longer ones."""
        return Found(
            self.repeats + later.repeats,
            self.repeated + later.repeated,
            self.overlaps + later.overlaps,
            self.disorder + later.disorder,
            {p: max(self.waits.get(p, 0), later.waits.get(p, 0)) for p in self.waits.keys() | later.waits.keys()},
        )


@dataclass
class _Process:
    """Who wrote one or several of the files: threads that come first together have one each."""

    number: int
    member: str
    pid: int
    dead: bool = False


class _File:
    """Audit of one topic, read as far as it is."""

    def __init__(self, path: Path, process: _Process) -> None:
        self.process = process
        self._path = path
        self._at = 0

    def more(self) -> tuple[list[Entry], bool]:
        """The entries that follow, and whether there may be others behind them."""
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._at)
            body = file.read(_AT_ONCE)
        body = body[: len(body) - len(body) % _ENTRY_BYTES]
        self._at += len(body)
        words = array("q", body)
        numbers = [self.process.number] * (len(words) // WORDS)
        entries = list(zip(words[3::WORDS], numbers, words[0::WORDS], words[1::WORDS], words[2::WORDS], strict=True))
        return entries, len(body) == _AT_ONCE


@dataclass
class _Slice:
    """What one process began in one partition within half a second."""

    process: int
    begin: int
    offsets: Offsets = field(default_factory=Offsets)
    end: int | None = None


@dataclass
class _Partition:
    number: int
    load: int
    appended: Mapping[int, Sequence[int]]
    begun: Offsets = field(default_factory=Offsets)
    ended: Offsets = field(default_factory=Offsets)
    open: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By process and offset: begin and key of each call that has not ended."""
    beside: dict[tuple[int, int], Call] = field(default_factory=dict)
    """By process and offset of an open call: the first that another process began beside it."""
    lanes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The highest offset that was begun, by key, or of all; and when."""
    history: deque[_Slice] = field(default_factory=lambda: deque(maxlen=HISTORY))
    last: int = 0
    """When something last began or ended."""


class AuditStream:
    """The audit of one topic's group. Not thread-safe; `read` blocks on files only.

    `written`: by each load, one after the other; others may follow while it is read. `ordering`: what a worker handles
    one after the other, as `handler.ordering`; `together`: the handler has batches, whose records are in hand at the
    same time. `lives` tells whether a process still can end its calls.
    """

    def __init__(
        self,
        directory: Path,
        written: Sequence[Written],
        ordering: str = "partition",
        together: bool = False,
        lives: Callable[[int], bool] = runs,
    ) -> None:
        self._directory = directory
        self._written = written
        self._ordering = ordering
        self._together = together
        self._lives = lives
        self._files: dict[Path, _File] = {}
        self._processes: list[_Process] = []
        """By their numbers."""
        self._partitions: dict[tuple[int, int], _Partition] = {}
        self._found = Found()
        self._left: list[Entry] = []
        self.entries = 0
        """Read so far."""

    def begun(self, partition: int, load: int = 0) -> Offsets:
        """Offsets that were begun of what that load wrote, whatever became of them."""
        return self._of(partition, load).begun

    def ended(self, partition: int, load: int = 0) -> Offsets:
        """Offsets that a call has ended with."""
        return self._of(partition, load).ended

    def take(self) -> Found:
        """What happened since the last time, as far as it was read."""
        found, self._found = self._found, Found()
        return found

    def read(self) -> None:
        """Everything that is written by now."""
        # Before files are looked for: all that these have written is there.
        dying = [each for each in self._processes if not each.dead and not self._lives(each.pid)]
        self._look_for_files()
        # A file that is read later may tell of what came after the one read before: that waits for the next time.
        until = now_ns()
        more = True
        while more:
            entries, limits = self._left, [until]
            for file in self._files.values():
                if file.process.dead:
                    continue
                read, has_more = file.more()
                entries += read
                if has_more:
                    limits.append(max(entry[0] for entry in read))
            more = len(limits) > 1
            entries.sort(key=itemgetter(0))
            # Files that are ahead wait for those that are not: what was begun first is to be told first.
            upto = min(limits)
            self._left = [entry for entry in entries if entry[0] > upto]
            self._go_through(entries[: len(entries) - len(self._left)])
        for process in dying:
            self._bury(process)

    def _look_for_files(self) -> None:
        for path in sorted(self._directory.glob(f"*/*{SUFFIX}")):
            if path not in self._files:
                self._files[path] = _File(path, self._writer(path))

    def _writer(self, path: Path) -> _Process:
        member, pid, _ = path.name.removesuffix(SUFFIX).split(".")
        for each in self._processes:
            if (each.member, each.pid, each.dead) == (member, int(pid), False):
                return each
        self._processes.append(_Process(len(self._processes), member, int(pid)))
        return self._processes[-1]

    def _bury(self, process: _Process) -> None:
        """Its calls that did not end never will: they count as their first instant."""
        process.dead = True
        for partition in self._partitions.values():
            for offset in partition.open.pop(process.number, {}):
                partition.beside.pop((process.number, offset), None)

    def _go_through(self, entries: Sequence[Entry]) -> None:
        self.entries += len(entries)
        for at, process, head, offset, key in entries:
            partition = self._of(head & 0xFFFFFFFF, self.load_of(key))
            if head >> 32 == BEGIN:
                self._begin(partition, offset, at, process, key)
            else:
                self._end(partition, offset, at, process)
            partition.last = max(partition.last, at)

    def load_of(self, key: int) -> int:
        """Number of the load that has a key with this CRC-32."""
        if len(self._written) == 1:
            return 0
        known = next((number for number, each in enumerate(self._written) if key in each.marks), None)
        assert known is not None, f"a record was handled that no load has written: the CRC-32 of its key is {key:x}"
        return known

    def _of(self, number: int, load: int) -> _Partition:
        found = self._partitions.get((number, load))
        if found is None:
            found = self._partitions[number, load] = _Partition(number, load, self._written[load].appended)
            # What the first record behind a cut has waited for counts from the last one before it.
            found.last = self._of(number, load - 1).last if load else 0
        return found

    def _begin(self, partition: _Partition, offset: int, at: int, process: int, key: int) -> None:
        if at - partition.last > _NOTICEABLE_NS:
            self._wait(partition, offset, at)
        mine = partition.open.get(process)
        if len(partition.open) > (mine is not None):
            call = self._call(partition, offset, process, at)
            for other, calls in partition.open.items():
                if other != process:
                    for inside in calls:
                        partition.beside.setdefault((other, inside), call)
        new = partition.begun.add(offset)
        if not new:
            self._repeat(partition, offset, at, process)
        if self._ordering != "none":
            self._look_at_order(partition, offset, at, process, key, new)
        partition.open.setdefault(process, {})[offset] = (at, key)
        slices = partition.history
        if not slices or slices[-1].process != process or at - slices[-1].begin > _SLICE_NS:
            slices.append(_Slice(process, at))
        slices[-1].offsets.add(offset)

    def _end(self, partition: _Partition, offset: int, at: int, process: int) -> None:
        partition.ended.add(offset)
        mine = partition.open.get(process, {})
        begin, _ = mine.pop(offset, (at, 0))
        if not mine:
            partition.open.pop(process, None)
        if partition.beside and (begun := partition.beside.pop((process, offset), None)) and begun.begin < at:
            inside = self._call(partition, offset, process, begin, at)
            _keep(self._found.overlaps, Overlap(inside, begun))
        for each in reversed(partition.history):
            if each.process == process and offset in each.offsets:
                each.end = max(each.end or 0, at)
                return

    def _wait(self, partition: _Partition, offset: int, at: int) -> None:
        appended = partition.appended.get(partition.number, ())
        # Begun before its producer heard of it: it cannot have waited.
        there = appended[offset] if offset < len(appended) else at
        wait = at - max(partition.last, there)
        if partition.last and wait > self._found.waits.get(partition.number, 0):
            self._found.waits[partition.number] = wait

    def _repeat(self, partition: _Partition, offset: int, at: int, process: int) -> None:
        self._found.repeated += 1
        again = self._call(partition, offset, process, at)
        for each in reversed(partition.history):
            if offset in each.offsets:
                never_ended = offset in partition.open.get(each.process, {}) or self._died_with(each, offset, partition)
                before = self._call(partition, offset, each.process, each.begin, None if never_ended else each.end)
                # A process that was stopped between looking at the clock and writing tells its call late.
                pair = Repeat(before, again) if each.begin <= at else Repeat(again, before)
                _keep(self._found.repeats, pair)
                return
        _keep(self._found.repeats, Repeat(Call(0, partition.number, offset, 0, "unknown", 0, partition.load), again))

    def _died_with(self, each: _Slice, offset: int, partition: _Partition) -> bool:
        return self._processes[each.process].dead and offset not in partition.ended

    def _look_at_order(self, partition: _Partition, offset: int, at: int, process: int, key: int, new: bool) -> None:
        lane = key if self._ordering == "key" else 0
        name = f"partition {partition.number}, key {lane:x}"
        if new:
            before, then = partition.lanes.get(lane, (-1, 0))
            # A process that was stopped between looking at the clock and writing tells its call late.
            if offset < before and at > then:
                _keep(self._found.disorder, f"{name}: offset {offset} first began after {before}")
            if offset > before:
                partition.lanes[lane] = offset, at
        if self._together:
            return
        for other, (_, its_key) in partition.open.get(process, {}).items():
            if self._ordering == "partition" or its_key == key:
                _keep(self._found.disorder, f"{name}: offsets {other} and {offset} were in hand together")

    def _call(self, partition: _Partition, offset: int, process: int, begin: int, end: int | None = None) -> Call:
        who = self._processes[process]
        return Call(begin, partition.number, offset, end, who.member, who.pid, partition.load)


def _keep(kept: list[T], one: T) -> None:
    if len(kept) < KEPT:
        kept.append(one)
