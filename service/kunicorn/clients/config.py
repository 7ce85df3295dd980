"""Clients' properties and handlers' configurations, made of the settings in one place: what `check` tries is what `run`
uses, and the supervisor's connections use what the workers' clients do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from kunicorn.handler.config import (
    Batching,
    DeadLetterTarget,
    Decoding,
    Encoding,
    HandlerConfig,
    OutputEncoding,
    ProducingTarget,
    RateLimiting,
    Tracing,
)
from kunicorn.ipc.messages import FetchToken
from kunicorn.kafka.auth import BearerToken, Sasl, Security
from kunicorn.kafka.tls import Tls
from kunicorn.librdkafka.properties import client_properties, letter_properties, producer_properties
from kunicorn.settings import HandlerSettings, KafkaSettings, Settings
from kunicorn.settings.handler import completed, retry_topics_of, taken_topics
from kunicorn.settings.sections import BODY_SIZE, RECORD_KEY

S = TypeVar("S", bound=msgspec.Struct)

_TOKEN_TIMEOUT = 30.0
"""Seconds that a token's provider may take."""
_BYTES_PER_MB = 1024 * 1024
_WAITING_SHARE = 8
"""One eighth of a worker's memory for records that wait for a fuller batch; the client's queue has as much."""


def consumer_properties(settings: Settings, client_id: str, brokers: int = 1) -> Mapping[str, str | int | float | bool]:
    """librdkafka's properties for a worker's consumer of a cluster of `brokers` brokers, secrets included.

    Raises `ConfigError` for those a user may not set.
    """
    kafka = settings.kafka
    return client_properties(
        bootstrap_servers=kafka.bootstrap_servers,
        client_id=client_id,
        group_id=settings.group.id,
        isolation_level=kafka.isolation_level,
        client_rack=kafka.client_rack,
        security=security_properties(kafka),
        extra=dict(kafka.librdkafka),
        memory_per_worker_mb=settings.workers.memory_per_worker_mb,
        brokers=brokers,
    )


def dead_letter_target(settings: Settings, client_id: str, topic: str | None) -> DeadLetterTarget | None:
    """Target of dead letters (`topic`) and of records for retry topics, secrets included; None where there are
    neither.
    """
    kafka = settings.kafka
    if topic is None and not settings.retry_topics:
        return None
    properties = letter_properties(
        bootstrap_servers=kafka.bootstrap_servers,
        client_id=client_id,
        security=security_properties(kafka),
        extra=dict(kafka.librdkafka),
        delivery_timeout_ms=settings.dead_letters.delivery_timeout_ms,
    )
    return DeadLetterTarget(
        topic, settings.group.id, dict(properties), settings.dead_letters.headers, dict(settings.dead_letters.topics)
    )


def producing_target(settings: Settings, client_id: str, transactional_id: str) -> ProducingTarget | None:
    """Target of what handlers return, secrets included; None where it is not sent."""
    producing, kafka = settings.producing, settings.kafka
    if producing.delivery is None:
        return None
    properties = producer_properties(
        bootstrap_servers=kafka.bootstrap_servers,
        client_id=client_id,
        security=security_properties(kafka),
        consumers_extra=dict(kafka.librdkafka),
        extra=dict(producing.librdkafka),
        transactional_id=transactional_id if producing.in_transactions else None,
        transaction_timeout_ms=producing.transaction_timeout_ms,
        delivery_timeout_ms=producing.delivery_timeout_ms,
        linger_ms=producing.linger_ms,
        compression_type=producing.compression_type,
        acks=producing.acks,
        buffer_memory=producing.buffer_memory,
    )
    return ProducingTarget(
        delivery=producing.delivery,
        topic=producing.topic,
        group=settings.group.id,
        client=properties,
        max_records=producing.transaction_max_records if producing.in_transactions else _MOST_RECORDS,
        max_bytes=producing.buffer_memory,
        max_ms=producing.transaction_max_ms if producing.in_transactions else producing.linger_ms,
        encoding=encoding_of(settings),
    )


def encoding_of(settings: Settings) -> Encoding | None:
    """Encoders of outputs, secrets included; None where they are bytes. Raises `ConfigError` for the registry's
    password.
    """
    producing = settings.producing
    if not producing.encodes:
        return None
    return Encoding(
        msgspec.convert(producing, OutputEncoding, from_attributes=True),
        {each.topic: msgspec.convert(each, OutputEncoding, from_attributes=True) for each in producing.topics},
        registry_properties(settings),
    )


_MOST_RECORDS = 100_000
"""Handled and not acknowledged, at least once: so many are handled again if the worker is killed."""


def handler_configs(settings: Settings) -> list[HandlerConfig]:
    """Every handler, for the processes that call them: workers, trials. Maybe with secrets."""
    return [_handler_config(settings, handler) for handler in settings.every_handler]


def configs_of_jobs(settings: Settings) -> list[HandlerConfig]:
    """Likewise for jobs on Spark: they wait for nothing, so that retry topics are not for them."""
    return [msgspec.structs.replace(config, retry_topics=[]) for config in handler_configs(settings)]


def _handler_config(settings: Settings, handler: HandlerSettings) -> HandlerConfig:
    failures = tuple(completed(rule, handler) for rule in handler.failures)
    return msgspec.structs.replace(
        by_name(handler.model_copy(update={"failures": failures, "rate_limit": None}), HandlerConfig),
        decoding=decoding_of(settings, handler),
        rate_limit=_rate_limit_of(handler),
        batching=_batching_of(settings, handler),
        tracing=_tracing_of(settings),
        topics=taken_topics(handler, settings.group.id),
        retry_topics=list(retry_topics_of(handler, settings.group.id)),
    )


def _tracing_of(settings: Settings) -> Tracing | None:
    if not settings.tracing.enabled:
        return None
    asked = settings.tracing.optional_attributes
    return Tracing(settings.group.id, with_key=RECORD_KEY in asked, with_size=BODY_SIZE in asked)


def _rate_limit_of(handler: HandlerSettings) -> RateLimiting | None:
    if (limit := handler.rate_limit) is None:
        return None
    return RateLimiting(limit.per_second, limit.whole_burst, limit.per, limit.counts, limit.header)


def by_name(section: HandlerSettings, kind: type[S]) -> S:
    """The settings of a handler in their form for the wire: each field has the setting's name; the others, which are
    made of several settings, keep their defaults.
    """
    return msgspec.convert(section, kind, from_attributes=True)


def decoding_of(settings: Settings, handler: HandlerSettings) -> Decoding:
    """Decoders of values and keys, secrets included. Raises `ConfigError` for the registry's password."""
    return msgspec.structs.replace(by_name(handler, Decoding), schema_registry=registry_properties(settings))


def registry_properties(settings: Settings) -> dict[str, str | int | float | bool]:
    """confluent-kafka's configuration of the registry's client, secrets included; empty without a registry. Raises
    `ConfigError` for its password.
    """
    registry = settings.schema_registry
    given: dict[str, str | None] = {
        "url": registry.url,
        "ssl.ca.location": registry.ssl_ca_location,
        "ssl.certificate.location": registry.ssl_certificate_location,
        "ssl.key.location": registry.ssl_key_location,
        "basic.auth.user.info": f"{registry.username}:{registry.secret()}" if registry.username else None,
    }
    properties: dict[str, str | int | float | bool] = {k: v for k, v in given.items() if v is not None}
    if properties:
        # The record waits and asks again, so that the other partitions go on; the client itself would block them.
        properties |= {"timeout": registry.timeout_ms / 1000, "max.retries": 0}
    return properties


def _batching_of(settings: Settings, handler: HandlerSettings) -> Batching:
    """Bounds of a worker's batches beside their number of records."""
    memory = settings.workers.memory_per_worker_mb * _BYTES_PER_MB // _WAITING_SHARE
    return msgspec.structs.replace(by_name(handler, Batching), memory_bytes=memory)


def security_properties(kafka: KafkaSettings) -> dict[str, str]:
    """librdkafka's security properties: ours with dots for underscores. OAUTHBEARER's own are missing, as workers get
    their tokens from the supervisor.
    """
    values: dict[str, str | None] = {
        "security_protocol": kafka.security_protocol,
        "sasl_mechanism": kafka.sasl_mechanism,
    }
    if kafka.security_protocol.endswith("SSL"):
        names = (
            "ssl_ca_location",
            "ssl_certificate_location",
            "ssl_key_location",
            "ssl_endpoint_identification_algorithm",
        )
        values |= {name: getattr(kafka, name) for name in names}
        values["ssl_key_password"] = kafka.secret("ssl_key_password")
    if kafka.sasl_username is not None:
        values |= {"sasl_username": kafka.sasl_username, "sasl_password": kafka.secret("sasl_password")}
    return {name.replace("_", "."): value for name, value in values.items() if value is not None}


def tls_of(kafka: KafkaSettings) -> Tls:
    """Files and passwords of TLS; the key's password is read whenever the key is."""
    return Tls(
        ca_location=kafka.ssl_ca_location,
        certificate_location=kafka.ssl_certificate_location,
        key_location=kafka.ssl_key_location,
        key_password=partial(kafka.secret, "ssl_key_password"),
        verify_hostname=kafka.ssl_endpoint_identification_algorithm == "https",
    )


def security_of(kafka: KafkaSettings, bearer: Callable[[], BearerToken] | None) -> Security:
    """Security of the supervisor's connections. `bearer` gives the current token, where `uses_tokens`. Raises
    `ConfigError`.
    """
    tls = tls_of(kafka)
    sasl = None
    if kafka.sasl_mechanism is not None and bearer is not None:
        sasl = Sasl(kafka.sasl_mechanism, token=bearer)
    elif kafka.sasl_mechanism is not None:
        sasl = Sasl(
            kafka.sasl_mechanism,
            username=kafka.sasl_username or "",
            password=lambda: kafka.secret("sasl_password") or "",
        )
    return Security(kafka.security_protocol, tls, sasl)


def token_request(kafka: KafkaSettings) -> FetchToken:
    """Message to the token helper. Raises `ConfigError`."""
    extensions = (kafka.sasl_oauthbearer_extensions or "").split(",")
    return FetchToken(
        endpoint_url=kafka.sasl_oauthbearer_token_endpoint_url,
        client_id=kafka.sasl_oauthbearer_client_id,
        client_secret=kafka.secret("sasl_oauthbearer_client_secret"),
        scope=kafka.sasl_oauthbearer_scope,
        provider=kafka.sasl_oauthbearer_token_provider,
        extensions=dict(pair.split("=", 1) for pair in extensions if pair),
        path=[os.getcwd(), *sys.path],
        timeout=_TOKEN_TIMEOUT,
    )
