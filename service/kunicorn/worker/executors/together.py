"""The executor of a handler whose batches have rows of several partitions: each of these ends in its own way.

1. Of each partition the table hands out a run of its own, in hand at the same time as the others. The call has them one
   behind the other, and counts its progress in rows.
2. What has failed before is called alone: else the row of one partition would use up the tries of all the others.
3. A call that is ended from outside, by a time-out or for a partition that goes, is ended for all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat, takewhile
from typing import Any

from kunicorn.handler.call import Decided, OfSome
from kunicorn.handler.load import DrainDeadline, Handler
from kunicorn.handler.outcome import BatchError
from kunicorn.handler.rows import following_offsets, joined, value_bytes
from kunicorn.ipc.clock import now_ns
from kunicorn.worker.executors.inline import Call, InlineExecutor
from kunicorn.worker.progress import InFlight

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

    def _handle(self, flight: InFlight) -> None:
        flights = [flight, *self._beside(flight)]
        if len(flights) == 1:
            super()._handle(flight)
            return
        self.calls += 1
        messages = joined([each.messages for each in flights])
        cells = memoryview(array("q", [0]))
        started = now_ns()
        error = self._call(Call(flights, messages, range(1, len(messages) + 1), cells, 0))
        share = (now_ns() - started) // len(flights)
        for each, ended in zip(flights, _ends(flights, cells[0], error), strict=True):
            self._settle(each, ended, share, calls=int(each is flight))

    def _beside(self, first: InFlight) -> Iterator[InFlight]:
        """Runs of other partitions for the same call."""
        bounds = self._slots.bounds
        assert bounds is not None
        if first.stays_as_it_is or first.poison:
            return
        most = bounds.bytes or MOST_BYTES
        records, nbytes = bounds.records - len(first.messages), most - value_bytes([first.messages])
        while records > 0 and nbytes > 0:
            if (flight := self._table.start_beside(self._slots, records, nbytes)) is None:
                return
            yield flight
            records, nbytes = records - len(flight.messages), nbytes - value_bytes([flight.messages])

    def _settle(self, flight: InFlight, ended: Ended, took: int, calls: int) -> None:
        if ended.done:
            self._cells[flight.tracker.cell] = following_offsets(flight.messages)[ended.done - 1]
        if ended.some is None:
            self._table.returned(flight, ended.done, took, calls, ended.ahead)
        elif (failed := self._table.failed(flight, ended.done, took, ended.some)) is not None:
            self._loop.fail(failed, ended.some.error)


def _ends(flights: Sequence[InFlight], done: int, error: BaseException | None) -> Iterator[Ended]:
    """How each one's rows have ended in a call that has handled so many rows, and raised this. Pure."""
    if error is None or isinstance(error, DrainDeadline):
        some = OfSome(DrainDeadline(), count=0)
    elif isinstance(error, OfSome):
        some = error
    else:
        some = OfSome(error, count=sum(len(each.messages) for each in flights) - done)
    named = chain.from_iterable(repeat(each.error, each.records) for each in some.groups)
    first = 0
    for flight in flights:
        rows = range(first, first + len(flight.messages))
        undone = [row for row in rows if row >= done and row not in some.ahead]
        yield _end(flight, first, undone, [next(named, None) for _ in undone])
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
