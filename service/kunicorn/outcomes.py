"""What a handler may say of its record in place of returning nothing: return one of these, or raise it.

    def handle_order(record):
        order = orjson.loads(record.value)
        if order["total"] < 0:
            return DeadLetter("a negative total")

`None` means `Done`, and so does any other value that is none of these. In batch mode the word is for the whole batch,
but for `BatchError`, which tells the records that are done from the one that is not.
They are exceptions so that code deep inside a handler can say them, too; a handler's own `except Exception` catches
them like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol


class Outcome(Exception):
    """What is to become of the record; one of those below."""

    reason = ""


class Done(Outcome):
    """It is handled: as if the handler had returned nothing."""


class _WithReason(Outcome):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(_WithReason):
    """It is passed over: logged and counted, no more."""


class DeadLetter(_WithReason):
    """It goes to the dead-letter topic now, without another try. Needs `[dead_letters]`."""


class Halt(_WithReason):
    """Its partition halts before it until a person acts; the others go on."""


class Retry(_WithReason):
    """Try it again, `after` so long where given, else after the usual wait. Counts as a failed try."""

    def __init__(self, reason: str = "", after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _Placed(Protocol):
    @property
    def offset(self) -> int: ...


class BatchError(Exception):
    """Some of the batch is done, and one record has failed:

        for number, record in enumerate(batch):
            try:
                insert(record)
            except DatabaseError as error:
                raise BatchError(done=number) from error

    What is done is not handled again, the record that failed is tried again alone, by the rules for the exception that
    this one was raised from, and the others come in a batch again. An outcome will do, too: `from DeadLetter("why")`.

    `done`: how many of the first records, or the offsets (or records) that are done, in any order. `failed`: the record
    that failed, or its offset, where all before it are done. Name one of the two. Raises `ValueError` for both.
    """

    done: int | frozenset[int]

    def __init__(
        self,
        reason: str = "",
        *,
        done: int | Iterable[int | _Placed] | None = None,
        failed: int | _Placed | None = None,
    ) -> None:
        super().__init__(reason)
        if (done is None) == (failed is None):
            raise ValueError("BatchError takes either what is done, or the record that failed")
        self.failed = None if failed is None else _offset(failed)
        self.done = done if isinstance(done, int) else frozenset(map(_offset, done or ()))


def _offset(place: int | _Placed) -> int:
    return place if isinstance(place, int) else place.offset


def heed(returned: object) -> None:
    """Raise what a handler returned if it is an outcome other than `Done`; a mere value is no word of the handler's."""
    if isinstance(returned, Outcome) and not isinstance(returned, Done):
        # One that the handler keeps and returns again and again must not collect tracebacks.
        raise returned.with_traceback(None)
