"""What the table of partitions asks of a run, whichever of the two kinds it is: a list of messages, or rows
(`messages.Columnar`).

Rows that our own fetcher has made are compiled (`kunicorn_columns.Rows`). `Rows` here are the same by pyarrow, of any
batch: the judge of those, and for whoever wants messages of a batch. Arrow is an optional dependency: whoever has a
batch has it, so that this module loads nothing of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast, overload

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.messages import Run, clients_message, columns
from kunicorn.handler.record import gapless_offsets, offset_of
from kunicorn.positions import NO_EPOCH, NO_TIMESTAMP

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY, VALUE, HEADERS = range(7)
"""Places of the columns, in every batch of rows."""
NAMES = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class Rows(Sequence[Message]):
    """Rows in offset order, written under one leader epoch. A `Columnar`."""

    __slots__ = ("batch", "epoch")

    def __init__(self, batch: pa.RecordBatch, epoch: int = NO_EPOCH) -> None:
        """`batch`: with the columns `NAMES`, others may follow. `epoch`: `NO_EPOCH` where it is unknown."""
        self.batch = batch
        self.epoch = epoch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, *(column.to_pylist() for column in _plain(self.batch)))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Message | Rows:
        if isinstance(index, slice):
            first, end, step = index.indices(len(self))
            if step != 1:
                raise ValueError("rows are cut into consecutive ones")
            return Rows(self.batch.slice(first, max(0, end - first)), self.epoch)
        return self._message(*(column[index].as_py() for column in _plain(self.batch)))

    def offsets(self) -> Sequence[int]:
        """All offsets, ascending; a range where there are no gaps."""
        column, rows = self.batch.column(OFFSET), len(self)
        if not rows:
            return range(0)
        first, last = column[0].as_py(), column[rows - 1].as_py()
        if last - first == rows - 1:
            return range(first, last + 1)
        offsets: list[int] = column.to_pylist()
        return offsets

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        capsules: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return capsules

    def cut(self, first: int, rows: int, epoch: int) -> Rows:
        """So many rows from an index on, which were written in that leader epoch."""
        return Rows(self.batch.slice(first, rows), epoch)

    def values(self) -> list[bytes | None]:
        """All values."""
        values: list[bytes | None] = self.batch.column(VALUE).to_pylist()
        return values

    def keys(self) -> list[bytes | None]:
        """All keys."""
        keys: list[bytes | None] = self.batch.column(KEY).to_pylist()
        return keys

    def timestamps(self) -> list[int | None]:
        """Milliseconds since 1970; None where the producer has set none."""
        times: list[int | None] = self.batch.column(TIMESTAMP).view("int64").to_pylist()
        return times

    def ends(self) -> tuple[int, int]:
        """Offsets of the first and of the last row, of which there is one."""
        column = self.batch.column(OFFSET)
        return column[0].as_py(), column[len(self) - 1].as_py()

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in the columns' buffers."""
        return int(self.batch.nbytes)

    def value_sizes(self) -> list[int]:
        """Bytes of each value."""
        import pyarrow.compute as pc

        sizes: list[int] = pc.fill_null(pc.binary_length(self.batch.column(VALUE)), 0).to_pylist()
        return sizes

    def value_bytes(self) -> int:
        """Bytes of all values."""
        import pyarrow.compute as pc

        return pc.sum(pc.binary_length(self.batch.column(VALUE))).as_py() or 0

    def without(self, offsets: Collection[int]) -> Rows:
        """The rows but those at these offsets."""
        import pyarrow as pa

        kept = pa.array([offset not in offsets for offset in self.offsets()], pa.bool_())
        return Rows(self.batch.filter(kept), self.epoch)

    def joined(self, others: Sequence[Rows]) -> Rows:
        """These, and behind them those of the others; copied."""
        import pyarrow as pa

        return Rows(pa.concat_batches([self.batch, *(each.batch for each in others)]), self.epoch)

    def apart(self) -> Rows:
        """The same rows, copied: they keep no others in memory."""
        import pyarrow as pa

        return Rows(self.batch.take(pa.array(range(len(self)), pa.int64())), self.epoch)

    def _message(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[dict[str, Any]] | None,
    ) -> Message:
        kind = TIMESTAMP_NOT_AVAILABLE if timestamp is None or timestamp < 0 else TIMESTAMP_CREATE_TIME
        return Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            value=value,
            headers=[(each["name"], each["value"]) for each in headers] if headers else None,
            timestamp=(kind, timestamp or 0),
            leader_epoch=self.epoch,
        )


def _plain(batch: pa.RecordBatch) -> list[pa.Array]:
    """The columns `NAMES`, times as numbers: Python's own times cost more than the rest, and have no year 10,000."""
    columns = list(batch.columns[: len(NAMES)])
    columns[TIMESTAMP] = columns[TIMESTAMP].view("int64")
    return columns


def joined(runs: Sequence[Run]) -> Run:
    """These runs, all of one kind, as one."""
    first, *others = runs
    if not others:
        return first
    if (rows := columns(first)) is None:
        return [message for run in runs for message in run]
    behind: Any = others
    return cast(Run, rows.joined(behind))


def apart(run: Run) -> Run:
    """The same records, which keep nothing else in memory that was fetched with them. Caller: who has them wait."""
    if (rows := columns(run)) is not None:
        return cast(Run, rows.apart())
    # librdkafka's messages have memory of their own; those of our fetcher's rows share it.
    return run if not run or isinstance(run[0], Message) else tuple(map(clients_message, run))


def without(run: Run, offsets: Collection[int]) -> Run:
    """The records of the run but those at these offsets."""
    if (rows := columns(run)) is None:
        return [message for message in run if message.offset() not in offsets]
    return cast(Run, rows.without(offsets))


def beginning_at(run: Run, offset: int) -> Run:
    """The records of the run from this offset on."""
    return run[_place_of(run, offset) :]


def before(run: Run, offset: int) -> Run:
    """The records of the run before this offset."""
    return run[: _place_of(run, offset)]


def _place_of(run: Run, offset: int) -> int:
    if (rows := columns(run)) is None:
        return bisect_left(run, offset, key=offset_of)
    return bisect_left(rows.offsets(), offset)


def between_times(run: Run, since: int, until: int) -> Run:
    """The records of the run whose timestamps, in milliseconds since 1970, are from `since` on and before `until`. One
    without a timestamp counts as older than every time.
    """
    if (rows := columns(run)) is None:
        return [message for message in run if since <= message.timestamp()[1] < until]
    import pyarrow as pa
    import pyarrow.compute as pc

    times = pc.fill_null(rows.batch.column(TIMESTAMP).view(pa.int64()), NO_TIMESTAMP)
    outside = pc.or_(pc.less(times, since), pc.greater_equal(times, until))
    offsets = rows.batch.column(OFFSET).filter(outside).to_pylist()
    return cast(Run, rows.without(set(offsets))) if offsets else run


def ends(run: Run) -> tuple[int, int]:
    """Offsets of the first and of the last record."""
    if (rows := columns(run)) is None:
        return offset_of(run[0]), offset_of(run[-1])
    return rows.ends()


def first_timestamp(run: Run) -> int:
    """Timestamp of the first record in milliseconds since 1970; -1 or 0 where it has none."""
    return int(run[0].timestamp()[1])


def following_offsets(run: Run) -> Sequence[int]:
    """For each record, the offset to go on from once it is handled.

    A range where offsets have no gaps, which is the usual case and costs nothing a record.
    """
    if (rows := columns(run)) is not None:
        offsets = rows.offsets()
        gapless = offsets if isinstance(offsets, range) else None
    else:
        gapless = gapless_offsets(run)
        offsets = gapless if gapless is not None else [offset_of(message) for message in run]
    if gapless is not None:
        return range(gapless.start + 1, gapless.stop + 1)
    return [offset + 1 for offset in offsets]


def fitting(run: Run, most_bytes: int | None) -> int:
    """Number of leading records whose values have at most `most_bytes` together; at least 1."""
    if most_bytes is None:
        return len(run)
    sizes = map(len, run) if (rows := columns(run)) is None else rows.value_sizes()
    return max(1, bisect_right(list(accumulate(sizes)), most_bytes))


def value_bytes(runs: Iterable[Run]) -> int:
    """Bytes of the values of all these runs."""
    return sum(sum(map(len, run)) if (rows := columns(run)) is None else rows.value_bytes() for run in runs)
