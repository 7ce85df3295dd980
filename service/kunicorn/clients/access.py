"""Clients of a Spark process (driver or executor), made of the settings that this process itself has read, and those of
a command.

Secrets never leave the process: neither Spark's partitions nor its settings carry any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from kunicorn.clients.column_reader import BEHIND_DAMAGE, ColumnReader
from kunicorn.clients.config import consumer_properties, dead_letter_target, token_request
from kunicorn.clients.oauth import request
from kunicorn.clients.session import JOB_PATIENCE, cluster_session, command_security
from kunicorn.columns.decoding import compiled
from kunicorn.errors import ConfigError, PeerError
from kunicorn.fetch.properties import decoder_of, fetcher_of
from kunicorn.ipc.messages import Token
from kunicorn.librdkafka.errors import librdkafka, log_client_error
from kunicorn.positions import Edges, TopicPartition
from kunicorn.settings import KafkaSettings, Settings
from kunicorn.settings.handler import default_topic

T = TypeVar("T")

_CLIENT = "pipeline"
_FETCH_WAIT_MS = 20
_STATISTICS_MS = 10_000
_FRUGAL = {"connections.max.idle.ms": 60_000}
"""A process of a job comes to every partition in time: thousands of processes would keep connections to all brokers."""
_FETCH_BYTES = 4 * 1024 * 1024
"""One partition is fetched at a time: at the default of 1 MB for each, brokers took half as much again for a record."""


@dataclass(frozen=True, slots=True)
class Access:
    """Factory of confluent-kafka clients. Every method raises `ConfigError` where librdkafka refuses the properties."""

    settings: Settings

    @property
    def kafka(self) -> KafkaSettings:
        return self.settings.kafka

    def consumer(self, fetched: Callable[[str], None] | None = None) -> Consumer:
        """Consumer for ranges: assigned by hand, a member of no group; it reports where a partition ends, and tells
        `fetched` its statistics.
        """
        properties = consumer_properties(self.settings, f"{self.kafka.client_id}-{_CLIENT}")
        own = {**_FRUGAL, **fetch_tuning(properties), **properties, "enable.partition.eof": True, **self._callbacks()}
        if fetched is not None:
            own = {"statistics.interval.ms": _STATISTICS_MS, **own, "stats_cb": fetched}
        return made(lambda: Consumer(own, logger=librdkafka))

    def columns(self, *, timestamp_types: bool = False, **reading: Any) -> ColumnReader:
        """Reader of ranges as columns, its fetcher begun; where they end and what is read is as with `consumer`.
        `timestamp_types` as the decoder has it, `reading` as `ColumnReader`.

        Raises `ConfigError` where pyarrow or the compiled decoder is missing.
        """
        properties = consumer_properties(self.settings, f"{self.kafka.client_id}-{_CLIENT}")
        own = {**fetch_tuning(properties), **properties}
        made = decoder_of(own, compiled(), timestamp_types=timestamp_types)
        fetcher, queue = fetcher_of(own, command_security(self.kafka), made, BEHIND_DAMAGE)
        fetcher.start()
        return ColumnReader(fetcher, queue, self._edges, **reading)

    def _edges(self, tp: TopicPartition) -> Edges:
        with cluster_session(self.settings, patience=JOB_PATIENCE) as session:
            if tp.partition >= session.count(tp.topic):
                raise ConfigError(f"there is no partition {tp}: was its topic deleted?")
            return session.edges([tp])[tp]

    def letters(self) -> Producer:
        """Producer of dead letters: every in-sync replica acknowledges, and keys go where Java's partitioner puts
        them.
        """
        topic = self.settings.dead_letter_topic or default_topic(self.settings.group.id)
        target = dead_letter_target(self.settings, f"{self.kafka.client_id}-{_CLIENT}-dead-letters", topic)
        assert target is not None
        own = {**target.client, "linger.ms": 5, **self._callbacks()}
        return made(lambda: Producer(own, logger=librdkafka))

    def log_in(self, client: Consumer | Producer) -> None:
        """Give the client the current password for its next connections: the file may be rotated while a job runs.

        Caller: whoever uses one client again and again, before each use. Reads a file at most.
        """
        if self.kafka.sasl_username is not None:
            client.set_sasl_credentials(self.kafka.sasl_username, self.kafka.secret("sasl_password") or "")

    def _callbacks(self) -> dict[str, Any]:
        return {"error_cb": log_client_error, **token_renewal(self.kafka)}


def fetch_tuning(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties for a client that reads one partition after the other, without those that [kafka.librdkafka] sets.
    Pure.
    """
    return {
        # A fetch behind the log's end waits at the broker, and the next range's first fetch waits behind it.
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "max.partition.fetch.bytes": min(_FETCH_BYTES, int(properties["fetch.max.bytes"])),
    }


def range_consumer(properties: Mapping[str, Any], token: Token | None) -> Consumer:
    """Consumer for a `RangeReader`, of a process that ends soon and has its token. Raises `ConfigError`."""
    own = {**properties, "enable.partition.eof": True, "log_level": 0, **token_login(token)}
    return made(lambda: Consumer(own))


def token_renewal(kafka: KafkaSettings) -> dict[str, Any]:
    """Properties with which a client asks for a token, and for the next one when 80 % of its life are over."""
    if not kafka.uses_tokens:
        return {}

    def login(_: str | None) -> tuple[str, float, str, dict[str, str]]:
        try:
            token = request.fetch(token_request(kafka))
        except PeerError as error:
            raise RuntimeError(f"no OAUTHBEARER token: {error}") from error
        return token.value, token.expires_at, token.principal, token.extensions

    return {"oauth_cb": login}


def token_login(token: Token | None) -> dict[str, Any]:
    """Properties with which a client gives that token."""
    if token is None:
        return {}
    return {"oauth_cb": lambda _: (token.value, token.expires_at, token.principal, token.extensions)}


def made(make: Callable[[], T]) -> T:
    """The client. Raises `ConfigError` where librdkafka refuses its properties."""
    try:
        return make()
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigError(f"the Kafka client refuses its properties: {error}; see [kafka]") from error
