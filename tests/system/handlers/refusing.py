"""Handlers whose records fail by two exceptions, in each way of calling one; what does not fail is audited."""

from __future__ import annotations

from typing import Any

from kunicorn import Batch, BatchError, Record, Send
from kunicorn.commands.demo.audit import handle as note
from kunicorn.commands.demo.audit import handle_async as note_async


class Fraud(Exception):
    """What records of the value `fraud` raise."""


class Locked(Exception):
    """What those of the value `locked` raise."""


EXCEPTIONS = {b"fraud": Fraud, b"locked": Locked}


def handle(record: Record) -> None:
    """Handle one record."""
    _look_at(record)
    note(record)


def copy(record: Record) -> Send:
    """One output for each record that does not fail."""
    _look_at(record)
    return Send(value=f"{record.partition}:{record.offset}")


async def handle_async(record: Record) -> None:
    """Handle one record as a coroutine."""
    _look_at(record)
    await note_async(record)


def handle_batch(batch: Batch) -> None:
    """Handle the records of a batch up to the first that fails."""
    for number, record in enumerate(batch):
        try:
            _look_at(record)
        except (Fraud, Locked) as error:
            raise BatchError(done=number) from error
        note(record)


def handle_arrow(rows: Any) -> BatchError:
    """Say of each row by masks how it ends."""
    # Here, as the other handlers need no Arrow.
    import pyarrow.compute as pc

    from kunicorn.commands.demo.columnar import handle as note_rows

    masks = {value: pc.equal(rows.column("value"), value) for value in EXCEPTIONS}
    note_rows(rows.filter(pc.invert(pc.or_(*masks.values()))))
    return BatchError(outcomes=[(EXCEPTIONS[value](value.decode()), mask) for value, mask in masks.items()])


def _look_at(record: Record) -> None:
    if (kind := EXCEPTIONS.get(record.value or b"")) is not None:
        raise kind(f"{record.partition}:{record.offset}")
