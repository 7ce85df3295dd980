"""What decoding of Fetch responses to columns costs a record, by codec, and that of JSON. `make bench-columns`

    python -m bench.columns [--rounds N] [--write] [--json]

No broker: responses of a megabyte are made in memory, and decoded again and again. CPU time of this thread counts, so
that neighbours disturb little; of each codec the best round. Beside the compiled decoder stand a sketch in C that
checks the checksum and nothing else (bench/columns_sketch.c), and the reference in plain Python.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

import kunicorn_columns
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.pages import write_section
from kunicorn.columns import reference
from kunicorn.columns.decoding import Decoder
from kunicorn.handler.decode.json_columns import JsonReader
from tests.fakes import fetched

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ORDER_BYTES = 200
IN_A_BATCH = 16_000 // ORDER_BYTES
BATCHES = 64
RECORDS = IN_A_BATCH * BATCHES
TOPIC = b"orders-as-an-id!"
VERSION = 17
SKETCH = Path(__file__).parent / "columns_sketch.c"
TITLE = "Decoding to columns"
_HEAD = f"""\
`make bench-columns`: nanoseconds of CPU a record of decoding Fetch responses to Arrow columns, without a broker: JSON
orders of {ORDER_BYTES} bytes with keys, {IN_A_BATCH} in a batch, {BATCHES} batches in a response; one thread, the best
of some rounds on two shared cores. The sketch is C that trusts its input: it reckons the checksum and checks nothing
else.
"""


JSON_TITLE = "JSON to columns"
_JSON_HEAD = f"""\
`make bench-columns`: nanoseconds of CPU a value of reading JSON orders of {ORDER_BYTES} bytes to a column of structs;
one thread, {RECORDS:,} values at a time, the best of some rounds on two shared cores. All of a value is checked, also
what the schema leaves out. The orders have the same fields and as many items, by which the compiled reader is
[faster](columns.md#json). pyarrow's reader reads where that one is not installed.
"""
_ITEM = pa.struct([("sku", pa.string()), ("n", pa.int64())])
ONE_FIELD = pa.struct([("id", pa.int64())])
FIVE_FIELDS = pa.struct(
    [
        *ONE_FIELD,
        ("customer", pa.string()),
        ("items", pa.list_(_ITEM)),
        ("note", pa.string()),
        ("total", pa.float64()),
    ]
)


def order(number: int, rng: Random) -> bytes:
    """A JSON order of `ORDER_BYTES`."""
    items = [{"sku": f"{rng.randrange(10**8):08d}", "n": rng.randrange(9)} for _ in range(3)]
    plain = orjson.dumps({"id": number, "customer": f"customer-{rng.randrange(10**6)}", "items": items, "note": ""})
    words = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(ORDER_BYTES - len(plain)))
    return plain[:-2] + words.encode() + plain[-2:]


def batches(codec: str) -> bytes:
    """All of a response's."""
    rng = Random(1)
    found = []
    for place in range(BATCHES):
        numbers = range(place * IN_A_BATCH, (place + 1) * IN_A_BATCH)
        of = [fetched.record(at, order(n, rng), b"%012d" % n, time_delta=at) for at, n in enumerate(numbers)]
        found.append(fetched.batch(of, codec, base_offset=numbers[0]))
    return b"".join(found)


def response(codec: str) -> bytes:
    """A response of one partition."""
    return fetched.body(VERSION, {TOPIC: [fetched.partition(VERSION, 0, [batches(codec)])]})


def decoding(decoder_class: type[Decoder], body: bytes) -> Callable[[], int]:
    """A call that decodes the response from its beginning, and says how many rows it has."""
    decoder = decoder_class(read_committed=True, max_unpacked=64 << 20)

    def call() -> int:
        decoder.place(TOPIC, 0, "orders", 0)
        return len(pa.record_batch(decoder.decode(body, VERSION).rows))

    return call


@contextmanager
def sketch(data: bytes) -> Iterator[Callable[[], int]]:
    """A call that decodes the batches by the sketch, into buffers of its own each time."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "sketch.so"
        subprocess.run(["cc", "-O3", "-msse4.2", "-shared", "-fPIC", "-o", library, SKETCH], check=True)
        decode = ctypes.CDLL(str(library)).decode
        decode.restype = ctypes.c_int64
        decode.argtypes = [ctypes.c_char_p, ctypes.c_int64, *[ctypes.c_void_p] * 8]
        sizes = [8 * RECORDS, 8 * RECORDS, 4 * RECORDS + 4, 4 * RECORDS + 4, len(data), len(data)]

        def call() -> int:
            bits = (pa.allocate_buffer(RECORDS // 8 + 1) for _ in range(2))
            buffers = [*map(pa.allocate_buffer, sizes), *bits]
            found = int(decode(data, len(data), *(buffer.address for buffer in buffers)))
            strings = (buffers[6], buffers[2], buffers[4]), (buffers[7], buffers[3], buffers[5])
            columns = [pa.Array.from_buffers(pa.int64(), found, [None, each]) for each in buffers[:2]]
            columns += [pa.Array.from_buffers(pa.binary(), found, list(each)) for each in strings]
            return len(pa.RecordBatch.from_arrays(columns, ["offset", "timestamp", "key", "value"]))

        yield call


def nanoseconds(call: Callable[[], int], rounds: int, turns: int) -> float:
    """CPU time a record, of the best round."""
    # What is loaded at the first call is no record's.
    call()
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(turns):
            assert call() == RECORDS
        best = min(best, (time.thread_time_ns() - began) / turns / RECORDS)
    return best


def measured(rounds: int) -> Iterator[tuple[str, float, str, float, float]]:
    """Of each codec: compiled, the sketch, the reference, and bytes on the wire a record."""
    for codec in CODECS:
        body = response(codec)
        compiled = nanoseconds(decoding(kunicorn_columns.Decoder, body), rounds, 10)
        judge = nanoseconds(decoding(reference.Decoder, body), 1, 1)
        beside = "-"
        if codec == "none":
            with sketch(batches(codec)) as call:
                beside = f"{nanoseconds(call, rounds, 10):.0f}"
        yield codec, compiled, beside, judge, len(body) / RECORDS


def reading(kind: pa.StructType, values: pa.Array) -> Callable[[], int]:
    """A call that reads the values, and says how many they are."""
    reader = JsonReader(kind)
    return lambda: len(reader.read(values)[0])


def measured_json(rounds: int) -> Iterator[list[str]]:
    """Of some types: what is read, by the compiled reader, and by pyarrow's."""
    rng = Random(1)
    values = pa.array([order(number, rng) for number in range(RECORDS)], pa.binary())
    for name, kind in (("`id`, a number", ONE_FIELD), ("five fields, with a list of structs", FIVE_FIELDS)):
        compiled = reading(kind, values)
        with patch.dict(sys.modules, kunicorn_columns=None):
            judge = reading(kind, values)
        yield [name, *(f"{nanoseconds(call, rounds, 4):.0f}" for call in (compiled, judge))]


def measured_codecs(rounds: int) -> Iterator[list[str]]:
    """As `measured`, in cells."""
    for codec, compiled, beside, judge, wire in measured(rounds):
        yield [codec, f"{compiled:.0f}", beside, f"{judge:,.0f}", f"{wire:.0f}"]


def shown(title: str, intro: str, head: list[str], rows: Iterator[list[str]], write: bool) -> None:
    """Print the rows, and write them where that is asked for."""
    table = Table(*head)
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for cells in rows:
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console().print(table)
    if write:
        write_section(title, "\n".join([intro, *lines]))


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", action="store_true", help=f"into docs/benchmarks.md, {TITLE} and {JSON_TITLE}")
    parser.add_argument("--json", action="store_true", help="only JSON")
    given = parser.parse_args()
    if not given.json:
        head = ["codec", "compiled", "sketch in C", "reference", "bytes on the wire"]
        shown(TITLE, _HEAD, head, measured_codecs(given.rounds), given.write)
    shown(JSON_TITLE, _JSON_HEAD, ["what is read", "compiled", "pyarrow"], measured_json(given.rounds), given.write)


if __name__ == "__main__":
    main()
