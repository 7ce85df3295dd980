"""Handlers that send the offset of each record, note their calls, and fail where a test wants them to."""

from __future__ import annotations

from collections.abc import Generator

from kunicorn import Batch, Record, Send

calls: list[list[int]] = []
"""Offsets of each call."""
hopeless: set[int] = set()
"""Offsets that cannot be handled."""


def forget() -> None:
    """Before each test."""
    calls.clear()
    hopeless.clear()


def handled() -> list[int]:
    """Every offset that was in hand, in order."""
    return [offset for call in calls for offset in call]


def each(record: Record) -> Send:
    """One output for each."""
    return _sent(record)


async def each_async(record: Record) -> Send:
    """Likewise."""
    return _sent(record)


def slipping(record: Record) -> Generator[Send, None, Send | None]:
    """Likewise; of a hopeless one a `Send` is returned that should have been yielded."""
    calls.append([record.offset])
    yield Send(value=b"%d" % record.offset)
    return Send(value=b"") if record.offset in hopeless else None


def batch(records: Batch) -> list[Send]:
    """Likewise, of all at once."""
    offsets = [record.offset for record in records]
    calls.append(offsets)
    _fail(offsets)
    return [Send(value=b"%d" % offset) for offset in offsets]


def _sent(record: Record) -> Send:
    calls.append([record.offset])
    _fail([record.offset])
    return Send(value=b"%d" % record.offset, key=record.key)


def _fail(offsets: list[int]) -> None:
    if hopeless.intersection(offsets):
        raise ValueError(f"{offsets} cannot be handled")
