"""The handlers of a story's worker, as settings name them: each asks the story what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kunicorn import Batch, Record
from kunicorn.positions import TopicPartition


@dataclass
class Legible:
    """A value that can be decoded."""

    number: int


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

    def decoded(self, value: bytes) -> bytes:
        """What a value holds; raises what a decoder raises."""

    def stored_offsets(self, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where these go on, by what one has stored that keeps its offsets."""


class _Stage:
    story: Told


STAGE = _Stage()


def decoded(value: bytes) -> bytes:
    """What a value holds."""
    return STAGE.story.decoded(value)


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
    returned = await STAGE.story.work_async(call)
    if isinstance(returned, Exception):
        raise returned  # An asynchronous generator returns nothing.
    for each in returned or ():
        yield each


def batch(records: Batch) -> Any:
    """Several."""
    call = STAGE.story.begin(list(records))
    return STAGE.story.work(call)


async def batch_async(records: Batch) -> Any:
    """Several."""
    call = STAGE.story.begin(list(records))
    return await STAGE.story.work_async(call)


def yielding_batch(records: Batch) -> Iterator[Any]:
    """Several, whose outputs are yielded."""
    call = STAGE.story.begin(list(records))
    return (yield from STAGE.story.yielded(call))


def arrow(records: Batch) -> Any:
    """Several, of which it reads Arrow's columns."""
    assert records.to_arrow().column("offset").to_pylist() == records.offsets()
    call = STAGE.story.begin(list(records))
    return STAGE.story.work(call)


class Row(NamedTuple):
    """Where one of a batch's columns is from."""

    topic: str
    partition: int
    offset: int


def columns(batch: Any) -> Any:
    """Several, of any number of partitions."""
    places = (batch.column(name).to_pylist() for name in Row._fields)
    call = STAGE.story.begin([Row(*place) for place in zip(*places, strict=True)])
    return STAGE.story.work(call)


class _Keeping:
    """Its offsets are stored beside its effects."""

    def load_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return STAGE.story.stored_offsets(partitions)


class KeepingRecord(_Keeping):
    def handle(self, each: Record) -> Any:
        return record(each)


class KeepingRecordAsync(_Keeping):
    async def handle(self, each: Record) -> Any:
        return await record_async(each)


class KeepingBatch(_Keeping):
    def handle(self, records: Batch) -> Any:
        return batch(records)


class KeepingBatchAsync(_Keeping):
    async def handle(self, records: Batch) -> Any:
        return await batch_async(records)


KEEPING = {
    "record": KeepingRecord.__name__,
    "record_async": KeepingRecordAsync.__name__,
    "batch": KeepingBatch.__name__,
    "batch_async": KeepingBatchAsync.__name__,
}
"""By the entry of the one that does the same, and keeps no offsets."""
