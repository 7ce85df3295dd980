"""Handlers for jobs: audited, and doing what the record's value says."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kunicorn import BatchError, Call, DeadLetter, Halt, Record, Skip
from kunicorn.allocator import is_loaded
from kunicorn.commands.demo import audit as audited

_failed_once: set[str] = set()
_options: dict[str, Any] = {}


def setup(options: dict[str, Any]) -> None:
    """With the option `forgive` nothing is halted."""
    _options.clear()
    _options.update(options)


def nothing(record: Record) -> None:
    """As fast as a handler can be."""


def no_column(batch: Any) -> None:
    """As fast as a handler of columns can be."""


def obedient_columns(batch: Any) -> Any:
    """Skip the rows whose value asks for it; the others are handled."""
    import pyarrow.compute as pc

    return BatchError(outcomes=[(Skip("not needed"), pc.equal(batch.column("value"), b"skip"))])


def obedient(record: Record) -> Any:
    """Fail, skip or halt where the value asks for it; otherwise handle."""
    match record.value:
        case b"poison":
            raise ValueError("poison")
        case b"letter":
            raise DeadLetter("not wanted")
        case b"skip":
            return Skip("not needed")
        case b"preloaded" if not is_loaded(_options["library"], os.getpid()):
            raise RuntimeError("the allocator is not there")
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"crash-elsewhere":
            # The next try is on another machine: it finds nothing of this one's.
            shutil.rmtree(Path(tempfile.gettempdir()) / f"kunicorn-pipeline-{os.getuid()}")
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"halt" if not _options.get("forgive"):
            return Halt("a person has to look")
        case b"once" if record.idempotency_key not in _failed_once:
            _failed_once.add(record.idempotency_key)
            raise ConnectionError("try again")
    audited.handle(record)
    return None


obedient.setup = setup  # type: ignore[attr-defined]


def passes_over(call: Call) -> Iterator[None]:
    """A middleware: records that say `old` do not come to the handler."""
    if call.records[0].value == b"old":
        raise Skip("old")
    yield


def batch(records: Sequence[Record]) -> None:
    """A batch at a time."""
    audited.handle_batch(records)
