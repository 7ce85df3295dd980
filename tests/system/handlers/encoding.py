"""A handler that takes Avro and returns models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kunicorn import Record, Send


@dataclass
class Order:
    """What comes in."""

    id: int
    by: str


@dataclass
class Total:
    """What goes out."""

    id: int
    customer: str


LATE = 50
"""Records from this number on go to another topic, whose schema is asked for then."""


def numbered(record: Record) -> Send:
    """A model with the record's number."""
    number = int(record.value or b"0")
    return Send(f"{record.topic}.{'late' if number >= LATE else 'out'}", value=Total(number, f"customer {number}"))


def total(order: Order, record: Record) -> Iterator[object]:
    """A model for the default topic, a Protobuf message made of a dict, and the record as it was."""
    yield Send(key={"id": order.id}, value=Total(order.id, order.by))
    yield Send(record.topic + ".proto", {"customer": order.by, "amount": order.id})
    yield Send.of(record, record.topic + ".copy")
