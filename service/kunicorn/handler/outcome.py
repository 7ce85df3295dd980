"""Return values of a handler: an outcome for its record, or records to send.

A handler returns an outcome, or raises it:

    from kunicorn import DeadLetter

    def handle_order(record):
        order = orjson.loads(record.value)
        if order["total"] < 0:
            return DeadLetter("a negative total")

`None` means `Done`, and so does any other value. Only a value that has still to be run (a coroutine, a generator) is a
failure. In batch mode the outcome is for the whole batch, but for `BatchError`, which tells the records that are done
from the one that is not. Outcomes are exceptions so that code deep inside a handler can raise them; a handler's own
`except Exception` catches them like any other.

With `[producing]` a handler may also return or yield records for other topics:

    from kunicorn import Send

    def handle_order(record):
        order = orjson.loads(record.value)
        return Send("totals", key=record.key, value=orjson.dumps(order["total"]))

A handler returns one, a list of them, or yields them; in batch mode they belong to the whole batch. They are sent once
the handler is through with the record, and the record's offset is not committed before the brokers have them.
"""

from __future__ import annotations

import contextlib
import copyreg
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec

HeaderValue = str | bytes | None
Headers = Sequence[tuple[str, HeaderValue]] | Mapping[str, HeaderValue]


class Send(msgspec.Struct, frozen=True, gc=False):
    """One record to send."""

    topic: str | None = None
    """None: the topic that `[producing] topic` names."""
    value: bytes | str | None = None
    """Text is sent as UTF-8; None makes a tombstone."""
    key: bytes | str | None = None
    headers: Headers = ()
    partition: int | None = None
    """None: by the key as Java's producer would, or by chance without one."""
    timestamp: int | None = None
    """Milliseconds since 1970; None: now."""

    def __repr__(self) -> str:
        # Key and value stay out: such texts end up in logs, where payloads do not belong.
        return f"<Send to {self.topic or 'the default topic'}>"


class NotToBeSent(TypeError):
    """A returned value that cannot become a Kafka record; fails its record like any other exception."""

    __module__ = "kunicorn"


def refuse_outputs(returned: object) -> None:
    """Raise `NotToBeSent` for records to send where [producing] is off: they would be lost silently."""
    first = returned[0] if isinstance(returned, list | tuple) and returned else returned
    if isinstance(first, Send):
        raise NotToBeSent(
            "the handler returned records to send, but nothing sends them here: set [producing] delivery, or return "
            "nothing; jobs on Spark send nothing"
        )


class Outcome(Exception):
    """Result of a record that a handler returns or raises; one of the classes below."""

    __module__ = "kunicorn"
    """As users import it and write it in [[handler.failures]], and as dead letters tell it."""

    reason = ""


class Done(Outcome):
    """The record is handled, as if the handler had returned nothing."""

    __module__ = "kunicorn"


class _WithReason(Outcome):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(_WithReason):
    """The record is passed over: logged and counted, no more."""

    __module__ = "kunicorn"


class DeadLetter(_WithReason):
    """The record goes to the dead-letter topic now, without another try. Needs `[dead_letters]`."""

    __module__ = "kunicorn"


class Halt(_WithReason):
    """The record's partition halts before it until a person acts; the other partitions go on."""

    __module__ = "kunicorn"


class Retry(_WithReason):
    """The record is tried again, `after` so long where given, else after the usual wait. Counts as a failed try. Raises
    `TypeError` for a number, which has no unit.
    """

    __module__ = "kunicorn"

    after: timedelta | None = None

    def __init__(self, reason: str = "", after: timedelta | None = None) -> None:
        super().__init__(reason)
        if after is not None and not isinstance(after, timedelta):
            raise TypeError(f"Retry(after={after!r}): give a datetime.timedelta, such as timedelta(seconds=5)")
        self.after = after


class _Placed(Protocol):
    @property
    def offset(self) -> int: ...


class BatchError(Exception):
    """Some records of the batch are done, and one has failed:

        for number, record in enumerate(batch):
            try:
                insert(record)
            except DatabaseError as error:
                raise BatchError(done=number) from error

    What is done is not handled again, the record that failed is tried again alone, by the rules for the exception that
    this one was raised from, and the others come in a batch again. An outcome will do, too: `from DeadLetter("why")`.

    `done`: how many of the first records, or the offsets (or records) that are done, in any order. `failed`: the record
    that failed, or its offset, where all before it are done. Name one of the two. Raises `ValueError` for both.
    """

    __module__ = "kunicorn"

    done: int | frozenset[int]

    def __init__(
        self,
        reason: str = "",
        *,
        done: int | Iterable[int | _Placed] | None = None,
        failed: int | _Placed | None = None,
    ) -> None:
        super().__init__(reason)
        if (done is None) == (failed is None):
            raise ValueError("BatchError takes either what is done, or the record that failed")
        self.failed = None if failed is None else _offset(failed)
        self.done = done if isinstance(done, int) else frozenset(map(_offset, done or ()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Past `__init__`, which refuses the reason alone: a process pool breaks over an exception it cannot unpickle.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def _offset(place: int | _Placed) -> int:
    return place if isinstance(place, int) else place.offset


def raise_outcome(returned: object) -> bool:
    """Raise what a handler returned if it is an outcome other than `Done`, or another exception (which says that
    something went wrong). Returns whether it is a mere value, which says nothing.

    Records to send get here only where nothing sends them. Raises `TypeError` for what has still to be run.
    """
    if returned is None or isinstance(returned, Done):
        return False
    if isinstance(returned, Exception):
        # One that the handler keeps and returns again and again must not collect tracebacks.
        raise returned.with_traceback(None)
    refuse_outputs(returned)
    _refuse_unrun(returned)
    return True


def _refuse_unrun(returned: object) -> None:
    """Raise `TypeError` for a coroutine or generator: a wrapper that is no `async def` itself hides that its function
    is one. Nothing of the body has run, and the record would count as handled.
    """
    if isinstance(returned, types.GeneratorType | map | filter):
        _close(returned)
        raise TypeError(
            f"the handler returned a {type(returned).__name__}, of which nothing has run: let it return only when it "
            f"is through; to send what it yields, set [producing] delivery"
        )
    if inspect.isawaitable(returned) or inspect.isasyncgen(returned):
        _close(returned)
        raise TypeError(
            f"the handler returned a {type(returned).__name__}, which nobody awaits: what the entry point names has to "
            f"be 'async def' itself, a decorator's wrapper, too ('async def wrapper(…): return await function(…)'), "
            f"and has to await whatever it calls; a lambda cannot"
        )


def _close(unrun: object) -> None:
    """Close a coroutine or generator, and cancel a task: Python would complain of it, or it would run on beside the
    next try.
    """
    end = getattr(unrun, "close", None) or getattr(unrun, "cancel", None)
    if callable(end):
        with contextlib.suppress(Exception):
            end()
