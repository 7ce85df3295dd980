"""What a job would do, for `--dry-run`: for people, or with `--json` for programs. Pure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kunicorn.pipeline.progress import Say, duration
from kunicorn.pipeline.ranges import OffsetRange, skew, total

_SHOWN = 50


@dataclass(frozen=True, slots=True)
class DryRun:
    """What is known before a job begins. Every job has one."""

    ranges: Sequence[OffsetRange]
    pace: float | None
    """Offsets a second of an earlier run of the kind; None if there is none."""
    notes: Sequence[str] = ()
    """What else there is to know, in sentences."""

    @property
    def seconds(self) -> float | None:
        """How long it will take, by the pace."""
        return None if self.pace is None else total(self.ranges) / self.pace

    def tell(self, say: Say, *, as_json: bool) -> None:
        """All of it; as JSON on one line, so that a log's other lines are easily told from it."""
        if as_json:
            say(json.dumps(self.as_json()))
            return
        for line in self.lines():
            say(line)

    def as_json(self) -> dict[str, object]:
        """Every range, however many; offsets, as how many records they hold only reading would tell."""
        return {
            "ranges": [{**each._asdict(), "offsets": each.size} for each in self.ranges],
            "offsets": total(self.ranges),
            "offsets_per_second": self.pace,
            "estimated_seconds": self.seconds,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The first ranges, and what they come to."""
        ranges = self.ranges
        width = max([len(str(each.tp)) for each in ranges[:_SHOWN]], default=0)
        for each in ranges[:_SHOWN]:
            yield f"{each.tp!s:<{width}}  {each.start:>14,} to {each.stop:>14,}  {each.size:>14,} offsets"
        if len(ranges) > _SHOWN:
            yield f"and {len(ranges) - _SHOWN} more partitions"
        whole = total(ranges)
        yield f"{len(ranges)} partitions, {whole:,} offsets (compacted and transactional topics have fewer records)"
        if len(ranges) > 1 and (uneven := skew(ranges)) >= 2:
            median = statistics.median_low([each.size for each in ranges])
            yield f"the largest partition is {uneven:.1f} times the median ({median:,}) and will be the last to finish"
        if self.seconds is None:
            yield "estimated time: unknown, as no earlier run of this kind is in pipeline.directory"
        else:
            yield f"estimated time: {duration(self.seconds)} at the last run's {self.pace:,.0f} offsets/s"
        yield from self.notes
