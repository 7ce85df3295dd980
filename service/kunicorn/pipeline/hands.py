"""What the handler has in hand, in a file that outlives its process: one for each try of a range.

1. A task that is tried again finds the files of the tries before it. One whose process is gone while records were in
   hand tells of a death, if it died by itself: the daemon that forks Spark's Python processes lives on, or is on
   another machine. Where the daemon went along, the driver or the executor was killed, and no record is to blame.
2. The file is mapped memory: noting a record costs what it costs a worker, and what is noted survives SIGKILL. So it is
   on a file system: below the outcomes, or where these are in an object store in this machine's temporary directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import socket
import tempfile
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kunicorn.pipeline.ranges import OffsetRange
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.suspects import Hand

NEXT, STOP, STATE = 0, 1, 2
"""Cells: the next offset to handle, the end of the batch in hand (`ONE` for a single record), one of these states:"""
ONE = -1
_PID, _PID_BORN, _DAEMON, _DAEMON_BORN, _HOST = 3, 4, 5, 6, 7
_CELLS = 8
IDLE, IN_HAND, DIED = 0, 1, 2
"""Nothing is in hand; the handler has a record; its process is known to have died by itself."""
_PREFIX, _SUFFIX = "_hand-", ".cells"


@dataclass(slots=True)
class InHand:
    """One try of a range. Caller: the task's main thread."""

    cells: memoryview
    died_with: list[Hand]
    """What earlier tries died with."""
    _files: Path
    """The directory of all tries of this range."""
    _range: OffsetRange

    def over(self) -> None:
        """The range is through: nothing of its tries is of interest any more."""
        self.cells.release()
        for path in _tries(self._files, self._range):
            path.unlink(missing_ok=True)


def take_up(whole: OffsetRange, outcomes: Directory) -> InHand:
    """Begin a try. Raises `OSError` where its file cannot be made."""
    files = _place(outcomes) / whole.topic / str(whole.partition)
    files.mkdir(parents=True, exist_ok=True)
    died_with = [hand for path in _tries(files, whole) if (hand := _judged(path)) is not None]
    path = files / f"{_stem(whole)}{uuid.uuid4().hex}{_SUFFIX}"
    path.write_bytes(bytes(8 * _CELLS))
    cells = _mapped(path)
    cells[NEXT] = whole.start
    cells[_PID], cells[_PID_BORN] = os.getpid(), _born(os.getpid())
    cells[_DAEMON], cells[_DAEMON_BORN] = os.getppid(), _born(os.getppid())
    cells[_HOST] = _host()
    return InHand(cells, died_with, files, whole)


def died_in_hand(outcomes: Directory) -> list[str]:
    """Which records processes have died with, as `topic-partition@offset`. Caller: the driver, after a failed round."""
    found = set()
    for path in _place(outcomes).glob(f"*/*/{_PREFIX}*{_SUFFIX}"):
        with _opened(path) as cells:
            if cells[STATE] == DIED or (cells[STATE] == IN_HAND and not _lives(cells, _PID)):
                found.add((path.parent.parent.name, int(path.parent.name), cells[NEXT]))
    return [f"{topic}-{partition}@{offset}" for topic, partition, offset in sorted(found)]


def noted_so_far(outcomes: Directory, ranges: Collection[OffsetRange]) -> int:
    """How many offsets of these ranges their tries have behind them, where this machine sees their files. Reads files.

    Caller: the driver, while tasks run.
    """
    furthest: dict[OffsetRange, int] = {}
    for path in _place(outcomes).glob(f"*/*/{_PREFIX}*{_SUFFIX}"):
        start, stop = map(int, path.name.removeprefix(_PREFIX).split("-")[:2])
        whole = OffsetRange(path.parent.parent.name, int(path.parent.name), start, stop)
        if whole in ranges:
            with _opened(path) as cells:
                furthest[whole] = max(furthest.get(whole, 0), min(cells[NEXT], stop) - start)
    return sum(furthest.values())


def _judged(path: Path) -> Hand | None:
    """What the try of this file died with, if it did; the file of one that cannot tell is removed."""
    with _opened(path) as cells:
        if cells[STATE] == IN_HAND and not _lives(cells, _PID) and _lives(cells, _DAEMON):
            # From now on it does not matter what becomes of the daemon.
            cells[STATE] = DIED
        if cells[STATE] == DIED:
            return Hand(cells[NEXT], cells[NEXT] + 1 if cells[STOP] == ONE else cells[STOP])
        if not _lives(cells, _PID):
            path.unlink(missing_ok=True)
    return None


def _lives(cells: memoryview, who: int) -> bool:
    """Whether this process of the try is there. Of another machine's: the daemon is, the process is not."""
    if cells[_HOST] != _host():
        return who == _DAEMON
    return cells[who] != 0 and _born(cells[who]) == cells[who + 1]


def _born(pid: int) -> int:
    """When the process began, in clock ticks since the machine did (proc(5), `starttime`); −1 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in {"Z", "X"} else int(fields[19])


def _host() -> int:
    """This machine, since it was started; a container counts as one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return int.from_bytes(hashlib.sha256((socket.gethostname() + boot).encode()).digest()[:7])


def _place(outcomes: Directory) -> Path:
    if outcomes.is_local:
        return Path(outcomes.url)
    name = hashlib.sha256(outcomes.url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kunicorn-pipeline-{os.getuid()}" / name


def _stem(whole: OffsetRange) -> str:
    return f"{_PREFIX}{whole.start:020}-{whole.stop:020}-"


def _tries(files: Path, whole: OffsetRange) -> list[Path]:
    return sorted(files.glob(f"{_stem(whole)}*{_SUFFIX}"))


def _mapped(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8 * _CELLS)).cast("q")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    """The file's cells; all zero for one that another task has removed, or is about to fill, meanwhile."""
    try:
        cells = _mapped(path)
    except (OSError, ValueError):
        cells = memoryview(bytearray(8 * _CELLS)).cast("q")
    try:
        yield cells
    finally:
        cells.release()
