"""A handler that keeps something of every record, as caches without a bound do."""

from __future__ import annotations

from kunicorn import Record
from tests.system.handlers import audited

_kept: list[bytes] = []


def handle(record: Record) -> None:
    """Handle one record, and keep a hundred kilobytes for ever."""
    _kept.append(b"x" * 100_000)
    audited.handle(record)
