"""Caller of one handler: what its three kinds, in `inline`, `threads` and `tasks`, have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from kunicorn.handler.call import OfSome
from kunicorn.worker.progress import InFlight, Interrupts, Slots

Returned = Callable[[InFlight, Any], None]
"""What is done with what the handler returned for a record. Raises the outcome that it may be, and `NotToBeSent`."""


class Poisoned(Exception):
    """Failure of a record that killed workers and is kept from the handler."""


class Executor(Protocol):
    """Caller of one handler. Called by the loop, unless said otherwise."""

    def begin(self, table: Supply, slots: Slots, loop: Told) -> None:
        """Begin to call the handler with the table's records for these slots."""

    def wake(self) -> None:
        """Look for a record to start."""

    def interrupt(self, flight: InFlight, error: BaseException, offset: int) -> None:
        """Raise `error` in the handler's call with those records, if it still runs; where it goes through several, if
        it is at that offset. Caller: any thread."""

    def interrupt_hook(self, error: BaseException) -> None:
        """Raise `error` in the running hook. Caller: a signal handler."""

    def calling(self) -> tuple[InFlight, int] | None:
        """Records in whose call the current thread or task is, and the offset that it is at. Caller: any thread. Looks
        through all running calls."""

    def run(self, returned: Any) -> Any:
        """See `kunicorn.handler.call.Hooked`."""

    def close(self) -> None:
        """End the threads. Caller: when nothing is in hand and nothing will be."""


class Told(Protocol):
    """What executors tell the loop. Caller: any of their threads."""

    def fail(self, flight: InFlight, error: BaseException, calls: int = 1) -> None:
        """Note a failure. `calls`: 0 where its call counts with records of another partition, which had failed too."""

    def finished(self) -> None:
        """Note that a record is finished."""


class Supply(Protocol):
    """The table of partitions, as executors see it; `partitions.Partitions` explains the methods."""

    interrupts: Interrupts

    @property
    def full(self) -> bool: ...
    def start_next(self, slots: Slots) -> InFlight | None: ...
    def start_beside(self, slots: Slots, records: int, nbytes: int) -> InFlight | None: ...
    def startable(self, slots: Slots) -> bool: ...
    def opens_in(self, slots: Slots) -> float | None: ...
    def finish(self, flight: InFlight) -> InFlight | None: ...
    def returned(
        self, flight: InFlight, finished: int, nanoseconds: int, calls: int, ahead: Collection[int] = ()
    ) -> None: ...
    def failed(self, flight: InFlight, finished: int, took_ns: int, some: OfSome) -> InFlight | None: ...
    def failed_together(self, flights: Sequence[InFlight], error: BaseException, took_ns: int) -> None: ...
