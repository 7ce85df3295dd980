"""Connections of commands that ask a few questions and end: with the service's own settings, without its processes."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from kunicorn import bearer
from kunicorn.clients import security_of, token_request
from kunicorn.pipes.messages import Token
from kunicorn.settings.sections import KafkaSettings
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.sasl import BearerToken

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds."""


async def fetch_token(kafka: KafkaSettings) -> Token | None:
    """The OAUTHBEARER token that the settings ask for, if they do. Raises `PeerError`, `ConfigError`."""
    return await asyncio.to_thread(bearer.fetch, token_request(kafka)) if kafka.uses_tokens else None


def open_cluster(kafka: KafkaSettings, token: Token | None) -> Cluster:
    """The cluster, nothing sent yet; the caller closes it. Raises `ConfigError`."""
    login = None if token is None else partial(BearerToken, token.value, token.extensions)
    return Cluster(
        kafka.bootstrap_servers,
        client_id=kafka.client_id,
        security=security_of(kafka, login),
        request_timeout=REQUEST_TIMEOUT,
        connect_timeout=CONNECT_TIMEOUT,
        rng=random.Random(),
    )
