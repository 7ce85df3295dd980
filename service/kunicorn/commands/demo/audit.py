"""Audit log of handler calls, and handlers that only write it; for the demo and for tests.

Every call appends two entries for each of its records, one when it begins and one when it ends, to a file that only its
process writes: `<directory>/<topic>/<member>.<pid>.<start>.audit`. The kernel keeps what `write()` has taken, whatever
happens to the process afterwards, SIGKILL included; nothing is flushed to the disk, which guards against other deaths.

The handlers read their settings from the environment: `KUNICORN_AUDIT_DIR` (required), `KUNICORN_AUDIT_MEMBER` (whose
worker it is, default "member"), `KUNICORN_HANDLER_MS` (a call takes 0 to so many milliseconds at random, default 0).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import zlib
from array import array
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from kunicorn.ipc.clock import CLOCK

WORDS = 4
"""int64 words of an entry: kind and partition, offset, CRC-32 of the key, time. 32 bytes divide a page, and a
write cut short by SIGKILL is cut between pages: entries are whole or absent."""
SUFFIX = ".audit"


class Kind(IntEnum):
    """Begin or end of a record's call."""

    BEGIN = 1
    END = 2


class AuditedRecord(Protocol):
    """Fields of a record that the audit reads."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...


class Entry(NamedTuple):
    """One entry as read back. `time_ns` is the same clock in every process of the machine, and goes on where
    `kunicorn.testing` has the worker's stand still."""

    kind: int
    partition: int
    offset: int
    key: int
    time_ns: int


class AuditLog:
    """Writer of one process's audit files; a fork gets files of its own.

    Caller: a handler, in the worker. Each call is one `write()` a topic, a few microseconds.
    """

    def __init__(self, directory: Path, member: str) -> None:
        """Opens nothing yet: the template process that imports a handler must own no files of its workers."""
        if "." in member or "/" in member:
            raise ValueError(f"the member's tag {member!r} becomes part of a file name and may hold neither . nor /")
        self._directory = directory
        self._member = member
        self._pid = 0
        self._files: dict[str, int] = {}
        self._opening = threading.Lock()

    def begin(self, records: Sequence[AuditedRecord]) -> None:
        """Note that the handler has these records in hand."""
        self._append(Kind.BEGIN, records)

    def end(self, records: Sequence[AuditedRecord]) -> None:
        """Note that the handler is done with these records."""
        self._append(Kind.END, records)

    def _append(self, kind: Kind, records: Sequence[AuditedRecord]) -> None:
        at = time.clock_gettime_ns(CLOCK)
        words: dict[str, array[int]] = {}
        for record in records:
            entry = (kind << 32 | record.partition, record.offset, zlib.crc32(record.key or b""), at)
            words.setdefault(record.topic, array("q")).extend(entry)
        for topic, entries in words.items():
            os.write(self._file(topic), entries.tobytes())

    def _file(self, topic: str) -> int:
        # A call's begin and end are looked for in one file: two of a handler's threads must not open one each.
        with self._opening:
            return self._opened(topic)

    def _opened(self, topic: str) -> int:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._files = {}
        if topic not in self._files:
            path = self._directory / topic / f"{self._member}.{self._pid}.{time.clock_gettime_ns(CLOCK)}{SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[topic] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        return self._files[topic]


class AuditFile(NamedTuple):
    """One process's entries about one topic, in the order it wrote them."""

    topic: str
    member: str
    pid: int
    words: array[int]

    @classmethod
    def read(cls, path: Path) -> AuditFile:
        """Raises `ValueError` where the file is not a whole number of entries."""
        member, pid, _ = path.name.removesuffix(SUFFIX).split(".")
        words = array("q")
        body = path.read_bytes()
        if len(body) % (WORDS * words.itemsize):
            raise ValueError(f"{path} ends within an entry: something else has written to it")
        words.frombytes(body)
        return cls(path.parent.name, member, int(pid), words)

    def entries(self) -> list[Entry]:
        """Entries as objects, for people; the judge works on the words."""
        at = range(0, len(self.words), WORDS)
        return [Entry(self.words[i] >> 32, self.words[i] & 0xFFFFFFFF, *self.words[i + 1 : i + WORDS]) for i in at]


def read_audit(directory: Path) -> list[AuditFile]:
    """All files under `directory`; none where nothing was handled yet."""
    return [AuditFile.read(path) for path in sorted(directory.glob(f"*/*{SUFFIX}"))]


@cache
def _audit() -> AuditLog:
    """The process's log. Threads that come first together may each get one of their own: a call keeps the one it began
    with.
    """
    return AuditLog(Path(os.environ["KUNICORN_AUDIT_DIR"]), os.environ.get("KUNICORN_AUDIT_MEMBER", "member"))


@cache
def _most_seconds() -> float:
    return float(os.environ.get("KUNICORN_HANDLER_MS", "0")) / 1000


def handle(record: AuditedRecord) -> None:
    """Handle one record."""
    handle_batch([record])


def handle_batch(records: Sequence[AuditedRecord]) -> None:
    """Handle a batch; it takes as long as one record."""
    audit = _audit()
    audit.begin(records)
    if longest := _most_seconds():
        time.sleep(random.uniform(0, longest))
    audit.end(records)


async def handle_async(record: AuditedRecord) -> None:
    """Handle one record as a coroutine."""
    audit = _audit()
    audit.begin([record])
    await asyncio.sleep(random.uniform(0, _most_seconds()))
    audit.end([record])
