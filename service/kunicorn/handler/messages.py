"""What is asked of fetched messages, whoever has made them: librdkafka, which makes a list of its own objects, or our
own fetcher, whose rows are `Columnar` and make an object for a row when somebody looks at it.

Rows answer for all of them at once, without such objects. Of a list each message is asked by its class's own method,
which is C: a function of ours in between would cost as much as the rest of a record. Small: records, decoders and runs
all stand on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from confluent_kafka import Message

from kunicorn.positions import NO_EPOCH

if TYPE_CHECKING:
    import pyarrow as pa

Run = Sequence[Message]
"""Records of one partition in offset order: messages in a list or a tuple, or rows, which are `Columnar`."""

_LISTS = (tuple, list)
"""Filters ask of a tuple once a record, and `isinstance` looks in this order."""


class Columnar(Protocol):
    """Rows as a sequence of messages: `kunicorn_columns.Rows`, where a part of them, or several joined, is no copy; and
    `kunicorn.handler.rows.Rows`, which tests hold against it.
    """

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as columns: `kunicorn.columns` has their types."""

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in the columns, with their share of what the answer takes that they came with."""

    def __len__(self) -> int: ...
    def values(self) -> list[bytes | None]: ...
    def keys(self) -> list[bytes | None]: ...
    def timestamps(self) -> list[int | None]:
        """Milliseconds since 1970; None where the producer has set none."""

    def offsets(self) -> Sequence[int]:
        """All offsets, ascending; a range where there are no gaps."""

    def ends(self) -> tuple[int, int]:
        """Offsets of the first and of the last row, of which there is one."""

    def value_sizes(self) -> list[int]: ...
    def value_bytes(self) -> int:
        """Bytes of all values."""

    def without(self, offsets: Collection[int]) -> Self:
        """The rows but those at these offsets."""

    def joined(self, others: Sequence[Self]) -> Self:
        """These, and behind them those of the others."""

    def apart(self) -> Self:
        """The same rows, which keep no others in memory: copied where most of what they keep is others'."""


def columns(run: Run) -> Columnar | None:
    """The run, if it is rows; None if it is a list."""
    return None if isinstance(run, _LISTS) else cast(Columnar, run)


def listed(of: Message | Run) -> Run:
    """What a call is about, as a run: one record, or several."""
    # The class that most are of comes first: to tell a sequence from another class's row takes several times as long.
    return [of] if isinstance(of, Message) or not isinstance(of, Sequence) else of


def clients_message(message: Any) -> Message:
    """The message as one of the client's: it can be pickled, and keeps nothing else in memory, as a row does."""
    if isinstance(message, Message):
        return message
    epoch = message.leader_epoch()
    return Message(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=message.headers(),
        timestamp=message.timestamp(),
        leader_epoch=NO_EPOCH if epoch is None else epoch,
    )


def asked(run: Run, what: str) -> Iterator[Any]:
    """What the method of that name answers for each message."""
    return map(getattr(type(run[0]), what), run) if run else iter(())


def values(run: Run) -> Iterable[bytes | None]:
    """Each message's value."""
    if isinstance(run, _LISTS):
        return map(type(run[0]).value, run) if run else ()
    return cast(Columnar, run).values()


def keys(run: Run) -> Iterable[bytes | None]:
    """Each message's key."""
    if isinstance(run, _LISTS):
        return map(type(run[0]).key, run) if run else ()
    return cast(Columnar, run).keys()
