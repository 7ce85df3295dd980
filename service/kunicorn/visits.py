"""The cluster for commands that ask a few questions and end: the service's own settings, without its processes."""

from __future__ import annotations

import random

from kunicorn.clients import security_for_a_while
from kunicorn.settings.sections import KafkaSettings
from kunicorn.wire.cluster import Cluster

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds."""


async def open_cluster(kafka: KafkaSettings) -> Cluster:
    """Nothing is sent to a broker yet; the caller closes it.

    Raises `ConfigError`; `PeerError` where the settings ask for a token and there is none.
    """
    return Cluster(
        kafka.bootstrap_servers,
        client_id=kafka.client_id,
        security=await security_for_a_while(kafka),
        request_timeout=REQUEST_TIMEOUT,
        connect_timeout=CONNECT_TIMEOUT,
        rng=random.Random(),
    )
