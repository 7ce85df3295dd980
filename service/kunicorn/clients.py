"""From the settings to the clients they describe, in one place: what `check` tries is what `run` uses."""

from __future__ import annotations

from collections.abc import Mapping

from kunicorn.pipes.client import client_properties
from kunicorn.settings import Settings


def consumer_properties(settings: Settings, client_id: str) -> Mapping[str, str | int | float | bool]:
    """librdkafka's properties for a worker's consumer. Raises `ConfigError` for those a user may not set."""
    kafka = settings.kafka
    return client_properties(
        bootstrap_servers=kafka.bootstrap_servers,
        client_id=client_id,
        group_id=settings.group.id,
        isolation_level=kafka.isolation_level,
        client_rack=kafka.client_rack,
        security={"security.protocol": kafka.security_protocol},
        extra=dict(kafka.librdkafka),
        memory_per_worker_mb=settings.workers.memory_per_worker_mb,
    )
