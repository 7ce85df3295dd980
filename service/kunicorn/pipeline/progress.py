"""What a person sees of a job underway. Pure but for `Bar`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kunicorn.pipeline.ranges import total
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.underway import Tasks

Say = Callable[[str], None]
_MINUTE, _HOUR = 60, 3600
_SELDOM = 30.0
"""Seconds between two lines about a round that takes long."""


def round_line(before: RunState, after: RunState, all_offsets: int) -> str:
    """One round, for a log."""
    line = f"round {after.rounds}: {after.last_offsets:,} offsets in {after.last_seconds:.1f} s"
    left = all_offsets - after.done
    rate = after.last_offsets / max(after.last_seconds, 0.001)
    line += f" ({rate:,.0f}/s), " + (f"{left:,} left, about {duration(left / rate)}" if left else "none left")
    failures = (after.counts.dead_letters - before.counts.dead_letters, after.counts.skipped - before.counts.skipped)
    return line + "".join(f", {n:,} {what}" for n, what in zip(failures, ("dead letters", "skipped"), strict=True) if n)


def duration(seconds: float) -> str:
    """For people: 0.4 s, 34 s, 12 min, 3 h 20 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


class Bar:
    """A bar on a terminal; elsewhere a line a round."""

    def __init__(self, state: RunState, say: Say) -> None:
        self._say = say
        self._state = state
        self._whole = total(state.ranges)
        self._round_began = time.monotonic()
        self._silent_until = self._round_began + _SELDOM
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("offsets"),
                TextColumn("{task.fields[rate]}"), TimeRemainingColumn(elapsed_when_finished=True),
            )  # fmt: skip
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("handling", total=self._whole, completed=state.done, rate="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def underway(self, tasks: Tasks) -> None:
        """How far the round is. Caller: the thread that watches it."""
        if not tasks.all:
            return
        told = f"{tasks.done} of {tasks.all} tasks done" + (f", {tasks.failed} failed tries" if tasks.failed else "")
        if self._bar is not None:
            self._bar.update(self._task, description=told)
            if tasks.offsets:
                rate = tasks.offsets / max(time.monotonic() - self._round_began, 0.001)
                done = self._state.done + tasks.offsets
                self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SELDOM
            self._say(f"round {self._state.rounds + 1} underway: {tasks.offsets:,} offsets, {told}")

    def moved(self, state: RunState) -> None:
        """A round has ended."""
        if self._bar is None:
            self._say(round_line(self._state, state, self._whole))
        else:
            rate = f"{state.rate:,.0f}/s" if state.rate else ""
            self._bar.update(self._task, completed=state.done, rate=rate, description="handling")
        self._state = state
        self._round_began = time.monotonic()
        self._silent_until = self._round_began + _SELDOM
