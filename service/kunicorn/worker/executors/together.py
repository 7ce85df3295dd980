"""The executor of a handler whose batches have rows of several partitions: each of these ends in its own way.

1. Of each partition the table hands out a run of its own, in hand at the same time as the others. The call has them one
   behind the other, and counts its progress in rows.
2. A call that fails as a whole counts as nobody's try: nobody knows by whose rows. Each partition's next call is its
   own, and that one counts.
3. What has failed before is called alone: else the row of one partition would use up the tries of all the others.
4. Where rows end in their own ways, the call counts once: with the first partition of which some have failed.
5. A call that is ended from outside, by a time-out or for a partition that goes, is ended for all of them.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat, takewhile
from typing import Any

from kunicorn.handler.call import Calls, Decided, OfFirst, OfSome, OfUncalled
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.load import DrainDeadline, Handler
from kunicorn.handler.outcome import BatchError, Outcome
from kunicorn.handler.retry import describe
from kunicorn.handler.rows import following_offsets, joined, value_bytes
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.worker.executors.inline import Call, InlineExecutor
from kunicorn.worker.progress import InFlight, OffsetTracker

log = logging.getLogger("kunicorn.worker")

_LOG_EVERY_NS = NANOSECONDS
_NAMED = 5
"""So many partitions of a call are named in the log."""
MOST_BYTES = 2**30
"""Of values in one batch where the settings name no number: columns have offsets of 32 bits."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one partition's rows of a call have ended."""

    done: int
    """Number of leading rows."""
    some: OfSome | None = None
    """How those behind them end; None: they come again."""
    ahead: frozenset[int] = frozenset()
    """Offsets that are done behind these, where nobody says how they end."""


def by_rows(handler: Handler) -> Handler:
    """The handler, of which a `BatchError` that names offsets is refused: those of several partitions are alike."""
    handle = handler.call

    def refused(returned: object) -> object:
        if isinstance(returned, BatchError) and returned.names_offsets:
            raise ValueError(
                "BatchError names offsets, and with batch_across_partitions = true a batch has those of several "
                "partitions; say it by the number of rows that are done, or by masks"
            ) from returned
        return returned

    def call(batch: Any) -> object:
        try:
            return refused(handle(batch))
        except BatchError as error:
            refused(error)
            raise

    async def call_async(batch: Any) -> object:
        try:
            return refused(await handle(batch))
        except BatchError as error:
            refused(error)
            raise

    return replace(handler, call=call_async if handler.is_async else call)


class TogetherExecutor(InlineExecutor):
    """Caller of a handler in the loop's own thread, with rows of all partitions that have some."""

    def __init__(self, calls: Calls, cells: memoryview) -> None:
        super().__init__(calls, cells)
        self._apart: set[OffsetTracker] = set()
        """Partitions that failed together, and have not been called alone since."""
        self._logged_at = 0

    def _handle(self, flight: InFlight) -> None:
        flights = [flight, *self._beside(flight)]
        if len(flights) == 1:
            self._apart.discard(flight.tracker)
            super()._handle(flight)
            return
        self.calls += 1
        messages = joined([each.messages for each in flights])
        cells = memoryview(array("q", [0]))
        started = now_ns()
        error = self._call(Call(flights, messages, range(1, len(messages) + 1), cells, 0))
        took = now_ns() - started
        self._tell_if_uncalled(cells[0], error)
        said = error
        if isinstance(error, OfFirst) or (isinstance(error, OfSome) and self._interruption is not None):
            said = error.error  # It failed as a whole, or was ended from outside: nobody knows in whose rows.
        if said is not None and _is_nobodys(said):
            self._fail_together(flights, said, took)
            return
        share, ends = took // len(flights), list(_ends(flights, cells[0], error))
        failed = [each for each, ended in zip(flights, ends, strict=True) if ended.some is not None]
        # For each partition, a circuit breaker would take a single call for an outage. A row behind those that the call
        # had, and has done, has failed without it.
        counted = [flight, *failed] if isinstance(error, OfUncalled) else failed[:1] or [flight]
        for each, ended in zip(flights, ends, strict=True):
            self._settle(each, ended, share, calls=int(each in counted))

    def _beside(self, first: InFlight) -> Iterator[InFlight]:
        """Runs of other partitions for the same call."""
        bounds = self._slots.bounds
        assert bounds is not None
        self._apart = {tracker for tracker in self._apart if not tracker.closed}
        if self._apart or first.stays_as_it_is or first.poison:
            return
        most = bounds.bytes or MOST_BYTES
        records, nbytes = bounds.records - len(first.messages), most - value_bytes([first.messages])
        while records > 0 and nbytes > 0:
            if (flight := self._table.start_beside(self._slots, records, nbytes)) is None:
                return
            yield flight
            records, nbytes = records - len(flight.messages), nbytes - value_bytes([flight.messages])

    def _fail_together(self, flights: Sequence[InFlight], error: BaseException, took: int) -> None:
        self._apart.update(flight.tracker for flight in flights)
        self._table.failed_together(flights, error, took)
        if (now := now_ns()) - self._logged_at >= _LOG_EVERY_NS:
            self._logged_at = now
            partitions = ", ".join(str(flight.tp) for flight in flights[:_NAMED])
            more = "" if len(flights) <= _NAMED else f" and {len(flights) - _NAMED} more"
            log.warning(
                f"the handler failed on a batch of {len(flights)} partitions ({partitions}{more}), and is called with "
                f"each alone: {describe(error)}"
            )

    def _settle(self, flight: InFlight, ended: Ended, took: int, calls: int) -> None:
        if ended.done:
            self._cells[flight.tracker.cell] = following_offsets(flight.messages)[ended.done - 1]
        if ended.some is None:
            self._table.returned(flight, ended.done, took, calls, ended.ahead)
        elif (failed := self._table.failed(flight, ended.done, took, ended.some)) is not None:
            self._loop.fail(failed, ended.some.error, calls)


def _is_nobodys(error: BaseException) -> bool:
    """Whether the call has failed, and neither the handler nor what decodes its rows says what becomes of them."""
    return not isinstance(error, OfSome | Outcome | DrainDeadline | NotDecodableYet)


def _ends(flights: Sequence[InFlight], done: int, error: BaseException | None) -> Iterator[Ended]:
    """How each one's rows have ended in a call that has handled so many rows, and raised this. Pure."""
    if error is None or isinstance(error, DrainDeadline):
        some = OfSome(DrainDeadline(), count=0)
    elif isinstance(error, OfSome):
        some = error
    else:
        some = OfSome(error, count=sum(len(each.messages) for each in flights) - done)
    named = chain.from_iterable(repeat(each.error, each.records) for each in some.groups)
    called = done + some.undone + len(some.ahead)
    first = 0
    for flight in flights:
        rows = range(first, first + len(flight.messages))
        undone = [row for row in rows if row >= done and row not in some.ahead]
        ended = _end(flight, first, undone, [next(named, None) for _ in undone])
        if ended.some is not None:
            ended.some.undone = max(ended.some.count, sum(row < called for row in undone))
        yield ended
        first = rows.stop


def _end(flight: InFlight, first: int, undone: Sequence[int], errors: Sequence[BaseException | None]) -> Ended:
    """`first`: the number of its first row in the call. `errors`: of the rows that are not done."""
    if not undone:
        return Ended(len(flight.messages))
    done = undone[0] - first
    offsets = [after - 1 for after in following_offsets(flight.messages)[done:]]
    ahead = frozenset(offsets).difference(offsets[row - undone[0]] for row in undone)
    said = [error for error in takewhile(lambda each: each is not None, errors) if error is not None]
    groups = [Decided(error, len(list(each))) for error, each in groupby(said)]
    if not groups:
        return Ended(done, ahead=ahead)
    (error, count), *behind = groups
    return Ended(done, OfSome(error, ahead, count, behind))
