"""One command's session with the cluster: connections made of the service's settings, questions asked one after the
other. Blocks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from kunicorn.clients.config import security_of, token_request
from kunicorn.clients.oauth import request
from kunicorn.errors import ConfigError, FatalGroupError, PeerError, ServiceError
from kunicorn.group.reactions import COORDINATOR_MOVED
from kunicorn.ipc.messages import Token
from kunicorn.kafka.admin import Described, GroupAdmin
from kunicorn.kafka.auth import BearerToken
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.errors import AuthenticationFailed, BrokersUnreachable, CoordinatorUnavailable
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.settings import Settings
from kunicorn.settings.sections import KafkaSettings

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
"""Seconds."""
_PATIENCE = 15.0
"""Seconds for a coordinator that moves or loads its offsets."""
_PAUSE = 0.5


async def fetch_token(kafka: KafkaSettings) -> Token | None:
    """OAUTHBEARER token, if the settings ask for one. Raises `PeerError`, `ConfigError`."""
    return await asyncio.to_thread(request.fetch, token_request(kafka)) if kafka.uses_tokens else None


def open_cluster(kafka: KafkaSettings, token: Token | None) -> Cluster:
    """The cluster, with nothing sent yet; the caller closes it. Raises `ConfigError`."""
    # A command says by itself what failed, once, and does not try again.
    logging.getLogger("kunicorn.wire").setLevel(logging.CRITICAL)
    login = None if token is None else partial(BearerToken, token.value, token.extensions)
    return Cluster(
        kafka.bootstrap_servers,
        client_id=kafka.client_id,
        security=security_of(kafka, login),
        timeouts=Timeouts(request=REQUEST_TIMEOUT, connect=CONNECT_TIMEOUT),
        rng=random.Random(),
    )


class Visit:
    """One command's connections to the cluster and the group's coordinator. Each question is answered before the next
    line of the command runs, so that a person's Ctrl-C is never held back by an event loop.
    """

    def __init__(self, settings: Settings, cluster: Cluster, token: Token | None, runner: asyncio.Runner) -> None:
        self.settings = settings
        self.group_id = settings.group.id
        self.cluster = cluster
        self.token = token
        self.group = GroupAdmin(cluster, settings.group.id, REQUEST_TIMEOUT)
        self._runner = runner

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Result of the question, asked again while the coordinator moves. Raises `PeerError`. Blocks."""
        return self._runner.run(patiently(question))

    def refused(self, error: int, what: str) -> ServiceError:
        """Error for a refusal by the coordinator: what happened, to what, and what to do."""
        return FatalGroupError(f"group {self.group_id!r}: {what}: {_with_remedy(error)}")

    def described(self) -> Described:
        """The group with its members; one that does not exist has the error `GROUP_ID_NOT_FOUND`. Raises
        `FatalGroupError` where it may not be read.
        """
        group = self.ask(self.group.describe)
        if group.error and group.error != ErrorCode.GROUP_ID_NOT_FOUND:
            raise self.refused(group.error, group.why or "its members cannot be read")
        return group


@contextmanager
def visiting(settings: Settings, when_lost: str = "try again") -> Iterator[Visit]:
    """A visit, whose failures are worded by the settings at fault.

    Raises `ConfigError` if no broker answers or lets us in; `FatalGroupError` if the group refuses. `when_lost`: what
    to do when the connection broke in the middle.
    """
    group_id = settings.group.id
    try:
        with asyncio.Runner() as runner:
            token = runner.run(fetch_token(settings.kafka))
            cluster = open_cluster(settings.kafka, token)
            try:
                yield Visit(settings, cluster, token, runner)
            finally:
                runner.run(cluster.close())
    except BrokersUnreachable as failure:
        raise ConfigError(unreached(failure)) from failure
    except AuthenticationFailed as failure:
        raise ConfigError(str(failure)) from failure
    except CoordinatorUnavailable as failure:
        raise FatalGroupError(f"group {group_id!r}: {failure}: {_with_remedy(failure.error)}") from failure
    except PeerError as failure:
        raise ConfigError(f"group {group_id!r}: {failure}; {when_lost}") from failure


def unreached(failure: PeerError) -> str:
    """Why no broker answers, and what to do; a failure that names a setting itself is given as it is."""
    text = str(failure)
    return text if "security_protocol" in text else f"{text}; correct kafka.bootstrap_servers, or start them"


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


def _with_remedy(error: int) -> str:
    return f"{describe(error)}; {fault(error).remedy(rights='DESCRIBE and READ')}"
