"""Batches of which one record failed: what counts as done, and what the failure is. Pure but for the ledger's cell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from confluent_kafka import Message

from kunicorn.handlers import DrainDeadline, HandlerTimeout, error_message
from kunicorn.outcomes import BatchError


class OfOne(Exception):
    """The record behind those that are finished has failed, and it alone. Never leaves the machinery."""

    def __init__(self, error: BaseException, ahead: Collection[int] = ()) -> None:
        super().__init__(error_message(error))
        self.error = error
        self.ahead = ahead
        """Offsets behind it that are done."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a batch came."""

    done: int
    """So many of the first records."""
    ahead: frozenset[int] = frozenset()
    """Offsets that are done beyond the first one that is not."""


def standing_of(error: BatchError, offsets: Sequence[int]) -> Standing:
    """What the handler said. Raises `ValueError` where it makes no sense, as then nothing of it is to be believed."""
    if error.failed is not None:
        return _before(error.failed, offsets)
    if isinstance(error.done, int):
        if not 0 <= error.done <= len(offsets):
            raise ValueError(f"BatchError(done={error.done}) of a batch of {len(offsets)} records")
        return Standing(error.done)
    if strange := error.done.difference(offsets):
        raise ValueError(_foreign(min(strange), offsets))
    first = next((at for at, offset in enumerate(offsets) if offset not in error.done), len(offsets))
    return Standing(first, error.done.difference(offsets[:first]))


def _before(failed: int, offsets: Sequence[int]) -> Standing:
    if failed not in offsets:
        raise ValueError(_foreign(failed, offsets))
    return Standing(offsets.index(failed))


def _foreign(offset: int, offsets: Sequence[int]) -> str:
    return f"BatchError names offset {offset}, which is not in the batch {offsets[0]}-{offsets[-1]}"


def settle(
    error: BatchError, messages: Sequence[Message], following: Sequence[int], cells: memoryview, at: int
) -> None:
    """Store what is done, and raise what is left of the failure; returns where nothing is.

    What the handler met counts as the record's failure where it raised `BatchError` because of that, so that rules by
    exception and outcomes hold for it.
    """
    standing = standing_of(error, [after - 1 for after in following[: len(messages)]])
    if standing.done:
        cells[at] = following[standing.done - 1]
    if standing.done == len(messages):
        return
    met = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if isinstance(met, DrainDeadline | HandlerTimeout):
        raise met  # Not one record's failure: the call was ended from outside.
    raise OfOne(met or error, standing.ahead)


def fitting(messages: Sequence[Message], most_bytes: int | None) -> int:
    """How many of the first ones have at most so many bytes of values together; at least one."""
    if most_bytes is None:
        return len(messages)
    return max(1, bisect_left(list(accumulate(map(len, messages))), most_bytes + 1))
