"""What came of a job, for people or with `--json` for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from kunicorn.errors import ExitCode
from kunicorn.pipeline.bounds import as_json
from kunicorn.pipeline.progress import Say, duration
from kunicorn.pipeline.ranges import total
from kunicorn.pipeline.state import Counts, RunState


class Finished(Protocol):
    """A job that has ended without an error; something may be left of it."""

    @property
    def code(self) -> ExitCode:
        """What the command exits with."""

    def lines(self) -> Iterator[str]:
        """For people."""

    def as_json(self) -> dict[str, object]:
        """For programs."""


def tell(finished: Finished, say: Say, *, for_program: bool) -> None:
    """All of it; for a program as one JSON object on one line, like the plan of a `--dry-run`."""
    for line in [json.dumps(finished.as_json())] if for_program else finished.lines():
        say(line)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Of a job over ranges. Counts are the whole run's, over all the times it was gone on with."""

    job: str
    run: str | None
    """Its id; None where none was begun, and for an export, which belongs to its target."""
    state: RunState
    go_on: str = ""
    """How to, where something is left: a command, or words."""
    notes: Sequence[str] = ()
    """What else there is to know, in sentences."""

    @property
    def code(self) -> ExitCode:
        """See `Finished`."""
        return ExitCode.CLEAN if self.state.finished else ExitCode.NOT_ALL_COMMITTED

    def lines(self) -> Iterator[str]:
        """See `Finished`."""
        state = self.state
        if state.rounds:
            yield from _counted(state)
        if left := total(state.left):
            yield f"left          {left:,} offsets"
        for tp, why in sorted(state.halted.items()):
            yield f"halted        {tp} at {state.positions[tp]}: {why}"
        if state.halted:
            yield "halted partitions go on with the record they halt at, once its cause is put right"
        if not state.finished:
            yield f"to go on: {self.go_on}"
        yield from self.notes

    def as_json(self) -> dict[str, object]:
        """See `Finished`."""
        state = self.state
        return {
            "job": self.job,
            "run": self.run,
            "exit_code": self.code.value,
            "finished": state.finished,
            **asdict(state.counts),
            "rounds": state.rounds,
            "seconds": round(state.seconds, 3),
            "offsets_per_second": state.rate,
            "offsets_left": total(state.left),
            "positions": as_json(state.positions),
            "halted": [
                {**tp._asdict(), "offset": state.positions[tp], "why": why} for tp, why in sorted(state.halted.items())
            ],
            "go_on": None if state.finished else self.go_on,
            "notes": list(self.notes),
        }


def _counted(state: RunState) -> Iterator[str]:
    pace = f", {state.rate:,.0f} offsets/s" if state.rate else ""
    yield f"handled       {state.counts.records:,} records in {state.rounds} rounds, {duration(state.seconds)}{pace}"
    yield f"dead letters  {state.counts.dead_letters:,}"
    yield f"skipped       {state.counts.skipped:,}"


@dataclass(frozen=True, slots=True)
class FinishedStream:
    """Of a stream, since it was last started: its checkpoint has no counts."""

    run: str
    counts: Counts
    batches: int
    """Micro-batches that were handled."""

    @property
    def code(self) -> ExitCode:
        """See `Finished`. What halts or kills a stream is an error and never comes here."""
        return ExitCode.CLEAN

    def lines(self) -> Iterator[str]:
        """See `Finished`."""
        letters, skipped = self.counts.dead_letters, self.counts.skipped
        yield f"handled       {self.counts.records:,} records, {letters:,} dead letters, {skipped:,} skipped"

    def as_json(self) -> dict[str, object]:
        """See `Finished`."""
        told = {"job": "stream", "run": self.run, "exit_code": self.code.value}
        return {**told, **asdict(self.counts), "micro_batches": self.batches}
