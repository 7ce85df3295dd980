"""What the form of a value costs an export and the data source: raw, found to be JSON, or columns by a schema.
`make bench-lake-columns`

    python -m bench.lake_columns [--rounds N] [--write]

No broker: records as our own fetcher has decoded them are made columns of a lake, and a Parquet file in memory, again
and again. CPU time of this thread counts, so that neighbours disturb little; of each form the best round, and all forms
take turns in every round.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from typing import Any

import kunicorn_columns
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.columns import ORDER_BYTES, RECORDS, TOPIC, VERSION, response
from bench.pages import write_section
from kunicorn.handler.config import Decoding
from kunicorn.handler.messages import Run
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import parquet_writer

TURNS = 5
TITLE = "The value's form in a lake"
ITEM = pa.struct([("sku", pa.string()), ("n", pa.int64())])
ORDER = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("items", pa.list_(ITEM)), ("note", pa.string())])
"""Every field of an order."""
FEW = pa.schema([("id", pa.int64()), ("customer", pa.string())])
FORMS = {
    "`bytes`: raw": Form(),
    "`text`: found to be UTF-8": Form(value="text"),
    "`json`: found to be JSON, kept as text": Form(value="json"),
    "`json` by a schema of two of its fields": Form(value="json", columns_of=f"{__name__}:FEW"),
    "`json` by a schema of all its fields": Form(value="json", columns_of=f"{__name__}:ORDER"),
}
_RAW = next(iter(FORMS))
_HEAD = f"""\
`make bench-lake-columns`: nanoseconds of CPU a record between a decoded Fetch response and a lake, without a broker:
JSON orders of {ORDER_BYTES} bytes with keys, {RECORDS:,} at a time; one thread, the best of some rounds in which all
forms take turns. *Columns* is what `kunicorn pipeline export` and the data source do alike. *With Parquet* is an
export's task without its fetching. The ratio is to raw values in the same run.
"""


def fetched() -> Run:
    """Orders, as the fetcher gives them to a task."""
    decoder = kunicorn_columns.Decoder(read_committed=True, max_unpacked=64 << 20, timestamp_types=True)
    decoder.place(TOPIC, 0, "orders", 0)
    found: Any = decoder.decode(response("none"), VERSION)
    run: Run = found.rows.cut(0, RECORDS, 0)
    return run


def to_columns(form: Form, run: Run) -> Callable[[], pa.RecordBatch]:
    """A call that makes the columns."""
    columns = form.columns(Decoding())
    return lambda: columns.batch(run)


def to_parquet(form: Form, run: Run) -> Callable[[], pa.RecordBatch]:
    """A call that makes the columns, and a file of them as an export writes it."""
    columns = to_columns(form, run)

    def call() -> pa.RecordBatch:
        batch = columns()
        with parquet_writer(io.BytesIO(), batch.schema) as writer:
            writer.write_batch(batch)
        return batch

    return call


def nanoseconds(call: Callable[[], pa.RecordBatch]) -> float:
    """CPU time a record."""
    began = time.thread_time_ns()
    for _ in range(TURNS):
        assert call().num_rows == RECORDS
    return (time.thread_time_ns() - began) / TURNS / RECORDS


def measured(rounds: int) -> list[tuple[str, float, float]]:
    """Of each form: its name, and the best of columns and of columns with Parquet."""
    run = fetched()
    calls = {name: (to_columns(form, run), to_parquet(form, run)) for name, form in FORMS.items()}
    best = {name: [float("inf"), float("inf")] for name in FORMS}
    for number in range(rounds + 1):
        for name, each in calls.items():
            took = map(nanoseconds, each)
            if number:  # What is loaded in the first round is no record's.
                best[name] = list(map(min, best[name], took))
            else:
                list(took)
    return [(name, columns, parquet) for name, (columns, parquet) in best.items()]


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.lake_columns", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"into docs/benchmarks.md, section {TITLE}")
    options = parser.parse_args()
    found = measured(options.rounds)
    raw = next(each for each in found if each[0] == _RAW)
    head = ["form of the value", "columns ns", "ratio", "with Parquet ns", "ratio"]
    table = Table(*head)
    lines = [_HEAD, f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|"]
    for name, columns, parquet in found:
        row = [name, f"{columns:.0f}", f"{columns / raw[1]:.1f}", f"{parquet:.0f}", f"{parquet / raw[2]:.2f}"]
        table.add_row(*row)
        lines.append(f"| {' | '.join(row)} |")
    Console(width=120).print(table)
    if options.write:
        write_section(TITLE, "\n".join(lines))


if __name__ == "__main__":
    main()
