"""View of the demo: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kunicorn.commands.demo.judge import Line, kept
from kunicorn.commands.demo.member import Member
from kunicorn.observe.status import Status

EVENTS_SHOWN = 14
SUMMARY_SECONDS = 5.0
"""How often a summary line is printed where there is no terminal."""


@dataclass(frozen=True)
class Picture:
    """Content of the view at one instant."""

    elapsed: float
    produced: int
    throughput: float
    """Records handled a second, lately."""
    members: Sequence[Member]

    @property
    def handled(self) -> int:
        """Number of records that the members, living and gone, say they have finished."""
        return sum(worker.handled for member in self.members if member.status for worker in member.status.workers)


class View:
    """Context manager; inside it `happened` and `show` may be called any number of times."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: deque[Text] = deque(maxlen=EVENTS_SHOWN)
        self._began = time.monotonic()
        self._summary_due = self._began + SUMMARY_SECONDS
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._live = self._stack.enter_context(Live(console=self._console, refresh_per_second=8, transient=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._live is not None:
            # The live picture vanishes when it ends; what happened is worth keeping on the screen.
            for event in self._events:
                self._console.print(event)

    def happened(self, what: str) -> None:
        """Report an event that has just happened, or begins now."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim") + Text(what, style="not dim")
        self._events.append(line)
        if self._live is None:
            self._console.print(line, soft_wrap=True)

    def show(self, picture: Picture) -> None:
        """Draw the current state."""
        if self._live is not None:
            self._live.update(Group(_head(picture), *map(_member, picture.members), *self._events))
        elif time.monotonic() >= self._summary_due:
            self._summary_due = time.monotonic() + SUMMARY_SECONDS
            members = "; ".join(_summary(member) for member in picture.members)
            self._console.print(
                f"{picture.elapsed:6.1f} s  produced {picture.produced}, handled {picture.handled}, "
                f"{picture.throughput:.0f} records/s; {members}",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )

    def result(self, lines: Sequence[Line]) -> None:
        """Print the audit's verdict."""
        table = Table(title="the audit", title_justify="left", show_header=False, box=None)
        marks = {True: Text("kept", "green"), False: Text("BROKEN", "bold red"), None: Text("")}
        for line in lines:
            table.add_row(line.name, line.value, marks[line.kept])
        self._console.print(table)
        self._console.print("every promise kept" if kept(lines) else "a promise was BROKEN", style="bold")


def _head(picture: Picture) -> RenderableType:
    return Text(
        f"{picture.elapsed:5.1f} s   produced {picture.produced}   handled {picture.handled}"
        f"   {picture.throughput:.0f} records/s",
        style="bold",
    )


def _member(member: Member) -> RenderableType:
    if member.status is None or not member.alive:
        return Text(_headline(member), style="italic")
    table = Table(title=_headline(member), title_justify="left", box=None, padding=(0, 2))
    for name in ("worker", "pid", "state", "partitions", "handled", "restarts", "in hand"):
        table.add_column(name, justify="right" if name in ("worker", "pid", "handled", "restarts") else "left")
    for worker in member.status.workers:
        numbers = " ".join(str(p.partition) for p in member.status.partitions if p.worker == worker.worker)
        pid = "" if worker.pid is None else str(worker.pid)
        counts = (str(worker.handled), str(worker.restarts))
        table.add_row(str(worker.worker), pid, worker.state, numbers, *counts, worker.in_hand or "")
    return table


def _headline(member: Member) -> str:
    if member.exit_code is not None:
        return f"{member.name}: exited {member.exit_code}"
    if member.status is None:
        return f"{member.name}: starting"
    group = member.status.group
    place = f"{group.state}, generation {group.generation}" if group else "in no group"
    return f"{member.name}: {place}, lag {lag(member.status)}"


def _summary(member: Member) -> str:
    partitions = len(member.status.partitions) if member.status and member.alive else 0
    return f"{_headline(member)}, {partitions} partitions"


def lag(status: Status) -> str:
    """Number of records not handled yet, as far as the member knows the ends of its partitions."""
    known = [partition.lag for partition in status.partitions if partition.lag is not None]
    return str(sum(known)) if known else "unknown"
