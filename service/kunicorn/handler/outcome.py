"""Return values of a handler: an outcome for its record, or records to send.

A handler returns an outcome, or raises it:

    from kunicorn import DeadLetter

    def handle_order(record):
        order = orjson.loads(record.value)
        if order["total"] < 0:
            return DeadLetter("a negative total")

`None` means `Done`, and so does any other value. Only a value that has still to be run (a coroutine, a generator) is a
failure. In batch mode the outcome is for the whole batch, but for `BatchError`, which tells the records that are done
from those that are not. Outcomes are exceptions so that code deep inside a handler can raise them; a handler's own
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
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeGuard

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

HeaderValue = str | bytes | None
Headers = Sequence[tuple[str, Any]] | Mapping[str, Any]
"""Text, bytes or None; anything else is for `[producing] headers` to encode."""


class Received(Protocol):
    """What is sent on of a `kunicorn.Record`."""

    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    @property
    def timestamp(self) -> int | None: ...


class Send(msgspec.Struct, frozen=True, gc=False):
    """One record to send."""

    topic: str | None = None
    """None: the topic that `[producing] topic` names."""
    value: Any = None
    """What `[producing] value` encodes; without that setting bytes, or text, which is sent as UTF-8. None makes a
    tombstone."""
    key: Any = None
    """Likewise by `[producing] key`."""
    headers: Headers = ()
    partition: int | None = None
    """None: by the key as Java's producer would, or by chance without one."""
    timestamp: int | None = None
    """Milliseconds since 1970; None: now."""
    encoded: bool = False
    """Key, value and headers are bytes (or text) that are sent as they are, whatever encodes others."""

    @classmethod
    def of(cls, record: Received, topic: str | None = None) -> Send:
        """The record as it was: its bytes, with the schema ids in them, its headers and its timestamp. Nothing is
        encoded anew; a changed model goes into a `Send` of its own.
        """
        return cls(topic, record.value, record.key, record.headers, None, record.timestamp, True)

    def __repr__(self) -> str:
        # Key and value stay out: such texts end up in logs, where payloads do not belong.
        return f"<Send to {self.topic or 'the default topic'}>"


class NotToBeSent(TypeError):
    """A returned value that cannot become a Kafka record; fails its record like any other exception."""

    __module__ = "kunicorn"


def is_columns(returned: object) -> TypeGuard[pa.RecordBatch]:
    """Whether it is a `pyarrow.RecordBatch`. Loads nothing."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(returned, arrow.RecordBatch)


_NO_OUTPUTS = frozenset((bool, int, float, str, bytes, dict))
"""What handlers return most often that says nothing: a look at its type costs next to nothing for each record."""


def _is_table(returned: object) -> bool:
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(returned, arrow.Table)


def are_outputs(returned: object) -> bool:
    """Whether it is records to send, or a collection that begins with one. Loads nothing."""
    if type(returned) in _NO_OUTPUTS:
        return False
    if isinstance(returned, Send) or is_columns(returned) or _is_table(returned):
        return True
    if not isinstance(returned, Collection):
        return False
    try:
        first = next(iter(returned), None)
    except Exception:
        return False  # An array without dimensions, or what else cannot be gone through.
    return isinstance(first, Send) or is_columns(first)


def refuse_outputs(returned: object) -> None:
    """Raise `NotToBeSent` for records to send where [producing] is off: they would be lost silently."""
    if are_outputs(returned):
        raise NotToBeSent(
            "the handler returned records to send, but nothing sends them here: set [producing] delivery, or return "
            "nothing; jobs on Spark send nothing"
        )


class Outcome(Exception):
    """Result of a record that a handler returns or raises; one of the classes below."""

    __module__ = "kunicorn"
    """As users import it and write it in [[handler.failures]], and as dead letters tell it."""

    reason = ""


def is_named(error: BaseException, kinds: Iterable[type[BaseException]]) -> bool:
    """Whether a setting that names these classes means the error. An outcome is an exception, too, and says what
    becomes of its record: it is meant only where it, or an outcome that it is one of, is named."""
    named = [kind for kind in kinds if isinstance(error, kind)]
    return any(issubclass(kind, Outcome) for kind in named) if isinstance(error, Outcome) else bool(named)


def error_type(error: BaseException) -> str:
    """What spans and metrics call it: its class. Empty for an outcome, which is no error."""
    return "" if isinstance(error, Outcome) else type(error).__qualname__


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


class Wait(Outcome):
    """The record waits so long (seconds, or a `timedelta`), and then comes to the handler again: what the handler needs
    is not to be had now, and the record has failed no try. Its partition or key waits with it.

    Raises `TypeError` for what is no time, `ValueError` for one below 0, or above a day.
    """

    __module__ = "kunicorn"

    def __init__(self, after: float | timedelta, why: str = "") -> None:
        super().__init__(why)
        self.reason = why
        self.seconds = _seconds(after)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.reason)


def as_failure(error: BaseException) -> BaseException:
    """The error; in place of a `Wait` that nobody can wait for, why that is so: a class of the user's says no time if
    its `__init__` does not call that of `Wait`."""
    if not isinstance(error, Wait):
        return error
    try:
        _seconds(error.seconds)
    except AttributeError:
        refused: Exception = TypeError(
            f"{type(error).__qualname__} says no time: let its __init__ call that of kunicorn.Wait"
        )
    except (TypeError, ValueError) as why:
        refused = why
    else:
        return error
    return refused.with_traceback(error.__traceback__)


LONGEST_WAIT_SECONDS = 86_400.0
"""What waits is kept in memory, and is begun anew where its partition moves: a day is no wait, but an outage."""


def _seconds(after: object) -> float:
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"Wait(after={after!r}): give seconds, or a datetime.timedelta")
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise ValueError(f"Wait(after={after!r}): give 0 to {LONGEST_WAIT_SECONDS:.0f} seconds, which is a day")
    return float(seconds)


class _Placed(Protocol):
    @property
    def offset(self) -> int: ...


class BatchError(Exception):
    """Some records of the batch are done, and others are not:

        for number, record in enumerate(batch):
            try:
                insert(record)
            except DatabaseError as error:
                raise BatchError(done=number) from error

    What is done is not handled again, the record that failed is tried again alone, by the rules for the exception that
    this one was raised from, and the others come in a batch again. An outcome will do, too: `from DeadLetter("why")`.

    `done`: how many of the first records, or the offsets (or records) that are done, in any order. `failed`: the record
    that failed, or its offset, where all before it are done. `mask`: for each record whether it is done. Numbers and
    arrays may be numpy's or pyarrow's. `outcomes`: which records have which outcome, or exception, as pairs of it and a
    mask, which is True for these records; what is in no mask is done, and of two the first pair counts:

        return BatchError(outcomes=[(DeadLetter("a negative total"), negative), (Skip("a test"), tests)])

    They count in the records' order, each for its records together. Name one of the four. Raises `ValueError` for
    several.
    """

    __module__ = "kunicorn"

    done: int | frozenset[int]

    def __init__(
        self,
        reason: str = "",
        *,
        done: SupportsIndex | Iterable[SupportsIndex | _Placed] | None = None,
        failed: SupportsIndex | _Placed | None = None,
        mask: Iterable[Any] | None = None,
        outcomes: Iterable[tuple[Exception, Iterable[Any]]] | None = None,
    ) -> None:
        super().__init__(reason)
        if sum(given is not None for given in (done, failed, mask, outcomes)) != 1:
            raise ValueError(
                "BatchError takes one of: what is done, the record that failed, a mask of what is done, outcomes"
            )
        self.failed = None if failed is None else _offset(failed)
        self.mask = None if mask is None else _booleans(mask, "BatchError(mask=...)", "it is done")
        self.outcomes: list[tuple[BaseException, list[bool]]] | None = None
        if outcomes is not None:
            self.outcomes = [_for_rows(*pair) for pair in outcomes]
        plain = _plain(done)
        self.done = plain if isinstance(plain, int) else frozenset(map(_offset, () if plain is None else plain))

    @property
    def names_offsets(self) -> bool:
        """Whether it says by offsets what is done, or what has failed."""
        others = self.mask is not None or self.outcomes is not None
        return self.failed is not None or (isinstance(self.done, frozenset) and not others)

    @property
    def fails_none(self) -> bool:
        """Whether it says by outcomes that all records are done, however many there are."""
        if self.outcomes is None:
            return False
        return all(isinstance(outcome, Done) or not any(mask) for outcome, mask in self.outcomes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Past `__init__`, which refuses the reason alone: a process pool breaks over an exception it cannot unpickle.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def _for_rows(outcome: object, mask: Any) -> tuple[Exception, list[bool]]:
    """The outcome, and its mask as a list. Raises `TypeError`."""
    if not isinstance(outcome, Exception) or isinstance(outcome, BatchError):
        raise TypeError(
            f"BatchError(outcomes=...) has pairs of an outcome, or another exception, and a mask: {outcome!r} is none; "
            f"write Skip('why'), DeadLetter('why')"
        )
    return outcome, _booleans(mask, "A mask of BatchError(outcomes=...)", "the outcome is for it")


def _booleans(mask: Any, named: str, meaning: str) -> list[bool]:
    """The mask as a list. Raises `TypeError` for what is none, such as offsets in the wrong argument."""
    plain = [each if isinstance(each, bool) else _plain(each) for each in _plain(mask)]
    if any(not isinstance(each, bool) for each in plain):
        nulls = "; it has nulls: fill them, as with pyarrow.compute.fill_null" if None in plain else ""
        raise TypeError(f"{named} has one bool for each record: True where {meaning}{nulls}")
    return plain


def _offset(place: SupportsIndex | _Placed) -> int:
    plain = _plain(place)
    offset: int = plain if isinstance(plain, int) else plain.offset
    return offset


def _plain(given: Any) -> Any:
    """Of an array of numpy's or pyarrow's a list, and of a number of theirs Python's own."""
    for way in ("to_pylist", "tolist", "as_py"):
        if hasattr(given, way):
            return getattr(given, way)()
    return given


def said_in(returned: object) -> object:
    """What a call has said: beside outputs that were taken out (`outputs.Made`) there may be an outcome."""
    return getattr(returned, "said", returned)


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
    refuse_what_would_be_lost(returned)
    return True


def refuse_what_would_be_lost(returned: object) -> None:
    """Raise `NotToBeSent` for records to send that nobody has taken out, `TypeError` for what has still to be run."""
    refuse_outputs(returned)
    _refuse_unrun(returned)


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
