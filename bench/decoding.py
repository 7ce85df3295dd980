"""What decoding adds to a record: the calls of a worker on records in memory. `make bench-decoding`

    python -m bench.decoding [--rounds N] [--write]

No broker: only what stands between the client's message and the handler is measured, as CPU time of this thread, so
that neighbours disturb little. Of each form the best round counts; the decoder alone is measured beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pydantic
from confluent_kafka import Message
from rich.console import Console
from rich.table import Table

from bench.pages import write_section
from kunicorn.handler.call import calls_of
from kunicorn.handler.config import Decoding
from kunicorn.handler.load import Handler
from kunicorn.handler.record import Batch, Record

RECORDS = 1000
TURNS = 30


class PydanticOrder(pydantic.BaseModel):
    """The record as pydantic's model."""

    id: int
    customer: str
    total: float
    items: list[int]


class StructOrder(msgspec.Struct):
    """As msgspec's."""

    id: int
    customer: str
    total: float
    items: list[int]


@dataclasses.dataclass
class DataOrder:
    """As a dataclass."""

    id: int
    customer: str
    total: float
    items: list[int]


def plain(record: Record) -> None: ...
def pydantics(order: PydanticOrder) -> None: ...
def structs(order: StructOrder) -> None: ...
def with_record(order: StructOrder, record: Record) -> None: ...
def datas(order: DataOrder) -> None: ...
def batch(records: Batch) -> None: ...
def struct_batch(orders: list[StructOrder]) -> None: ...


def messages() -> list[Message]:
    """Some orders."""
    values = (
        orjson.dumps({"id": number, "customer": f"customer-{number}", "total": number / 8, "items": [1, 2, 3]})
        for number in range(RECORDS)
    )
    return [Message(topic="t", partition=0, offset=at, value=value, key=b"k") for at, value in enumerate(values)]


_HEAD = """\
`make bench-decoding`: what stands between the client's message and a handler that does nothing, CPU time of one
thread; an order of 70 bytes, the best of some rounds on two shared cores.
"""
JSON = Decoding(value="json")
_PYDANTIC = pydantic.TypeAdapter(PydanticOrder).validator.validate_json
FORMS: tuple[tuple[str, Callable[..., Any], str, Decoding, Callable[[bytes], Any] | None], ...] = (
    ("record", plain, "record", Decoding(), None),
    ("record, value = json", plain, "record", JSON, orjson.loads),
    ("pydantic model", pydantics, "record", Decoding(), _PYDANTIC),
    ("msgspec.Struct", structs, "record", Decoding(), msgspec.json.Decoder(StructOrder).decode),
    ("msgspec.Struct and record", with_record, "record", Decoding(), msgspec.json.Decoder(StructOrder).decode),
    ("dataclass", datas, "record", Decoding(), msgspec.json.Decoder(DataOrder).decode),
    ("batch", batch, "batch", Decoding(), None),
    ("batch, value = json", batch, "batch", JSON, orjson.loads),
    ("batch of msgspec.Struct", struct_batch, "batch", Decoding(), msgspec.json.Decoder(StructOrder).decode),
)
"""Name, handler, mode, decoding, and the decoder alone."""


def nanoseconds(call: Callable[[], Any]) -> float:
    """CPU time a record, of one go."""
    began = time.thread_time_ns()
    for _ in range(TURNS):
        call()
    return (time.thread_time_ns() - began) / TURNS / RECORDS


def measured(rounds: int) -> list[tuple[str, float, float]]:
    """Of each form: its name, nanoseconds a record, and those of its decoder alone."""
    some = messages()
    following, cells = range(1, RECORDS + 1), memoryview(array("q", [0]))
    raw = [message.value() for message in some]
    best: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for name, handle, mode, decoding, alone in FORMS:
            calls = calls_of(Handler(name, handle, is_async=False), mode, decoding)
            took = nanoseconds(lambda calls=calls: calls(some, following, cells, 0, []))  # type: ignore[misc]
            decoder = nanoseconds(lambda alone=alone: deque(map(alone, raw), maxlen=0)) if alone else 0.0  # type: ignore[misc]
            before = best.get(name, (took, decoder))
            best[name] = (min(before[0], took), min(before[1], decoder))
    return [(name, *figures) for name, figures in best.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoding", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    table = Table("form", "ns a record", "of that the decoder")
    lines = [_HEAD, "| the handler gets | ns a record | of that the decoder |", "|---|--:|--:|"]
    for name, took, alone in measured(options.rounds):
        table.add_row(name, f"{took:.0f}", f"{alone:.0f}")
        lines.append(f"| {name} | {took:.0f} | {alone:.0f} |")
    Console(width=100).print(table)
    if options.write:
        write_section("Decoding", "\n".join(lines))


if __name__ == "__main__":
    main()
