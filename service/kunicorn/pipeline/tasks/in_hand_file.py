"""Records in hand of a task's handler, kept in a file beyond its process, and the poison records found by it.

1. A task that is tried again finds the files of the tries before it. One whose process is gone while records were in
   hand tells of a death, if it died by itself: the daemon that forks Spark's Python processes lives on. Where the
   daemon went along, the driver or the executor was killed, and no record is to blame. Of a try on another machine
   nobody can tell: it counts as a death if Spark has tried its task again since, as a note in a store does.
2. The file is mapped memory: noting a record costs what it costs a worker, and what is noted survives SIGKILL. So it is
   on a file system: below the outcomes, or where these are in an object store in this machine's temporary directory.
   There a range that is tried again is also noted in the store (`in_hand_notes`), for tries on other machines.
3. A record that was in hand alone, and in hand at `max_crashes` deaths in all, is kept from the handler, as in the live
   service.
4. Of a batch nobody knows which record it was: once it has died `max_crashes` times its records are handled one at a
   time, and the next death names one.

It is neither the ledger (`kunicorn.ipc.ledger`) nor the service's `poison`: no supervisor outlives the process here. A
try has one range and no grants, its memory has a name that later tries find, and nobody saw how the process died: a try
judges those before it by what it finds of their processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import socket
import tempfile
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from kunicorn.errors import ConfigError
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import following_offsets
from kunicorn.linux import stat_fields
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.in_hand_notes import TRIES, Hand, InHandNotes, begin_notes, noted_deaths
from kunicorn.positions import OffsetRange

_WELL_TOGETHER = 1000
"""Rows become objects all at once when they are looked at: more of them would fall out of the processor's cache."""


class Piece(NamedTuple):
    """Records for one call; or, with `deaths`, a poison record, which no handler gets."""

    messages: Run
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Suspects:
    """Records that earlier tries of a range died with."""

    hands: Sequence[Hand] = ()
    max_crashes: int = 2

    def pieces(self, messages: Run, begin: int, most: int | None) -> Iterator[Piece]:
        """The messages cut into calls of at most `most` records (None: as many as go well together), suspects apart.

        `begin`: where the records before these ended, so that a hand in a gap is not seen twice.
        """
        if not self.hands:
            yield from _cut(messages, most)
            return
        deaths, alone = self._deaths(messages, begin)
        plain = 0
        for at in (at for at in range(len(messages)) if deaths[at] >= self.max_crashes):
            yield from _cut(messages[plain:at], most)
            plain = at + 1
            yield Piece(messages[at:plain], deaths[at] if at in alone else 0)
        yield from _cut(messages[plain:], most)

    def _deaths(self, messages: Run, begin: int) -> tuple[Counter[int], set[int]]:
        """Number of deaths by index in `messages`, and the indices that were in hand alone."""
        following = following_offsets(messages)
        deaths, alone = Counter[int](), set[int]()
        for hand in self.hands:
            first = bisect_right(following, hand.start)
            last = bisect_right(following, hand.stop)
            if hand.start >= begin:
                last = min(max(last, first + 1), len(following))
            deaths.update(range(first, last))
            if hand.stop - hand.start == 1 and first < last:
                alone.add(first)
        return deaths, alone


def _cut(messages: Run, most: int | None) -> Iterator[Piece]:
    most = most or _WELL_TOGETHER
    yield from (Piece(messages[at : at + most]) for at in range(0, len(messages), most))


NEXT, STOP, STATE = 0, 1, 2
"""Cells: the next offset to handle, the end of the batch in hand (`ONE` for a single record), one of these states:"""
ONE = -1
_PID, _PID_BORN, _DAEMON, _DAEMON_BORN, _HOST, _ATTEMPT = 3, 4, 5, 6, 7, 8
_CELLS, _CELLS_WITHOUT_ATTEMPT = 9, 8
"""The latter is what earlier versions wrote; such a try counts as Spark's first."""
IDLE, IN_HAND, DIED = 0, 1, 2
"""Nothing is in hand; the handler has a record; its process is known to have died by itself."""
_PREFIX, _SUFFIX = "_hand-", ".cells"


@dataclass(slots=True)
class InHand:
    """File of one try of a range. As a context it removes the files of all tries if it ends well, and its own if the
    try fails: the process lives. Caller: the task's main thread.
    """

    cells: memoryview
    died_with: Sequence[Hand]
    """Records in hand when earlier tries died."""
    notes: InHandNotes | None
    """Beyond this machine; None: the file is where all machines see it, or the range is begun for the first time."""
    _file: Path
    """Beside those of the range's other tries."""
    _range: OffsetRange

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.over()
        else:
            self._withdraw()

    def _withdraw(self) -> None:
        # Spark ends a process whose task has failed, with what other threads have in hand: the next try would take that
        # for a death. They may go on writing into the map.
        self._file.unlink(missing_ok=True)
        if self.notes is not None:
            self.notes.withdraw()

    def over(self) -> None:
        """Remove the files of all tries: the range is done."""
        self.cells.release()
        for path in _tries(self._file.parent, self._range):
            path.unlink(missing_ok=True)
        if self.notes is not None:
            self.notes.over()

    def noted(self, fetched: Iterator[Run]) -> Iterator[Run]:
        """The records, each noted before whoever takes them one after the other has it."""
        if self.notes is None:
            return fetched
        return (piece for run in filter(len, fetched) for piece in self.notes.cut(run))


def take_up(
    whole: OffsetRange,
    outcomes: Directory,
    *,
    attempt: int = 0,
    again: bool = False,
    may_have_died: bool = False,
) -> InHand:
    """Begin a try. `attempt`: how often Spark has tried the task before. `again`: whether the range may have been begun
    by another run. `may_have_died`: whether tries before may have died; this one is noted only if they have. Raises
    `OSError` where its file cannot be made, `ConfigError` where the store does not answer or its place is not ours.
    """
    files = _place(outcomes) / whole.topic / str(whole.partition)
    files.mkdir(parents=True, exist_ok=True)
    verdicts = {_name_of(path): _judged(path, attempt) for path in _tries(files, whole)}
    path = files / f"{_stem(whole)}{uuid.uuid4().hex}{_SUFFIX}"
    path.write_bytes(bytes(8 * _CELLS))
    cells = _mapped(path)
    cells[NEXT] = whole.start
    cells[_PID], cells[_PID_BORN] = os.getpid(), _born(os.getpid())
    cells[_DAEMON], cells[_DAEMON_BORN] = os.getppid(), _born(os.getppid())
    cells[_HOST], cells[_ATTEMPT] = _host(), attempt
    died_with = [hand for hand in verdicts.values() if hand is not None]
    if outcomes.is_local or not (again or attempt or may_have_died):
        return InHand(cells, died_with, None, path, whole)
    notes = begin_notes(outcomes, whole, _name_of(path), attempt, verdicts)
    if not (again or attempt or notes.died_with):
        return InHand(cells, died_with, None, path, whole)
    return InHand(cells, notes.died_with, notes, path, whole)


def _name_of(path: Path) -> str:
    """Name of the note of the try that has this file."""
    return f"{path.name.removesuffix(_SUFFIX).rpartition('-')[2]}.json"


def died_in_hand(outcomes: Directory, tries: int = TRIES, given_up: Collection[OffsetRange] | None = None) -> list[str]:
    """Records that processes have died with, as `topic-partition@offset`. Caller: the driver, after Spark gave up.
    `tries`: how many a task has. `given_up`: ranges of which Spark has given up a task, as far as that is known: last
    tries of others may be well. Reads and marks files. Raises `ConfigError`.
    """
    found = set[tuple[str, int, Hand]]()
    for path in _place(outcomes).glob(f"*/*/{_PREFIX}*{_SUFFIX}"):
        whole = _range_of(path)
        with _opened(path) as cells:
            # No try of this job comes behind it that could tell; the next run's could not.
            last = cells[_ATTEMPT] >= tries - 1 and (given_up is None or whole in given_up)
            died = _died_by_itself(cells, 0) if _is_here(cells) else last
            if cells[STATE] == IN_HAND and died:
                cells[STATE] = DIED
            if cells[STATE] == DIED or (cells[STATE] == IN_HAND and _is_here(cells) and not _lives(cells, _PID)):
                found.add((*whole.tp, Hand(cells[NEXT], cells[NEXT] + 1)))
    if not outcomes.is_local:
        found.update(noted_deaths(outcomes, tries, given_up))
    return [f"{topic}-{partition}@{_shown(hand)}" for topic, partition, hand in sorted(found)]


def _range_of(path: Path) -> OffsetRange:
    """The range of a try's file."""
    start, stop = map(int, path.name.removeprefix(_PREFIX).split("-")[:2])
    return OffsetRange(path.parent.parent.name, int(path.parent.name), start, stop)


def _shown(hand: Hand) -> str:
    return str(hand.start) if hand.stop - hand.start == 1 else f"{hand.start}…{hand.stop - 1}"


def noted_so_far(outcomes: Directory, ranges: Collection[OffsetRange]) -> int:
    """Number of offsets of these ranges that their tries have handled, where this machine sees their files. Reads
    files.

    Caller: the driver, while tasks run.
    """
    furthest: dict[OffsetRange, int] = {}
    # Of these partitions alone: a run has made a directory for each that it has had.
    directories = {_place(outcomes) / each.topic / str(each.partition) for each in ranges}
    for path in (path for files in directories for path in files.glob(f"{_PREFIX}*{_SUFFIX}")):
        if (whole := _range_of(path)) in ranges:
            with _opened(path) as cells:
                furthest[whole] = max(furthest.get(whole, 0), min(cells[NEXT], whole.stop) - whole.start)
    return sum(furthest.values())


def _judged(path: Path, attempt: int) -> Hand | None:
    """Records that the try of this file died with, if it died; the file of a try that cannot tell is removed.
    `attempt`: that of the try that begins.
    """
    with _opened(path) as cells:
        if cells[STATE] == IN_HAND and _died_by_itself(cells, attempt):
            # From now on it does not matter what becomes of the daemon, or which run goes on.
            cells[STATE] = DIED
        if cells[STATE] == DIED:
            return Hand(cells[NEXT], cells[NEXT] + 1 if cells[STOP] == ONE else cells[STOP])
        if not _lives(cells, _PID):
            path.unlink(missing_ok=True)
    return None


def _died_by_itself(cells: memoryview, attempt: int) -> bool:
    """Whether the process of that try died, and its executor did not. On another machine no process can be seen: a try
    that Spark has not tried again since went with its driver.
    """
    if not _is_here(cells):
        return attempt > cells[_ATTEMPT]
    return not _lives(cells, _PID) and _lives(cells, _DAEMON)


def _is_here(cells: memoryview) -> bool:
    """Whether the try ran on this machine."""
    return cells[_HOST] == _host()


def _lives(cells: memoryview, who: int) -> bool:
    """Whether this process of the try is alive, as far as this machine sees it."""
    return _is_here(cells) and cells[who] != 0 and _born(cells[who]) == cells[who + 1]


def _born(pid: int) -> int:
    """Start time of the process, in clock ticks since the machine's (proc(5), `starttime`); −1 if it is gone."""
    try:
        fields = stat_fields(str(pid))
    except OSError:
        return -1
    return -1 if fields[0] in {"Z", "X"} else int(fields[19])


def _host() -> int:
    """Number for this machine since its start; a container counts as one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return int.from_bytes(hashlib.sha256((socket.gethostname() + boot).encode()).digest()[:7])


def _place(outcomes: Directory) -> Path:
    """Where the files are. Raises `ConfigError` where it is not this user's own."""
    if outcomes.is_local:
        return Path(outcomes.url)
    name = hashlib.sha256(outcomes.url.encode()).hexdigest()[:16]
    return _own_temporary() / name


def _own_temporary() -> Path:
    place = Path(tempfile.gettempdir()) / f"kunicorn-pipeline-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    # Anybody may make a directory there first: files in it could have records kept from the handler.
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise ConfigError(
            f"{place} is another user's, and records in hand are noted there: have it removed, or set TMPDIR to a "
            f"directory of your own"
        )
    return place


def _stem(whole: OffsetRange) -> str:
    return f"{_PREFIX}{whole.start:020}-{whole.stop:020}-"


def _tries(files: Path, whole: OffsetRange) -> list[Path]:
    return sorted(files.glob(f"{_stem(whole)}*{_SUFFIX}"))


def _mapped(path: Path) -> memoryview:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size == 8 * _CELLS_WITHOUT_ATTEMPT:
            file.truncate(8 * _CELLS)
        return memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    """Cells of the file; all zero for one that another task has removed, or is about to fill, meanwhile."""
    try:
        cells = _mapped(path)
    except (OSError, ValueError):
        cells = memoryview(bytearray(8 * _CELLS)).cast("q")
    try:
        yield cells
    finally:
        cells.release()
