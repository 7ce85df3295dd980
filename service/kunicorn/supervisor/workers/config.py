"""A worker's configuration message: the settings, as far as they concern it. Pure, but for secrets' files. Small, as
the testing kit configures its worker by it and loads nothing else of the supervisor.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kunicorn.clients.config import consumer_properties, dead_letter_target, handler_configs, producing_target
from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc.messages import Configure, Token
from kunicorn.librdkafka.properties import ahead_bytes
from kunicorn.settings import Settings


def configure(
    settings: Settings,
    worker: int,
    topics: Sequence[str],
    token: Token | None,
    brokers: int,
    transactional_id: str = "",
    share: float = 1.0,
    cluster_id: str = "",
) -> Configure:
    """The first message of the worker of that number, in a cluster of so many brokers. `share`: of the rates that
    workers have together. `cluster_id`: empty where the brokers tell none. Raises `ConfigError`.
    """
    client_id = f"{settings.kafka.client_id}-worker-{worker}"
    return Configure(
        worker=worker,
        group=settings.group.id,
        handlers=[_traced(_shared(config, share), client_id, cluster_id) for config in handler_configs(settings)],
        client={**consumer_properties(settings, client_id, brokers), **_statistics(settings)},
        token=token,
        topics=list(topics),
        ahead_bytes=ahead_bytes(settings.workers.memory_per_worker_mb),
        dead_letters=dead_letter_target(settings, f"{client_id}-dead-letters", settings.dead_letter_topic),
        producing=producing_target(settings, f"{client_id}-producer", transactional_id),
        fetcher=settings.kafka.fetcher,
        log_level=settings.log.level,
        log_format=settings.log.format,
    )


def _shared(config: HandlerConfig, share: float) -> HandlerConfig:
    if config.rate_limit is None or not config.rate_limit.is_shared:
        return config
    return msgspec.structs.replace(config, rate_limit=config.rate_limit.shared(share))


def _traced(config: HandlerConfig, client_id: str, cluster_id: str) -> HandlerConfig:
    if config.tracing is None:
        return config
    tracing = msgspec.structs.replace(config.tracing, client_id=client_id, cluster_id=cluster_id)
    return msgspec.structs.replace(config, tracing=tracing)


def _statistics(settings: Settings) -> dict[str, int]:
    """The interval of librdkafka's statistics, for workers only: no command reads them."""
    interval = settings.kafka.statistics_interval_ms
    return {"statistics.interval.ms": interval} if interval else {}
