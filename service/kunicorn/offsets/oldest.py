"""How old the oldest unhandled records are: one record of each partition is read, at its committed offset."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.clients import consumer_properties
from kunicorn.errors import ConfigError
from kunicorn.pipes.logins import Token
from kunicorn.records import Record
from kunicorn.settings import Settings
from kunicorn.topics import TopicPartition

_SMALL: Mapping[str, str | int] = {
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 16_384,
    "fetch.max.bytes": 1_048_576,
    "message.max.bytes": 1_048_576,
    "log_level": 0,
}
"""One record of each partition is wanted, not what a worker would prefetch."""


def timestamps(
    settings: Settings, token: Token | None, offsets: Mapping[TopicPartition, int], within: float
) -> dict[TopicPartition, int]:
    """Milliseconds since 1970 of the first record from each offset on. Joins no group, commits nothing. Blocks.

    A partition is missing whose record did not come `within` seconds or carries no time. Raises `ConfigError`.
    """
    if not offsets:
        return {}
    consumer = reader(settings, token, f"{settings.kafka.client_id}-lag", _SMALL)
    found: dict[TopicPartition, int] = {}
    missing = set(offsets)
    try:
        consumer.assign([Coordinates(tp.topic, tp.partition, offset) for tp, offset in offsets.items()])
        deadline = time.monotonic() + within
        while missing and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    continue
                record = Record.of(message)
                tp = TopicPartition(record.topic, record.partition)
                if tp in missing:
                    missing.discard(tp)
                    consumer.incremental_unassign([Coordinates(*tp)])
                    if record.timestamp is not None:
                        found[tp] = record.timestamp
    finally:
        consumer.close()
    return found


def reader(settings: Settings, token: Token | None, client_id: str, more: Mapping[str, str | int]) -> Consumer:
    """A consumer that joins nothing, with the workers' properties and `more`. Raises `ConfigError`."""
    own: dict[str, object] = {**consumer_properties(settings, client_id), **more}
    if token is not None:
        own["oauth_cb"] = lambda _: (token.value, token.expires_at, token.principal, token.extensions)
    try:
        return Consumer(own)
    except KafkaException as error:
        raise ConfigError(f"the Kafka client refuses its properties: {error.args[0].str()}; see [kafka]") from error
