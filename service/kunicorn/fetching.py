"""Ranges of offsets fetched by commands: with the workers' client properties, and without a group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Message, TopicPartition

from kunicorn.complaints import DAMAGED, REMEDY_OF_DAMAGE
from kunicorn.errors import ConfigError
from kunicorn.pipes.logins import Token

Range = tuple[str, int, int, int]
"""Topic, partition, first offset, and the end."""


class Damaged(ConfigError):
    """Some of it cannot be read. `found` is what came before that."""

    def __init__(self, text: str, found: Sequence[Message]) -> None:
        super().__init__(text)
        self.found = found


def fetch(
    client: Mapping[str, str | int | float | bool], token: Token | None, ranges: Sequence[Range], patience: float
) -> list[Message]:
    """The records in `ranges`, those behind an end that came along included.

    Gives up after `patience` seconds without a record. Raises `Damaged`. Blocks.
    """
    login = {}
    if token is not None:
        login["oauth_cb"] = lambda _: (token.value, token.expires_at, token.principal, token.extensions)
    consumer = Consumer({**client, **login})
    found: list[Message] = []
    try:
        ends = {(topic, number): end for topic, number, _, end in ranges}
        consumer.assign([TopicPartition(topic, number, first) for topic, number, first, _ in ranges])
        heard = time.monotonic()
        while ends and time.monotonic() - heard < patience:
            for message in consumer.consume(500, 0.2):
                if (error := message.error()) is None:
                    heard = time.monotonic()
                    found.append(message)
                elif error.code() in DAMAGED:
                    where = f"{message.topic()}-{message.partition()}"
                    raise Damaged(f"{where}: {error.str()}: {REMEDY_OF_DAMAGE}", found)
            # By position: an end may be a transaction's marker, which is no record.
            for place in consumer.position([TopicPartition(*each) for each in ends]):
                if place.offset >= ends[place.topic, place.partition]:
                    del ends[place.topic, place.partition]
    finally:
        consumer.close()
    return found
