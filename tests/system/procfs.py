"""What the kernel knows about processes: `/proc`, read as tests need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessInfo:
    """One process at one instant; `proc(5)` explains the fields."""

    pid: int
    name: str
    state: str
    """R, S, D, T; Z for one that is dead and that nobody has waited for."""
    parent: int
    group: int
    session: int
    started: int
    """By the machine's clock, in ticks."""


def info(pid: int) -> ProcessInfo | None:
    """The process, or nothing if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold blanks and parentheses; the last parenthesis ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    numbers = map(int, (fields[1], fields[2], fields[3], fields[19]))
    return ProcessInfo(pid, head.partition("(")[2], fields[0], *numbers)


def command_line(pid: int) -> str:
    """Its words, with blanks between them; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def running(text: str, program: str = "", session: int | None = None) -> list[ProcessInfo]:
    """Processes with this in their command lines, the youngest last. `program`: only those whose first word ends so;
    `session`: only its own."""
    asked = (process for process in processes() if session in (None, process.session))
    lines = ((process, command_line(process.pid)) for process in asked)
    found = [process for process, line in lines if text in line and line.partition(" ")[0].endswith(program)]
    return sorted(found, key=lambda process: process.started)


def processes() -> Iterator[ProcessInfo]:
    """Every process there is."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := info(int(entry))) is not None:
            yield found


def children(pid: int) -> list[ProcessInfo]:
    """Its children, dead ones that nobody has waited for included."""
    return [process for process in processes() if process.parent == pid]


def descendants(pid: int) -> list[ProcessInfo]:
    """Children, their children, and so on."""
    found = children(pid)
    return [*found, *(process for child in found for process in descendants(child.pid))]


def in_session(session: int) -> list[ProcessInfo]:
    """Everything that was started from the session's leader and made no session of its own."""
    return [process for process in processes() if process.session == session]


def living_in_session(session: int) -> list[ProcessInfo]:
    """The same without the dead, who wait for whoever has adopted them."""
    return [process for process in in_session(session) if process.state != "Z"]


def zombies_of(pid: int) -> list[ProcessInfo]:
    """Its dead children that it has not waited for."""
    return [child for child in children(pid) if child.state == "Z"]


def descriptors(pid: int) -> list[str]:
    """What its open descriptors refer to: `socket:[123]`, `/memfd:name (deleted)`, `anon_inode:[pidfd]`, a path."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Its resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
