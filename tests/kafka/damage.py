"""Logs whose bytes have rotted: a broker sends them as they are, checksums are the consumer's to check."""

from __future__ import annotations

from tests.kafka.broker import Broker

_HEADER_BYTES = 61
"""Of a record batch, in front of its records (Kafka's documentation, Implementation: Message Format)."""
_OFFSET_BYTES, _LENGTH_BYTES = 8, 4


def damage(broker: Broker, partition: str, begins: int) -> None:
    """Turn over a byte among the records of the batch that begins with that offset; one does where its record was sent
    behind a flush, into however many batches the producer has put those before. `partition`: "orders-0"."""
    segment = next((broker.node.directory / "data" / partition).glob("*.log"))
    with segment.open("r+b") as file:
        content = file.read()
        at = 0
        while int.from_bytes(content[at : at + _OFFSET_BYTES], "big") != begins:
            length = content[at + _OFFSET_BYTES : at + _OFFSET_BYTES + _LENGTH_BYTES]
            at += _OFFSET_BYTES + _LENGTH_BYTES + int.from_bytes(length, "big")
            assert at < len(content), f"no batch of {partition} begins with offset {begins}"
        place = at + _HEADER_BYTES + 10
        file.seek(place)
        file.write(bytes([content[place] ^ 0xFF]))
