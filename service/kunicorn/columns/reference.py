"""The decoder in plain Python: slow, short, and the judge of the compiled one. Every rule of positions, aborted
transactions and cuts is written here once more, and tests hold the two against one another.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from kunicorn.columns.batches import Batch, CutShort, Damaged, Row, read_batch
from kunicorn.columns.decoding import MOST_UNPACKED
from kunicorn.columns.frames import FIRST_WITH_IDS, MalformedResponse, PartitionFrame, read_frame
from kunicorn.handler.rows import Rows

__all__ = ["SCHEMA", "Decoder", "MalformedResponse", "Part", "Response"]

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "item",
                    pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]),
                    nullable=False,
                )
            ),
        ),
    ]
)
"""The written contract: docs/columns.md."""
_POOL = pa.proxy_memory_pool(pa.default_memory_pool())
"""Says how much of what was made here is alive."""
# For ever: a batch that outlives this module, when the interpreter ends, frees its buffers by the pool, and crashed.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_POOL))
TIMESTAMP_TYPE = pa.field("timestamp_type", pa.int32(), nullable=False)
"""The column behind them, where it is asked for."""

_NO_WATERMARKS = (-1, -1, -1)


@dataclass(slots=True)
class Part:
    """See `kunicorn.columns.decoding.Part`."""

    topic_id: bytes
    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    leader_id: int
    leader_epoch: int
    diverging_epoch: int
    diverging_end: int
    preferred_replica: int
    first_row: int
    next_offset: int
    rows: int = 0
    bytes: int = 0
    last_epoch: int = -1
    damage: str = ""
    damage_offset: int = -1
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """See `kunicorn.columns.decoding.Response`."""

    throttle_ms: int
    error: int
    session_id: int
    partitions: list[Part]
    nodes: list[tuple[int, str, int]]
    rows: Rows
    more: int


@dataclass(slots=True)
class _Place:
    topic_id: bytes
    topic: str
    offset: int
    watermarks: tuple[int, int, int] = _NO_WATERMARKS


@dataclass(slots=True)
class _Taken:
    """What one call has taken out of a response so far."""

    parts: list[Part] = field(default_factory=list)
    rows: list[tuple[Part, Row]] = field(default_factory=list)
    unpacked: int = 0


class Decoder:
    """See `kunicorn.columns.decoding.Decoder`."""

    def __init__(
        self, *, read_committed: bool, max_unpacked: int, cut_at: int = MOST_UNPACKED, timestamp_types: bool = False
    ) -> None:
        for name, limit in (("max_unpacked", max_unpacked), ("cut_at", cut_at)):
            if not 1 <= limit <= MOST_UNPACKED:
                raise ValueError(f"{name} = {limit}, where 1 to {MOST_UNPACKED} bytes are possible")
        self._read_committed = read_committed
        self._max_unpacked, self._cut_at = max_unpacked, min(cut_at, max_unpacked)
        self._timestamp_types = timestamp_types
        self._places: dict[tuple[bytes, int], _Place] = {}
        self._ids: dict[str, bytes] = {}

    def place(self, topic_id: bytes, partition: int, topic: str, offset: int) -> None:
        """See `kunicorn.columns.decoding.Decoder`."""
        self._places[topic_id, partition] = _Place(topic_id, topic, offset)
        self._ids[topic] = topic_id

    def forget(self, topic_id: bytes, partition: int) -> None:
        """See `kunicorn.columns.decoding.Decoder`."""
        gone = self._places.pop((topic_id, partition), None)
        if gone is None or any(topic_id == placed for placed, _ in self._places):
            return
        # The name may be a topic's by now that was created anew, and has places.
        if self._ids.get(gone.topic) == topic_id:
            del self._ids[gone.topic]

    @staticmethod
    def held() -> int:
        """See `kunicorn.columns.decoding.Decoder`."""
        return int(_POOL.bytes_allocated())

    def decode(self, body: bytes | bytearray | memoryview, version: int, first: int = 0) -> Response:
        """See `kunicorn.columns.decoding.Decoder`."""
        frame = read_frame(memoryview(body).cast("B"), version)
        taken = _Taken()
        more = 0
        # One more than an index, so that 0 is left to say that nothing is left.
        for number, each in enumerate(frame.partitions, 1):
            place = self._place_of(each, version)
            if number < first or place is None:
                continue
            if self._take(each, place, taken):
                more = number
                break
        rows = Rows(_columns(taken.rows, timestamp_types=self._timestamp_types))
        return Response(frame.throttle_ms, frame.error, frame.session_id, taken.parts, list(frame.nodes), rows, more)

    def _place_of(self, frame: PartitionFrame, version: int) -> _Place | None:
        topic_id = (
            frame.topic if version >= FIRST_WITH_IDS else self._ids.get(frame.topic.decode(errors="replace"), b"")
        )
        return self._places.get((topic_id, frame.partition))

    def _take(self, frame: PartitionFrame, place: _Place, taken: _Taken) -> bool:
        """Take one partition's rows and news; whether the call is cut before the partition's end."""
        part = _part(frame, place, len(taken.rows))
        full = not frame.error and self._read(frame, part, taken)
        told = frame.error == 0 and frame.watermarks != place.watermarks
        if told or _is_news(part, place.offset):
            taken.parts.append(part)
        if told:
            place.watermarks = frame.watermarks
        place.offset = part.next_offset
        return full

    def _read(self, frame: PartitionFrame, part: Part, taken: _Taken) -> bool:
        """Read its batches into the rows; whether the call is cut before their end."""
        aborted = _Aborted(frame.aborted)
        at = 0
        try:
            while at < len(frame.records):
                batch, end = read_batch(frame.records, at)
                if part.rows and batch.leader_epoch != part.last_epoch:
                    return True
                wanted = self._wanted(batch, aborted) and batch.last_offset >= part.next_offset
                if wanted and taken.unpacked >= self._cut_at:
                    return True
                if wanted:
                    self._add(batch, part, taken)
                part.next_offset = max(part.next_offset, batch.last_offset + 1)
                part.last_epoch = batch.leader_epoch
                at = end
        except CutShort:
            part.incomplete = at == 0
        except Damaged as damage:
            part.damage, part.damage_offset = str(damage), part.next_offset
        return False

    def _wanted(self, batch: Batch, aborted: _Aborted) -> bool:
        """Whether its records count: neither markers, nor aborted where that is minded."""
        if self._read_committed and batch.producer_id >= 0:
            aborted.begin(batch.last_offset)
            if batch.control and batch.transactional and batch.aborts(self._max_unpacked):
                aborted.end(batch.producer_id)
            if batch.transactional and batch.producer_id in aborted.producers:
                return False
        return not batch.control

    def _add(self, batch: Batch, part: Part, taken: _Taken) -> None:
        unpacked = batch.unpacked(self._max_unpacked)
        rows = [row for row in batch.rows(unpacked) if row.offset >= part.next_offset]
        taken.unpacked += len(unpacked)
        taken.rows += [(part, row) for row in rows]
        part.rows += len(rows)
        part.bytes += sum(row.bytes for row in rows)


class _Aborted:
    """Which producers' records are of an aborted transaction, as the batches go by (`CompletedFetch.java`)."""

    def __init__(self, transactions: tuple[tuple[int, int], ...]) -> None:
        self.producers: set[int] = set()
        self._to_come = sorted(transactions, key=lambda each: each[1], reverse=True)

    def begin(self, last_offset: int) -> None:
        """Go on to a batch's last offset: what begins up to there has begun."""
        while self._to_come and self._to_come[-1][1] <= last_offset:
            self.producers.add(self._to_come.pop()[0])

    def end(self, producer_id: int) -> None:
        """The producer's marker has come: what it sends next is of another transaction."""
        self.producers.discard(producer_id)


def _part(frame: PartitionFrame, place: _Place, first_row: int) -> Part:
    high_watermark, last_stable_offset, log_start = frame.watermarks
    return Part(
        topic_id=place.topic_id,
        topic=place.topic,
        partition=frame.partition,
        error=frame.error,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start=log_start,
        leader_id=frame.leader[0],
        leader_epoch=frame.leader[1],
        diverging_epoch=frame.diverging[0],
        diverging_end=frame.diverging[1],
        preferred_replica=frame.preferred_replica,
        first_row=first_row,
        next_offset=place.offset,
    )


def _is_news(part: Part, offset: int) -> bool:
    """Whether the caller has to hear of the partition, watermarks apart."""
    facts = (part.leader_id, part.leader_epoch, part.diverging_epoch, part.diverging_end, part.preferred_replica)
    return bool(part.error or part.rows or part.damage or part.incomplete or part.next_offset != offset) or any(
        fact != -1 for fact in facts
    )


def _columns(taken: list[tuple[Part, Row]], *, timestamp_types: bool) -> pa.RecordBatch:
    topics: dict[str, int] = {}
    indices = [topics.setdefault(part.topic, len(topics)) for part, _ in taken]
    rows = [row for _, row in taken]
    headers = [[{"name": name, "value": value} for name, value in row.headers] or None for row in rows]
    made = partial(pa.array, memory_pool=_POOL)
    columns = [
        pa.DictionaryArray.from_arrays(made(indices, pa.int32()), made(list(topics), pa.string())),
        made([part.partition for part, _ in taken], pa.int32()),
        made([row.offset for row in rows], pa.int64()),
        made([row.timestamp for row in rows], pa.int64()).cast(SCHEMA.field("timestamp").type),
        made([row.key for row in rows], pa.binary()),
        made([row.value for row in rows], pa.binary()),
        made(headers, SCHEMA.field("headers").type),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    if not timestamp_types:
        return batch
    return batch.append_column(TIMESTAMP_TYPE, made([row.timestamp_type for row in rows], pa.int32()))
