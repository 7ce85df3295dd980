"""Records as a client fetches them."""

from __future__ import annotations

from confluent_kafka import Message


def messages(*offsets: int) -> list[Message]:
    return [Message(topic="orders", partition=3, offset=each, value=b"v", key=b"k") for each in offsets]
