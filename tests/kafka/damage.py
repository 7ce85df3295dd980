"""Logs whose bytes have rotted: a broker sends them as they are, checksums are the consumer's to check."""

from __future__ import annotations

from tests.kafka.broker import Broker

_HEADER_BYTES = 61
"""Of a record batch, in front of its records (Kafka's documentation, Implementation: Message Format)."""
_LENGTH_AT, _LENGTH_BYTES = 8, 4


def damage(broker: Broker, partition: str, batch: int) -> None:
    """Turn over a byte among the records of the batch of that number, counted from 0. `partition`: "orders-0"."""
    segment = next((broker.node.directory / "data" / partition).glob("*.log"))
    with segment.open("r+b") as file:
        content = file.read()
        at = 0
        for _ in range(batch):
            length = content[at + _LENGTH_AT : at + _LENGTH_AT + _LENGTH_BYTES]
            at += _LENGTH_AT + _LENGTH_BYTES + int.from_bytes(length, "big")
        place = at + _HEADER_BYTES + 10
        file.seek(place)
        file.write(bytes([content[place] ^ 0xFF]))
