"""Records that were fetched and whose turn is over: kept in hand, by partition, until the next one. Everything here is
the runner's.

A turn is bounded by time, so that whatever else is due does not wait for a whole batch. What is left of it is never
fetched again: it goes on behind partitions that have had no turn yet.
1. What is left counts as nothing: a partition that is stopped is reported at once, and what was left of it is dropped.
   Its consumed offset does not follow the client's position meanwhile (`Grant.left_over`).
2. A partition's records stay in order: what is fetched of it meanwhile comes behind what is left of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kunicorn.topics import TopicPartition
from kunicorn.worker.batches import Run
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.grants import Grant


@dataclass(slots=True)
class _Left:
    grant: Grant
    assignments: int
    """How many the grant had by then."""
    runs: deque[Run] = field(default_factory=deque)


class LeftOver:
    """Caller: the runner, for everything."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.records = 0
        """About so many are kept: those of partitions that have ended count until their turn."""
        self._fetcher = fetcher
        self._left: dict[TopicPartition, _Left] = {}
        """The next one first."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def keep(self, runs: Iterable[Run]) -> None:
        """These are not begun: behind what is left of their partitions, and behind the other partitions."""
        for run in runs:
            left = self._left.get(run.tp)
            if left is not None and not self._counts(left):
                self._drop(run.tp)
                left = None
            if left is None:
                if (grant := self._fetcher.fetching(run.tp)) is None:
                    continue
                grant.left_over = True
                left = self._left[run.tp] = _Left(grant, grant.assignments)
            left.runs.append(run)
            self.records += len(run.messages)

    def arrived(self, runs: Iterable[Run]) -> None:
        """These were fetched: partitions of which nothing was left come first."""
        before, self._left = self._left, {}
        behind: list[Run] = []
        for run in runs:
            if run.tp in before:
                behind.append(run)
            else:
                self.keep([run])
        self._left |= before
        self.keep(behind)

    def runs(self) -> Iterator[Run]:
        """What is left, by partition. Handle each before asking for the next; `put_back` what is not."""
        for tp in list(self._left):
            while (left := self._left.get(tp)) is not None:
                if not self._counts(left):
                    self._drop(tp)
                    break
                run = left.runs.popleft()
                self.records -= len(run.messages)
                if not left.runs:
                    self._drop(tp)
                yield run

    def rotate(self, tp: TopicPartition) -> None:
        """It has had its turn."""
        if (left := self._left.pop(tp, None)) is not None:
            self._left[tp] = left

    def put_back(self, run: Run) -> None:
        """The time is over within that run, of which this is left."""
        left = self._left.get(run.tp)
        if left is not None and self._counts(left):
            left.runs.appendleft(run)
            self.records += len(run.messages)
        else:
            self.keep([run])

    def _counts(self, left: _Left) -> bool:
        """Whether its partition goes on with it: it has the same grant still, and was not assigned again since."""
        grant = left.grant
        return self._fetcher.fetching(grant.tp) is grant and left.assignments == grant.assignments

    def _drop(self, tp: TopicPartition) -> None:
        left = self._left.pop(tp)
        left.grant.left_over = False
        self.records -= sum(len(run.messages) for run in left.runs)
