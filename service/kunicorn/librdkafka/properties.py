"""librdkafka's properties for the consumers and producers of workers and jobs: those that kunicorn sets, and which of
the user's `[kafka.librdkafka]` are allowed. Pure.

Caller: the supervisor, which sends the result to its workers in `Configure`; commands and jobs for their own clients.
Names and meaning: librdkafka's CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kunicorn.errors import ConfigError

Property = str | int | float | bool

_SECURITY = "the supervisor's own connections would not have it; docs/security.md says what [kafka] can do instead"
_GROUP = "the supervisor is the group's member, the workers' clients never join; see [group]"
_OFFSETS = "only the supervisor commits, and only what is handled"

OWNED_PROPERTIES: Mapping[str, str] = {
    "bootstrap.servers": "set [kafka] bootstrap_servers",
    "metadata.broker.list": "set [kafka] bootstrap_servers",
    "client.id": "set [kafka] client_id",
    "client.rack": "set [kafka] client_rack",
    "isolation.level": "set [kafka] isolation_level",
    "group.id": "set [group] id",
    "group.instance.id": _GROUP,
    "group.protocol": _GROUP,
    "group.protocol.type": _GROUP,
    "group.remote.assignor": _GROUP,
    "partition.assignment.strategy": _GROUP,
    "session.timeout.ms": _GROUP,
    "heartbeat.interval.ms": _GROUP,
    "max.poll.interval.ms": _GROUP,
    "auto.offset.reset": "no start offset is guessed in a worker; set [group] auto_offset_reset",
    "enable.auto.commit": _OFFSETS,
    "auto.commit.enable": _OFFSETS,
    "auto.commit.interval.ms": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "offset.store.method": _OFFSETS,
    "enable.partition.eof": "the end of a partition is not a record, and nobody would read the event",
    "enable.metrics.push": "metrics are the supervisor's to publish, not the clients' to push to the broker (KIP-714)",
    **{
        name: f"set [kafka] {name.replace('.', '_')}, which the supervisor's own connections use, too"
        for name in (
            "security.protocol",
            "ssl.ca.location",
            "ssl.certificate.location",
            "ssl.key.location",
            "ssl.key.password",
            "ssl.endpoint.identification.algorithm",
            "sasl.mechanism",
            "sasl.username",
            "sasl.password",
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.oauthbearer.client.id",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.scope",
            "sasl.oauthbearer.extensions",
        )
    },
    "sasl.mechanisms": "set [kafka] sasl_mechanism, which the supervisor's own connections use, too",
    **dict.fromkeys(
        (
            "enable.ssl.certificate.verification",
            "ssl.ca.pem",
            "ssl.ca.certificate.stores",
            "ssl.certificate.pem",
            "ssl.key.pem",
            "ssl.keystore.location",
            "ssl.keystore.password",
            "ssl.engine.location",
            "ssl.providers",
            "sasl.kerberos.service.name",
            "sasl.kerberos.principal",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.keytab",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.method",
            "enable.sasl.oauthbearer.unsecure.jwt",
        ),
        _SECURITY,
    ),
    "statistics.interval.ms": "set [kafka] statistics_interval_ms",
}
"""Properties that [kafka.librdkafka] may not set, each with what to do instead, or why not."""

_BYTES_PER_MB = 1024 * 1024
_QUEUE_SHARE = 8
"""One eighth of the memory for prefetched values: librdkafka counts payload only, small records take many times it."""
_AHEAD_SHARE = 16
"""One sixteenth for records that wait for a free hand, or for their turn."""
_MIN_QUEUE_KBYTES, _MAX_QUEUE_KBYTES = 1024, 262_144
_MIN_FETCH_BYTES, _MAX_FETCH_BYTES = 131_072, 52_428_800
"""Less makes a fetch of every few hundred records; a larger record gets through alone whatever the limit (KIP-74)."""
_BASE_BYTES = 40 * _BYTES_PER_MB
"""What a worker takes before its first record."""
_MESSAGE_BYTES = 300
"""What librdkafka takes for a message besides its value (bench/memory.py)."""
_SMALL_RECORD_BYTES = 28
"""A record of 20 bytes in a batch: a response of such grows to twelve times its size, whatever the queue's limit. And
each broker has one on its way: three of them took a worker planned for 256 MB to 347 (bench/memory.py)."""
_MIN_MESSAGES, _MAX_MESSAGES = 10_000, 100_000
"""Fewer starve the handler; more bring no throughput, and 100,000 is librdkafka's own default."""
_RESPONSE_OVERHEAD = 512
"""librdkafka refuses `receive.message.max.bytes` below `fetch.max.bytes` and this."""
_DEFAULT_RECEIVE_BYTES = 100_000_000
_DEFAULT_MESSAGE_BYTES = 1_000_000
"""librdkafka refuses `fetch.max.bytes` below `message.max.bytes`, which only producers go by."""

_SOCKET_TIMEOUT_MS = 8_000
"""Until a broker counts as gone that does not answer. librdkafka gives a fetch up after this and the 500 ms for which
the broker may hold it, and looks once a second: within 10 s."""
_FETCH_WAIT_MARGIN_MS = 1_000
"""librdkafka wants `socket.timeout.ms` to be greater than `fetch.wait.max.ms` by so much."""


def _fetch_wait_ms(extra: Mapping[str, Property]) -> int:
    try:
        return int(extra.get("fetch.wait.max.ms", 0))
    except ValueError:
        return 0  # librdkafka refuses it, and says why.


def client_properties(  # noqa: PLR0913 - each is a setting, or a fact of the cluster
    *,
    bootstrap_servers: Sequence[str],
    client_id: str,
    group_id: str,
    isolation_level: str,
    client_rack: str | None,
    security: Mapping[str, str],
    extra: Mapping[str, Property],
    memory_per_worker_mb: int,
    brokers: int,
) -> dict[str, Property]:
    """The complete properties of a worker's consumer. `brokers`: how many may answer at a time, at least 1.

    `security` and `extra` have librdkafka's dotted names; `extra` is [kafka.librdkafka] and wins over what is only
    tuning here. `group_id` is the real group's, as ACLs are checked against it. Raises `ConfigError`.
    """
    _refuse_owned(extra)
    properties: dict[str, Property] = {
        **_memory(memory_per_worker_mb, brokers),
        # As Java's client has it: a broker sends what lies on its disk, damaged or not.
        "check.crcs": True,
        # The default of 1000 stalls a consumer that empties its queue faster than that.
        "fetch.queue.backoff.ms": 10,
        # With the default of 60 s a fetch that is never answered holds its partitions for that long.
        "socket.timeout.ms": max(_SOCKET_TIMEOUT_MS, _fetch_wait_ms(extra) + _FETCH_WAIT_MARGIN_MS),
        # The default of 10 s leaves workers without records long after an outage; this is the Java client's.
        "reconnect.backoff.max.ms": 1000,
        **security,
        **extra,
        "bootstrap.servers": ",".join(bootstrap_servers),
        "client.id": client_id,
        "group.id": group_id,
        "isolation.level": isolation_level,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Out of range is reported, never repaired silently: the supervisor decides by policy.
        "auto.offset.reset": "error",
        "enable.metrics.push": False,
        "enable.partition.eof": False,
    }
    if client_rack is not None:
        properties["client.rack"] = client_rack
    _fit_limits(properties)
    return properties


EVERY_CLIENTS = ("socket.", "broker.", "reconnect.", "ssl.", "sasl.", "api.", "connections.", "client.dns.", "debug")
"""Beginnings of the properties of [kafka.librdkafka] that are about connections, not about fetching."""
LARGEST_BYTES = 1_000_000_000
"""librdkafka's limit of `message.max.bytes`: how large a record may be is the topic's to say."""


_NEW_TOPIC_MS = 1000
"""So long a client waits for a topic that no broker knows, as it may be new. With librdkafka's default of 30 s one
output for a topic that is not there held up everything that was sent with it, and then failed as not acknowledged in
time."""


def letter_properties(
    *,
    bootstrap_servers: Sequence[str],
    client_id: str,
    security: Mapping[str, str],
    extra: Mapping[str, Property],
    delivery_timeout_ms: int,
) -> dict[str, Property]:
    """The complete properties of a producer of dead letters, and of those that `kunicorn dlq` sends back.

    `murmur2_random` is the Java client's partitioner: with librdkafka's own, keys would change their partitions.
    """
    return {
        **security,
        **{name: value for name, value in extra.items() if name.startswith(EVERY_CLIENTS)},
        "bootstrap.servers": ",".join(bootstrap_servers),
        "client.id": client_id,
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "message.max.bytes": LARGEST_BYTES,
        "delivery.timeout.ms": delivery_timeout_ms,
        # A letter is waited for: there is nothing to gather.
        "linger.ms": 0,
        "topic.metadata.propagation.max.ms": _NEW_TOPIC_MS,
        # `max.message.bytes` counts what is compressed: a record that its producer has compressed, and whose topic
        # takes just that, would never get into a dead-letter or retry topic, nor back.
        "compression.type": "zstd",
        "enable.metrics.push": False,
        # With broker defaults a producer's question for an unknown topic makes one, of one partition.
        "allow.auto.create.topics": False,
    }


def _memory(megabytes: int, brokers: int) -> dict[str, Property]:
    """Limits of the fetch queue, from a memory budget. They hold per client, over all its partitions, and are looked at
    before a fetch: one response per broker comes on top. Compressed records take as many times more as they were
    compressed.
    """
    share = megabytes * _BYTES_PER_MB // _QUEUE_SHARE
    spare = max(0, megabytes * _BYTES_PER_MB - _BASE_BYTES)
    response = spare * 4 // 5 // brokers * _SMALL_RECORD_BYTES // (_SMALL_RECORD_BYTES + _MESSAGE_BYTES)
    return {
        "queued.max.messages.kbytes": _clamp(share // 1024, _MIN_QUEUE_KBYTES, _MAX_QUEUE_KBYTES),
        "fetch.max.bytes": _clamp(response, _MIN_FETCH_BYTES, _MAX_FETCH_BYTES),
        "queued.min.messages": _clamp(spare // 4 // _MESSAGE_BYTES, _MIN_MESSAGES, _MAX_MESSAGES),
    }


def ahead_bytes(memory_per_worker_mb: int) -> int:
    """Bytes of records that a worker may take out of the client's queue ahead of its handlers."""
    return memory_per_worker_mb * _BYTES_PER_MB // _AHEAD_SHARE


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def _refuse_owned(extra: Mapping[str, Property]) -> None:
    for name, value in extra.items():
        if (instead := OWNED_PROPERTIES.get(name)) is not None:
            raise ConfigError(f"[kafka.librdkafka] {name!r} = {value!r} cannot be set here: {instead}")


def _size(properties: Mapping[str, Property], name: str) -> int:
    value = properties.get(name, 0)
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"[kafka.librdkafka] {name!r} = {value!r} is no number: give bytes") from None


def _fit_limits(properties: dict[str, Property]) -> None:
    """Raise dependent limits: librdkafka refuses, when the client is made, a fetch limit above the receive limit or
    below that of messages.
    """
    fetch = max(_size(properties, "fetch.max.bytes"), _size(properties, "message.max.bytes"))
    properties["fetch.max.bytes"] = fetch
    if fetch < _DEFAULT_MESSAGE_BYTES:
        properties.setdefault("message.max.bytes", fetch)
    if fetch + _RESPONSE_OVERHEAD > _DEFAULT_RECEIVE_BYTES:
        properties.setdefault("receive.message.max.bytes", fetch + _RESPONSE_OVERHEAD)


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
_IN_ORDER: Mapping[str, Property] = {"max.in.flight.requests.per.connection": 1}
"""Idempotence keeps the order of requests that are repeated; without it the next one overtakes, of librdkafka's million
that may be under way."""
_KEEPS_BROKERS: Mapping[str, Property] = {"metadata.recovery.strategy": "none"}
"""In transactions. A client that has lost all its connections at once forgets its brokers, and begins with
`bootstrap.servers` anew (KIP-899); a call that sends offsets then waits without end for a coordinator that is forgotten
(confluentinc/librdkafka 5511), and what was underway is aborted. Otherwise it connects again to those it knows by name,
and metadata tells it of others."""
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
    """The complete properties of a producer of outputs. `consumers_extra` is [kafka.librdkafka]: what of it is about
    connections applies here, too. `transactional_id` is None outside of transactions.
    """
    properties: dict[str, Property] = {
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
        "retry.backoff.max.ms": _RETRY_BACKOFF_MAX_MS,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": _NEW_TOPIC_MS,
        # How large a record may be is the topic's to say.
        "message.max.bytes": LARGEST_BYTES,
        **({} if acks == "all" else _IN_ORDER),
        **({} if transactional_id is None else _KEEPS_BROKERS),
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
