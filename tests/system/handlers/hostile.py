"""Handlers that do what a record's value says, and note every record that they are through with.

One for each form in which a handler can be called: they differ in that alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kunicorn import Batch, Record, Send

NOTES = Path(os.environ["NOTES_DIRECTORY"]) / "notes"


class Unpicklable(Exception):
    """Five megabytes with control characters, which no pickle takes."""

    def __init__(self) -> None:
        super().__init__("\x00\x1b[31m" + "x" * 5_000_000)
        self.held = lambda: None

    def __reduce__(self) -> str:
        raise TypeError("not me")


class Unspeakable(Exception):
    """Cannot even be told."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def leave() -> None:
    """What `sys.exit` does."""
    raise SystemExit(7)


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def be_huge() -> None:
    """Raise what cannot be pickled."""
    raise Unpicklable


def be_unspeakable() -> None:
    """Raise what cannot be told."""
    raise Unspeakable


def fork() -> None:
    """Have a child that ends at once."""
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)


def close_everything() -> None:
    """Standard descriptors, the pipe to the supervisor, the client's sockets: all."""
    os.closerange(0, 1 << 16)


def never_return() -> None:
    """Until somebody interrupts."""
    while True:
        time.sleep(1)


def do_nothing() -> None:
    """As a record with any other value asks for."""


DEEDS: Mapping[bytes | None, Callable[[], None]] = {
    b"leave": leave,
    b"interrupt": interrupt,
    b"huge": be_huge,
    b"unspeakable": be_unspeakable,
    b"fork": fork,
    b"close": close_everything,
    b"never": never_return,
}


def note(record: Record) -> None:
    """It is handled. The file is opened anew each time: somebody may have closed it."""
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    value = record.value
    shown = None if value is None else len(value) if len(value) > 100 else value
    said = (record.partition, record.offset, record.key, shown, record.headers, record.timestamp)
    os.write(file, f"{said!r}\n".encode())
    os.close(file)


def obey(record: Record) -> None:
    """One record."""
    DEEDS.get(record.value, do_nothing)()
    note(record)


async def obey_async(record: Record) -> None:
    """Likewise; it waits where others sleep."""
    if record.value == b"never":
        await asyncio.Event().wait()
    obey(record)


def obey_batch(batch: Batch) -> None:
    """One after another."""
    for record in batch:
        obey(record)


async def obey_batch_async(batch: Batch) -> None:
    """Likewise."""
    for record in batch:
        await obey_async(record)


def output_of(record: Record) -> str:
    """What the output of a record holds."""
    return f"{record.partition}:{record.offset}"


UNSENDABLE: Mapping[bytes | None, object] = {
    b"no send": {"value": "a dict"},
    b"wrong header": Send(value=b"v", headers={"h": 5}),
    b"no topic": Send("there-is-no-such-topic", b"v"),
    b"illegal topic": Send("no/legal name", b"v"),
    b"large output": Send(value=b"x" * 50_000_000),
}
"""Outputs that no record can be, or no broker takes."""


def obey_and_send(record: Record) -> Iterator[object]:
    """One output each, or what the value asks for. It does not return with everything closed: the worker is to die with
    the record in hand, not before its output is delivered."""
    if record.value == b"close":
        close_everything()
        never_return()
    obey(record)
    if (unsendable := UNSENDABLE.get(record.value)) is not None:
        yield unsendable
    count = 100_000 if record.value == b"many" else 1
    for _ in range(count):
        yield Send(value=output_of(record), key=record.key)
