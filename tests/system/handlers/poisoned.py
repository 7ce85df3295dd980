"""A handler that raises on records whose value says so."""

from __future__ import annotations

from kunicorn import Record


def handle(record: Record) -> None:
    """Raise on poison."""
    if record.value == b"poison":
        raise ValueError("poison")
