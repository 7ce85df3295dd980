"""The handlers of a story's worker, as settings name them: each asks the story what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from kunicorn import Batch, Record


class Told(Protocol):
    """What one call is to do; raises what the handler raises."""

    def begin(self, records: Sequence[Any]) -> Any:
        """A call begins."""

    def work(self, call: Any) -> Any:
        """What a plain one does until it returns; that."""

    async def work_async(self, call: Any) -> Any:
        """Likewise for one that is `async def`."""

    def yielded(self, call: Any) -> Iterator[Any]:
        """What one yields that does."""


class _Stage:
    story: Told


STAGE = _Stage()


def record(record: Record) -> Any:
    """One record."""
    call = STAGE.story.begin([record])
    return STAGE.story.work(call)


def yielding(record: Record) -> Iterator[Any]:
    """One record, whose outputs are yielded."""
    call = STAGE.story.begin([record])
    return (yield from STAGE.story.yielded(call))


async def record_async(record: Record) -> Any:
    """One record."""
    call = STAGE.story.begin([record])
    return await STAGE.story.work_async(call)


async def yielding_async(record: Record) -> AsyncIterator[Any]:
    """One record, whose outputs are yielded."""
    call = STAGE.story.begin([record])
    for each in (await STAGE.story.work_async(call)) or ():
        yield each


def batch(records: Batch) -> Any:
    """Several."""
    call = STAGE.story.begin(list(records))
    return STAGE.story.work(call)


async def batch_async(records: Batch) -> Any:
    """Several."""
    call = STAGE.story.begin(list(records))
    return await STAGE.story.work_async(call)


def arrow(records: Batch) -> Any:
    """Several, of which it reads Arrow's columns."""
    assert records.to_arrow().column("offset").to_pylist() == records.offsets()
    call = STAGE.story.begin(list(records))
    return STAGE.story.work(call)
