"""Connections of commands that ask a few questions and end: with the service's own settings, without its processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from kunicorn import bearer
from kunicorn.clients import security_of, token_request
from kunicorn.pipes.messages import Token
from kunicorn.settings.sections import KafkaSettings
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.error_codes import COORDINATOR_MOVED
from kunicorn.wire.errors import CoordinatorUnavailable
from kunicorn.wire.sasl import BearerToken

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds."""
_PATIENCE = 15.0
"""Seconds for a coordinator that moves or loads its offsets."""
_PAUSE = 0.5


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


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The coordinator's answer, waiting while it moves. Raises `CoordinatorUnavailable` and other `PeerError`s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        try:
            return await ask()
        except CoordinatorUnavailable as error:
            if error.error not in COORDINATOR_MOVED or loop.time() > deadline:
                raise
        await asyncio.sleep(_PAUSE)
