"""Records that were fetched and whose turn is over: kept in hand, by partition, until the next one. Everything here is
the runner's.

A turn is bounded by time, so that whatever else is due does not wait for a whole batch. What is left of it is never
fetched again: it goes on behind partitions that have had no turn yet.
1. What is left counts as nothing: a partition that is stopped is reported at once, and what was left of it is dropped.
   Its consumed offset does not follow the client's position meanwhile (`Grant.left_over`).
2. A partition's records stay in order: what is fetched of it meanwhile comes behind what is left of it, and an error
   that ends it behind both.
3. Whichever partition has waited longest for its turn is the next one; before those that wait alike comes what has just
   arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Message

from kunicorn.topics import TopicPartition
from kunicorn.worker.batches import Run, kept_bytes
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.grants import Grant


@dataclass(slots=True)
class _Left:
    grant: Grant
    assignments: int
    """How many the grant had by then."""
    runs: deque[Run] = field(default_factory=deque)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    grant: Grant
    assignments: int
    error: Message


class LeftOver:
    """Caller: the runner, for everything."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.bytes = 0
        """About so much is kept: what is left of partitions that have ended counts until their turn."""
        self._fetcher = fetcher
        self._left: dict[TopicPartition, _Left] = {}
        """What has just arrived first."""
        self._served: dict[TopicPartition, int] = {}
        """When it last had a turn, in turns; the others have had none since something was left over."""
        self._turns = 0
        self._ends: dict[TopicPartition, _End] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def partitions(self) -> Iterable[TopicPartition]:
        """Of which something is left."""
        return self._left.keys()

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
            self._count(left, kept_bytes(run.messages))

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
        for tp in sorted(self._left, key=lambda tp: self._served.get(tp, 0)):
            while (left := self._left.get(tp)) is not None:
                if not self._counts(left):
                    self._drop(tp)
                    break
                run = left.runs.popleft()
                self._count(left, -kept_bytes(run.messages))
                if not left.runs:
                    self._drop(tp)
                yield run

    def served(self, tp: TopicPartition) -> None:
        """It has had its turn, which is over."""
        self._turns += 1
        self._served[tp] = self._turns

    def put_back(self, run: Run) -> None:
        """The time is over within that run, of which this is left."""
        left = self._left.get(run.tp)
        if left is not None and self._counts(left):
            left.runs.appendleft(run)
            self._count(left, kept_bytes(run.messages))
        else:
            self.keep([run])

    # -- errors in place of records --------------------------------------------------------------------------------

    @property
    def errors(self) -> bool:
        """Whether some are to be met."""
        return bool(self._ends)

    def end(self, tp: TopicPartition, error: Message) -> None:
        """The client gave that out, behind what is left of the partition. The first one counts: librdkafka reads on
        within a damaged batch, and what it says of that names nothing that is there."""
        if (grant := self._fetcher.fetching(tp)) is not None and not self.ends(tp):
            self._ends[tp] = _End(grant, grant.assignments, error)

    def ends(self, tp: TopicPartition) -> bool:
        """Whether an error is to be met there, which nothing may pass."""
        end = self._ends.get(tp)
        return end is not None and self._counts(end)

    def ending(self) -> list[TopicPartition]:
        """Where an error is next: nothing is left before it."""
        for tp in [tp for tp, end in self._ends.items() if not self._counts(end)]:
            # It is assigned again, and would meet the error again, if it is still there.
            del self._ends[tp]
        return [tp for tp in self._ends if tp not in self._left]

    def take_error(self, tp: TopicPartition) -> Message:
        """It is met now."""
        return self._ends.pop(tp).error

    # -- internals -------------------------------------------------------------------------------------------------

    def _counts(self, left: _Left | _End) -> bool:
        return self._fetcher.goes_on_behind(left.grant, left.assignments)

    def _drop(self, tp: TopicPartition) -> None:
        left = self._left.pop(tp)
        if not self._left:
            self._served.clear()
        left.grant.left_over = False
        self.bytes -= left.bytes

    def _count(self, left: _Left, more: int) -> None:
        left.bytes += more
        self.bytes += more
