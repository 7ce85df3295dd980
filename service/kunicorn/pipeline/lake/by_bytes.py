"""Rows cut and joined by their bytes: what a reader holds follows from a bound, never from how large records are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch, halved until no piece has more bytes; a single row may have. Pure, copies nothing."""
    if batch.nbytes <= most_bytes or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from pieces(batch[:middle], most_bytes)
    yield from pieces(batch[middle:], most_bytes)


def joined(batches: Iterable[pa.RecordBatch], most_bytes: int, most_rows: int | None = None) -> Iterator[pa.Table]:
    """The rows in tables of at most so many bytes and rows; of more bytes where a single row has more. Pure."""
    some: list[pa.RecordBatch] = []
    size = rows = 0
    # Small ones, so that tables are nearly as large as they may be.
    for piece in (piece for batch in batches for piece in pieces(batch, most_bytes // 8) if piece.num_rows):
        if some and (size + piece.nbytes > most_bytes or (most_rows is not None and rows + piece.num_rows > most_rows)):
            yield pa.Table.from_batches(some)
            some, size, rows = [], 0, 0
        some.append(piece)
        size, rows = size + piece.nbytes, rows + piece.num_rows
    if some:
        yield pa.Table.from_batches(some)
