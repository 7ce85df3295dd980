"""What a reset of offsets would do, partition by partition. Pure; looked at before anything is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from kunicorn.errors import ConfigError
from kunicorn.offsets.standing import Standing
from kunicorn.offsets.targets import FromFile, ShiftBy, Target, ToDatetime, ToEarliest, ToLatest, ToOffset
from kunicorn.tables import table
from kunicorn.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's committed offset, now and then."""

    tp: TopicPartition
    now: int | None
    then: int
    note: str = ""

    @property
    def effect(self) -> str:
        """In records: what would be handled again, or never."""
        if self.now is None or self.now == self.then:
            return "" if self.now is None else "stays"
        records = abs(self.then - self.now)
        return f"{records:,} {'skipped' if self.then > self.now else 'again'}"


def planned(target: Target, standings: Sequence[Standing], found: Mapping[TopicPartition, int]) -> list[Move]:
    """A move for each of `standings`. `found`: the offsets at the time of `ToDatetime`.

    An offset outside of the log is kept within it: a consumer would be reset from there by its policy. Raises
    `ConfigError` where a partition's log is not known.
    """
    moves = []
    for standing in standings:
        if standing.first is None or standing.end is None:
            why = standing.problem or "its leader does not answer"
            raise ConfigError(f"{standing.tp}: {why}; leave it out with --topic, or try again")
        wanted = _wanted(target, standing, found)
        if wanted is None:
            continue
        then = min(max(wanted, standing.first), standing.end)
        note = "" if then == wanted else f"{wanted:,} is not in the log ({standing.first:,} to {standing.end:,})"
        moves.append(Move(standing.tp, standing.committed, then, note))
    return moves


def _wanted(target: Target, standing: Standing, found: Mapping[TopicPartition, int]) -> int | None:
    match target:
        case ToEarliest():
            return standing.first
        case ToLatest():
            return standing.end
        case ToDatetime():
            return found[standing.tp]
        case ToOffset(offset):
            return offset
        case FromFile(offsets):
            return offsets.get(standing.tp)
        case ShiftBy(records):
            if standing.committed is None:
                raise ConfigError(f"{standing.tp} has no committed offset to shift; use --to-earliest or --to-offset")
            return max(0, standing.committed + records)
        case _:
            assert_never(target)


def lines(moves: Sequence[Move]) -> Iterator[str]:
    """For the person who decides."""
    head = ("partition", "committed", "then", "records", "note")
    yield from table(head, [(str(move.tp), move.now, move.then, move.effect, move.note or " ") for move in moves])
    again = sum(max(0, move.now - move.then) for move in moves if move.now is not None)
    skipped = sum(max(0, move.then - move.now) for move in moves if move.now is not None)
    yield f"{len(moves)} partitions: {again:,} offsets would be handled again, {skipped:,} never"
