"""A fetcher made of the properties that librdkafka's consumer would get: they mean the same to both.

Small: whoever makes one has the properties and the security of a process of its own, a worker's or a job's.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random, random

from kunicorn.columns.decoding import MOST_UNPACKED, Decoder
from kunicorn.errors import ConfigError
from kunicorn.fetch.fetcher import ANSWER_SECONDS, Fetcher
from kunicorn.fetch.queue import FetchQueue
from kunicorn.fetch.requests import Limits
from kunicorn.fetch.table import BEHIND_DAMAGE, Fetching
from kunicorn.kafka.auth import Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.codec import MAX_FRAME_BYTES

Properties = Mapping[str, str | int | float | bool]

_CONNECT_SECONDS = 5.0
_PARTITION_BYTES = 1024 * 1024
"""librdkafka's max.partition.fetch.bytes."""
_WAIT_MS = 500
_KBYTE = 1024
_RANGES: Mapping[str, tuple[int, int]] = {
    "fetch.max.bytes": (0, 2_147_483_135),
    "fetch.min.bytes": (1, 100_000_000),
    "fetch.wait.max.ms": (0, 300_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "queued.max.messages.kbytes": (1, 2_097_151),
}
"""Those of librdkafka's CONFIGURATION.md. Beyond them a request could not be written, or a queue have no room, ever."""
MOST_ANSWER_BYTES = MAX_FRAME_BYTES - 10 * 1024 * 1024
"""A larger `fetch.max.bytes` counts as this: what is larger than a frame may be is taken for no answer of Kafka's, and
beside the records an answer has other fields, such as the aborted transactions of each partition."""
MAX_UNPACKED = 256 * 1024 * 1024
"""Bytes that one batch may unpack to. Brokers take a compressed one of a megabyte where nobody says otherwise."""


def is_read_committed(properties: Properties) -> bool:
    """Whether records of aborted transactions are left out."""
    return properties["isolation.level"] == "read_committed"


def _figure(properties: Properties, name: str, otherwise: int | None = None) -> int:
    """The property as a whole number. Raises `ConfigError` for what librdkafka refuses."""
    given = properties[name] if otherwise is None else properties.get(name, otherwise)
    least, most = _RANGES[name]
    try:
        figure = int(given)
    except ValueError:
        figure = -1
    if not least <= figure <= most:
        raise ConfigError(f"[kafka.librdkafka] {name!r} = {given!r}: give a whole number from {least} to {most}")
    return figure


def decoder_of(properties: Properties, made: type[Decoder], *, timestamp_types: bool = False) -> Decoder:
    """The decoder of that class for such a fetcher. It makes no more of an answer at once than the queue may hold.
    Raises `ConfigError`.
    """
    return made(
        read_committed=is_read_committed(properties),
        max_unpacked=MAX_UNPACKED,
        cut_at=min(_queue_bytes(properties), MOST_UNPACKED),
        timestamp_types=timestamp_types,
    )


def _queue_bytes(properties: Properties) -> int:
    return _figure(properties, "queued.max.messages.kbytes") * _KBYTE


def fetcher_of(
    properties: Properties, security: Security, decoder: Decoder, behind_damage: str = BEHIND_DAMAGE
) -> tuple[Fetcher, FetchQueue]:
    """The fetcher, its thread not begun, and what it fills. `behind_damage` as `Fetching` has it. Raises
    `ConfigError`.
    """

    def cluster() -> Cluster:
        return Cluster(
            str(properties["bootstrap.servers"]).split(","),
            client_id=str(properties["client.id"]),
            security=security,
            timeouts=Timeouts(request=ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            rng=Random(),
        )

    limits = Limits(
        _figure(properties, "fetch.wait.max.ms", _WAIT_MS),
        _figure(properties, "fetch.min.bytes", 1),
        min(_figure(properties, "fetch.max.bytes"), MOST_ANSWER_BYTES),
        is_read_committed(properties),
        str(properties.get("client.rack", "")),
    )
    of_partition = _figure(properties, "max.partition.fetch.bytes", _PARTITION_BYTES)
    queue = FetchQueue(_queue_bytes(properties), decoder.held)
    return Fetcher(cluster, Fetching(of_partition, random, behind_damage), decoder, limits, queue), queue
