"""The wall clock of one member steps: `stepped_clock.c` is preloaded into all members of a leg, and a file says by how
much each is ahead. Leases and deadlines do not go by it, so that nothing may come of it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from kunicorn.ipc.clock import NANOSECONDS
from tests.chaos.faults import Hurt
from tests.chaos.group import Group, last_for, now
from tests.system import procfs

AHEAD = 45 * 60
"""Seconds. Longer than anything that the service waits for but a refresh of credentials, and within the hour by which a
record may be ahead of its broker (`message.timestamp.after.max.ms`), as outputs bear the member's time."""
LASTS = 15.0
"""Seconds for which it is ahead; then it steps back, and is watched for as long."""
COMPILER = shutil.which("cc")
_SOURCE = Path(__file__).with_name("stepped_clock.c")
_SHARED = struct.Struct("@ll")
"""`struct shared` of the source: nanoseconds ahead, and how often a clock was read that was."""


def unavailable() -> str:
    """Why no clock can be stepped here; empty if one can."""
    return "" if COMPILER else "there is no C compiler (cc)"


def environment(directory: Path) -> Mapping[str, str]:
    """Of members whose clocks are the directory's files, by their names."""
    assert COMPILER
    directory.mkdir(parents=True, exist_ok=True)
    library = directory.with_suffix(".so")
    command = [COMPILER, "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return {"LD_PRELOAD": str(library), "STEPPED_CLOCKS": str(directory)}


def step(clock: Path, seconds: float) -> None:
    """Have it be ahead by so much, from now on."""
    with clock.open("r+b") as file:
        file.write(struct.pack("@l", int(seconds * NANOSECONDS)))


def reads(clock: Path) -> int:
    """How often it was read while it was ahead."""
    _, count = _SHARED.unpack(clock.read_bytes())
    return int(count)


def directory_of(place: Path) -> Path:
    """The clocks of the group of that directory, beside it."""
    return place.with_name("clocks")


def step_clock(group: Group) -> Hurt:
    """Of a member's supervisor, template and workers; ahead, and back."""
    victim = group.any_member()
    clock = directory_of(group.directory) / victim.name
    strangers = [each.pid for each in procfs.living_in_session(victim.pid) if not _goes_by(each.pid, clock)]
    assert not strangers, f"processes of {victim.name} that do not go by {clock}: {strangers}"
    hurt = Hurt(now(), victim=victim.name)
    for ahead in (AHEAD, 0):
        step(clock, ahead)
        last_for(LASTS)
    return hurt


def complaints(group: Group, hurt: Hurt) -> Iterator[str]:
    """Of the group that is whole again."""
    if not reads(directory_of(group.directory) / hurt.victim):
        yield f"nobody of {hurt.victim} has read the clock that was ahead: this was no fault"


def _goes_by(pid: int, clock: Path) -> bool:
    return os.fspath(clock) in Path(f"/proc/{pid}/maps").read_text()
