"""A handler that fails with a record as often as its value says, and notes every try."""

from __future__ import annotations

import os
import time
from pathlib import Path

from kunicorn import Record


def handle(record: Record) -> None:
    """The value is a number: so many tries fail. A line for each: whose try it was, which one, when, where it was."""
    tries = record.origin.attempts
    time.sleep(float(os.environ.get("KUNICORN_HANDLER_MS", "0")) / 1000)
    line = f"{record.idempotency_key} {tries} {time.time()} {record.topic}\n"
    path = Path(os.environ["MARKS_DIRECTORY"], "tries")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    if tries < int(record.value or b"0"):
        raise ConnectionError(f"try {tries} of {record.value!r}")


async def handle_async(record: Record) -> None:
    """Likewise."""
    handle(record)
