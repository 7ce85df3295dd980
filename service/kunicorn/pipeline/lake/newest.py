"""The newest record of each key among a round's files, in parts that are bounded by bytes.

1. The files are read twice. The first reading keeps of each record what decides which is newest, with a digest in place
   of its key; the second takes the newest records themselves. So a key is in one part, and parts may be merged in any
   order, or again.
2. In memory there are at once: the index, of the same size for every record; a row group of a file; and one part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kunicorn.pipeline.lake.by_bytes import joined
from kunicorn.pipeline.storage import Directory

PART_BYTES = 128 * 1024 * 1024
"""Of a part, as Arrow has it in memory; a part with more is a single record."""
_DIGEST_BYTES = 16
_ROWS = 16 * 1024
"""Read at once."""
_INDEX = pa.schema(
    [
        ("key", pa.binary(_DIGEST_BYTES)),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("row", pa.int64()),
    ]
)
"""`key`: a digest of topic and key. `row`: the record's place among those of all files."""


class Part(NamedTuple):
    """Some of the newest records."""

    rows: pa.Table
    last: bool


def newest_in_parts(target: Directory, names: Sequence[str], most_bytes: int = PART_BYTES) -> Iterator[Part]:
    """The newest record of each topic and key in these files: of one partition the last, of several the one with the
    latest time. None where the files have no record. Raises `ConfigError`.

    Caller: lets go of a part before it asks for the next one, or two are in memory.
    """
    rows = _newest(_index(target, names))
    left = len(rows)
    for table in joined(_taken(target, names, rows), most_bytes):
        left -= table.num_rows
        yield Part(table, last=left == 0)
        del table


def _index(target: Directory, names: Sequence[str]) -> pa.Table:
    found, row = list[pa.RecordBatch](), 0
    for name in names:
        for batch in target.batches(name, _ROWS, ["topic", "partition", "offset", "timestamp", "key"]):
            columns = [
                _digests(batch),
                batch.column("partition"),
                batch.column("offset"),
                # A record without a time is the oldest, as sorting would have it the newest.
                batch.column("timestamp").view(pa.int64()).fill_null(-1),
                pa.array(range(row, row + batch.num_rows), pa.int64()),
            ]
            found.append(pa.RecordBatch.from_arrays(columns, schema=_INDEX))
            row += batch.num_rows
    return pa.Table.from_batches(found, _INDEX)


def _digests(batch: pa.RecordBatch) -> pa.Array:
    """One for each topic and key. No topic's name has a zero byte."""
    told = zip(batch.column("topic").to_pylist(), batch.column("key"), strict=True)
    digests = []
    for topic, key in told:
        digest = blake2b(f"{topic}\0".encode(), digest_size=_DIGEST_BYTES)
        digest.update(key.as_buffer())
        digests.append(digest.digest())
    return pa.array(digests, pa.binary(_DIGEST_BYTES))


def _newest(index: pa.Table) -> pa.Array:
    """Rows of the newest records, ascending."""
    for by, order in ((["partition", "key"], ["offset"]), (["key"], ["timestamp", "partition"])):
        index = index.sort_by([(name, "ascending") for name in order])
        numbered = index.select(by).append_column("at", pa.array(range(len(index)), pa.int64()))
        index = index.take(numbered.group_by(by).aggregate([("at", "max")])["at_max"])
    return index.sort_by("row")["row"].combine_chunks()


def _taken(target: Directory, names: Sequence[str], rows: pa.Array) -> Iterator[pa.RecordBatch]:
    """The records of these rows, in the files' order."""
    begin = 0
    for name in names:
        for batch in target.batches(name, _ROWS):
            end = begin + batch.num_rows
            chosen = rows[bisect_left(rows, begin, key=_number) : bisect_left(rows, end, key=_number)]
            if len(chosen):
                yield batch.take(pc.subtract(chosen, begin))
            begin = end


def _number(row: pa.Scalar) -> int:
    number: int = row.as_py()
    return number
