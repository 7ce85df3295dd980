"""How far a run is: what it covers, what is handled, which round is underway. Pure; kept in the run's manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kunicorn.pipeline.bounds import as_json, from_json
from kunicorn.pipeline.ranges import OffsetRange, Offsets, cut, first_of_each, next_round, total
from kunicorn.pipeline.tasks import Summary
from kunicorn.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Counts:
    """Records by what became of them."""

    records: int = 0
    """Taken by the handler."""
    skipped: int = 0
    dead_letters: int = 0

    def plus(self, summaries: Iterable[Summary]) -> Counts:
        """With those of a round."""
        every = list(summaries)
        return Counts(*(getattr(self, f.name) + sum(getattr(each, f.name) for each in every) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class RunState:
    """One run. Every method returns another state."""

    ranges: Sequence[OffsetRange]
    """All that the run covers."""
    positions: Offsets = field(default_factory=dict)
    """The next offset to handle, for partitions that have moved."""
    halted: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Why partitions halt."""
    underway: Sequence[OffsetRange] = ()
    """The tasks of the round that was begun. After a crash the same ones run again, whatever the settings say then, so
    that files are replaced."""
    rounds: int = 0
    counts: Counts = Counts()
    seconds: float = 0.0
    """Time that rounds took."""
    last_offsets: int = 0
    last_seconds: float = 0.0
    """Of the last round."""
    last_busy: float = 0.0
    """Seconds of it that tasks were at work, for the size of the next: not Spark's start."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Ids of the topics that the offsets are of, as far as they are known."""

    @property
    def left(self) -> list[OffsetRange]:
        """What is still to be handled; nothing of partitions that halt."""
        rest = (each._replace(start=self.positions.get(each.tp, each.start)) for each in self.ranges)
        return [each for each in rest if each.size > 0 and each.tp not in self.halted]

    @property
    def finished(self) -> bool:
        """Everything is handled."""
        return not self.left and not self.halted

    @property
    def done(self) -> int:
        """Offsets that are handled."""
        return sum(self.positions.get(each.tp, each.start) - each.start for each in self.ranges)

    @property
    def rate(self) -> float | None:
        """Offsets a second over all rounds; None before the first."""
        return self.done / self.seconds if self.done and self.seconds else None

    def next_size(self, wanted_seconds: float, limit: int | None) -> int:
        """Offsets of a round that takes so long at the rate of the last one."""
        return next_round(len(self.left), self.last_offsets, self.last_busy, wanted_seconds, limit)

    def begin(self, size: int, pieces: int | None = None) -> RunState:
        """With the next round underway, cut into tasks; the one that a crash has cut off, if there is one."""
        return self if self.underway else replace(self, underway=tuple(cut(first_of_each(self.left, size), pieces)))

    def end(self, summaries: Sequence[Summary], seconds: float) -> RunState:
        """With the round underway done, which took so long."""
        positions, halted = dict(self.positions), dict(self.halted)
        for each in sorted(summaries, key=lambda summary: summary.range):
            # Of a partition that was cut, pieces behind one that halts do not count: they are handled again.
            if each.range.tp not in halted:
                positions[each.range.tp] = each.until
                if each.halted is not None:
                    halted[each.range.tp] = each.halted
        return replace(
            self,
            positions=positions,
            halted=halted,
            underway=(),
            rounds=self.rounds + 1,
            counts=self.counts.plus(summaries),
            seconds=self.seconds + seconds,
            last_offsets=total(self.underway),
            last_seconds=seconds,
            last_busy=min(seconds, sum(each.seconds for each in summaries)),
        )

    def released(self) -> RunState:
        """For another try: the partitions that halt begin with the record they halt at."""
        return replace(self, halted={})

    def as_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "ranges": [list(each) for each in self.ranges],
            "positions": as_json(self.positions),
            "halted": [[*tp, why] for tp, why in sorted(self.halted.items())],
            "underway": [list(each) for each in self.underway],
            "rounds": self.rounds,
            "records": self.counts.records,
            "skipped": self.counts.skipped,
            "dead_letters": self.counts.dead_letters,
            "seconds": round(self.seconds, 3),
            "last_offsets": self.last_offsets,
            "last_seconds": round(self.last_seconds, 3),
            "last_busy": round(self.last_busy, 3),
            "topics": dict(self.topics),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> RunState:
        """The reverse. Raises `KeyError`, `TypeError`, `ValueError` for what is none."""
        return cls(
            ranges=tuple(OffsetRange(*each) for each in told["ranges"]),
            positions=from_json(told["positions"]),
            halted={TopicPartition(topic, number): why for topic, number, why in told["halted"]},
            underway=tuple(OffsetRange(*each) for each in told["underway"]),
            rounds=told["rounds"],
            counts=Counts(told["records"], told["skipped"], told["dead_letters"]),
            seconds=told["seconds"],
            last_offsets=told["last_offsets"],
            last_seconds=told["last_seconds"],
            last_busy=told["last_busy"],
            topics=told["topics"],
        )
