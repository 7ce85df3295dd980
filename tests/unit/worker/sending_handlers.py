"""Handlers that send the offset of each record, note their calls, and fail where a test wants them to."""

from __future__ import annotations

from collections.abc import Generator

from kunicorn import Record, Send

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
    calls.append([record.offset])
    if record.offset in hopeless:
        raise ValueError(f"{record.offset} cannot be handled")
    return Send(value=b"%d" % record.offset, key=record.key)


def slipping(record: Record) -> Generator[Send, None, Send | None]:
    """Likewise; of a hopeless one a `Send` is returned that should have been yielded."""
    calls.append([record.offset])
    yield Send(value=b"%d" % record.offset)
    return Send(value=b"") if record.offset in hopeless else None
