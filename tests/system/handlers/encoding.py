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


def total(order: Order, record: Record) -> Iterator[object]:
    """A model for the default topic, a Protobuf message made of a dict, and the record as it was."""
    yield Send(key={"id": order.id}, value=Total(order.id, order.by))
    yield Send(record.topic + ".proto", {"customer": order.by, "amount": order.id})
    yield Send.of(record, record.topic + ".copy")
