"""What template and workers are told first: the settings, as far as they concern them. Pure but for secrets' files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kunicorn.clients import (
    batching_of,
    consumer_properties,
    dead_letter_target,
    decoding_of,
    failure_rules,
    producing_target,
    tracing_of,
)
from kunicorn.pipes.client import ahead_bytes
from kunicorn.pipes.messages import Configure, Preload, Token
from kunicorn.settings import Settings


def preload(settings: Settings) -> Preload:
    """The template's first message."""
    return Preload(
        entrypoint=settings.handler.entrypoint,
        path=[os.getcwd(), *sys.path],
        supervisor=os.getpid(),
        log_level=settings.log.level,
        log_format=settings.log.format,
    )


def configure(
    settings: Settings,
    worker: int,
    topics: Sequence[str],
    token: Token | None,
    brokers: int,
    transactional_id: str = "",
) -> Configure:
    """The first message of the worker of that number, in a cluster of so many brokers. Raises `ConfigError`."""
    kafka, handler = settings.kafka, settings.handler
    return Configure(
        worker=worker,
        entrypoint=handler.entrypoint,
        mode=handler.mode,
        options=dict(handler.options),
        client={
            **consumer_properties(settings, f"{kafka.client_id}-worker-{worker}", brokers),
            **_statistics(settings),
        },
        token=token,
        topics=list(topics),
        batch_max_records=handler.batch_max_records,
        ordering=handler.ordering,
        concurrency=handler.concurrency,
        ahead_bytes=ahead_bytes(settings.workers.memory_per_worker_mb),
        retry_attempts=handler.max_attempts,
        retry_backoff_ms=handler.retry_backoff_ms,
        retry_backoff_max_ms=handler.retry_backoff_max_ms,
        retry_timeout_ms=handler.retry_timeout_ms,
        on_failure=handler.on_failure,
        failures=failure_rules(handler),
        dead_letters=dead_letter_target(
            settings, f"{kafka.client_id}-worker-{worker}-dead-letters", settings.dead_letter_topic
        ),
        producing=producing_target(settings, f"{kafka.client_id}-worker-{worker}-producer", transactional_id),
        decoding=decoding_of(settings),
        batching=batching_of(settings),
        tracing=tracing_of(settings),
        log_level=settings.log.level,
        log_format=settings.log.format,
    )


def _statistics(settings: Settings) -> dict[str, int]:
    """Only for workers: nobody would read those of a command's client."""
    interval = settings.kafka.statistics_interval_ms
    return {"statistics.interval.ms": interval} if interval else {}
