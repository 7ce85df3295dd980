"""librdkafka's properties for the producers of workers that send what handlers return. Pure.

Caller: the supervisor, which sends the result in `Configure`. Names and meaning: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kunicorn.pipes.client import EVERY_CLIENTS, LARGEST_BYTES, Property

OWNED_BY_PRODUCING: Mapping[str, str] = {
    "transactional.id": "set [producing] transactional_id_prefix",
    "transaction.timeout.ms": "set [producing] transaction_timeout_ms",
    "acks": "set [producing] acks",
    "request.required.acks": "set [producing] acks",
    "enable.idempotence": "it follows from [producing] acks",
    "linger.ms": "set [producing] linger_ms",
    "queue.buffering.max.ms": "set [producing] linger_ms",
    "compression.type": "set [producing] compression_type",
    "compression.codec": "set [producing] compression_type",
    "delivery.timeout.ms": "set [producing] delivery_timeout_ms",
    "message.timeout.ms": "set [producing] delivery_timeout_ms",
    "queue.buffering.max.kbytes": "set [producing] buffer_memory",
    "queue.buffering.max.messages": "set [producing] buffer_memory, which bounds bytes",
    "partitioner": "keys would change their partitions: it is Java's, murmur2_random",
    "delivery.report.only.error": "what is delivered counts by the batch",
}
"""Beside those that no client may have: what [producing.librdkafka] may not set, each with what to do instead."""

_RETRY_BACKOFF_MS = 5
"""A broker that still writes a transaction's markers answers the next one's first request with
CONCURRENT_TRANSACTIONS; with librdkafka's default of 100 ms each transaction took 120 ms, with this 30."""
_RETRY_BACKOFF_MAX_MS = 1000
_KBYTE = 1024
_MOST_MESSAGES = 10_000_000
"""`buffer_memory` bounds what is on its way; the client's own limits shall never be met before it."""


def producer_properties(  # noqa: PLR0913 - each is a setting
    *,
    bootstrap_servers: Sequence[str],
    client_id: str,
    security: Mapping[str, str],
    consumers_extra: Mapping[str, Property],
    extra: Mapping[str, Property],
    transactional_id: str | None,
    transaction_timeout_ms: int,
    delivery_timeout_ms: int,
    linger_ms: int,
    compression_type: str,
    acks: str,
    buffer_memory: int,
) -> dict[str, Property]:
    """The complete properties. `consumers_extra` is [kafka.librdkafka]: what of it is about connections counts here,
    too. `transactional_id` is None outside of transactions.
    """
    properties: dict[str, Property] = {
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
        "retry.backoff.max.ms": _RETRY_BACKOFF_MAX_MS,
        "reconnect.backoff.max.ms": 1000,
        # How large a record may be is the topic's to say.
        "message.max.bytes": LARGEST_BYTES,
        **security,
        **{name: value for name, value in consumers_extra.items() if name.startswith(EVERY_CLIENTS)},
        **extra,
        "bootstrap.servers": ",".join(bootstrap_servers),
        "client.id": client_id,
        "acks": acks,
        "enable.idempotence": acks == "all",
        "partitioner": "murmur2_random",
        "compression.type": compression_type,
        "linger.ms": linger_ms,
        "delivery.timeout.ms": delivery_timeout_ms,
        "queue.buffering.max.kbytes": max(_KBYTE, 2 * buffer_memory // _KBYTE),
        "queue.buffering.max.messages": _MOST_MESSAGES,
        "delivery.report.only.error": True,
        "enable.metrics.push": False,
        # With broker defaults a producer's question for an unknown topic makes one, of one partition.
        "allow.auto.create.topics": False,
    }
    if transactional_id is not None:
        properties["transactional.id"] = transactional_id
        properties["transaction.timeout.ms"] = transaction_timeout_ms
        properties["delivery.timeout.ms"] = min(delivery_timeout_ms, transaction_timeout_ms)
    return properties
