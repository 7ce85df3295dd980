"""What the runner counts and the control thread reports: handler calls by topic and duration."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from kunicorn.handling.retry import End
from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.messages import DURATION_BUCKETS, Deltas

_BOUNDS_NS = tuple(round(bound * NANOSECONDS) for bound in DURATION_BUCKETS)


@dataclass(slots=True)
class _Counts:
    records: int = 0
    failures: int = 0
    retries: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    retried_later: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    timed_out: int = 0
    nanoseconds: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))


class Meter:
    """Counters since the last report. Not locked: every caller holds the fetcher's lock."""

    def __init__(self) -> None:
        self.handled = 0
        """Records finished since the worker's start."""
        self._topics: dict[str, _Counts] = {}

    def finished(self, topic: str, records: int, nanoseconds: int, calls: int) -> None:
        """`records` were handled by `calls` of the handler in `nanoseconds`; the calls count as equally long.

        A chunk's records share one reading of the clock: slow records come in chunks of one, so only the durations of
        fast ones are an average.
        """
        counts = self._of(topic)
        counts.records += records
        counts.nanoseconds += nanoseconds
        if calls:
            counts.buckets[bisect_left(_BOUNDS_NS, nanoseconds // calls)] += calls
        self.handled += records

    def failed(self, topic: str, *, retried: bool) -> None:
        """The handler raised; `retried`: it will be asked again."""
        counts = self._of(topic)
        counts.failures += 1
        counts.retries += retried

    def timed_out(self, topic: str, calls: int) -> None:
        """So many calls were overdue besides the one that the supervisor has counted."""
        self._of(topic).timed_out += calls

    def passed_over(self, topic: str, records: int, end: End, label: str | None) -> None:
        """The records are done with, without the handler having returned. `label` is that of the counter of such ends:
        what led there, or a retry topic's delay; None: they are counted already."""
        if label is None:
            return
        counts = self._of(topic)
        if end is End.DEAD_LETTER:
            counts.dead_letters[label] += records
        if end is End.RETRY_TOPIC:
            counts.retried_later[label] += records
        counts.skipped += records if end is End.SKIP else 0
        if end is End.DONE:
            counts.records += records
            self.handled += records

    def _of(self, topic: str) -> _Counts:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = _Counts()
        return counts

    def take(self) -> list[Deltas]:
        """The changes since the last call."""
        topics, self._topics = self._topics, {}
        return [
            Deltas(
                topic,
                c.records,
                c.failures,
                c.retries,
                c.nanoseconds / NANOSECONDS,
                c.buckets,
                dict(c.dead_letters),
                c.skipped,
                dict(c.retried_later),
                c.timed_out,
            )
            for topic, c in topics.items()
        ]
