"""Handlers whose record kills its worker when they have returned from it, and what they returned is not delivered.

A value `b"deadly"` leaves an output at which the client dies, as a bug in librdkafka would have it; `b"letter"` is
itself such a value, so that its dead letter kills, too. `b"soon"` leaves a thread that ends the process in a moment.
All others are copied.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kunicorn import Batch, Record, Send
from kunicorn.worker.produce import letters, sender, telemetry, transactions

DEADLY, LETTER, SOON = b"deadly", b"letter", b"soon"
_KILLS = (b"made of deadly", LETTER)
_MOMENT = 0.03
_SECONDS = 0.001
"""A call takes so long: several records are in hand at a time."""

_put = sender.put


def _put_or_die(producer: Any, outputs: Iterable[telemetry.Output], *told: Callable[..., None]) -> None:
    every = list(outputs)
    if any(output.value in _KILLS for _, output in every):
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
    _put(producer, every, *told)


for _sender in (sender, letters, transactions):
    vars(_sender)["put"] = _put_or_die


def _made(record: Record) -> Send:
    if record.value == SOON:
        threading.Thread(target=_die_soon, daemon=True).start()
    if record.value == DEADLY:
        return Send(value=b"made of deadly")
    if record.value == LETTER:
        return Send(value=LETTER)
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)


def _die_soon() -> None:
    time.sleep(_MOMENT)
    os._exit(9)


def copy(record: Record) -> Send:
    """One output for each record."""
    time.sleep(_SECONDS)
    return _made(record)


async def copy_async(record: Record) -> Send:
    """Likewise, beside others."""
    await asyncio.sleep(_SECONDS)
    return _made(record)


def copy_batch(batch: Batch) -> list[Send]:
    """One for each record of a batch."""
    return [_made(record) for record in batch]
