"""What the service has of the brokers: its connections, its login, and the topics as they are known."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping

from kunicorn.clients.config import security_of, token_request
from kunicorn.errors import Backoff, ConfigError, PeerError
from kunicorn.group.errors import ErrorCode
from kunicorn.ipc.messages import Password, Token
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.codec import describe
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.kafka.metadata import TopicInfo
from kunicorn.observe import logs
from kunicorn.settings import Settings
from kunicorn.supervisor.credentials import Tokens, watch_password
from kunicorn.supervisor.offsets.start_offsets import Brokers
from kunicorn.supervisor.topics import Topics

log = logs.get("kunicorn")

_CONNECT_TIMEOUT = 5.0
_KINDS: Mapping[str, str] = {
    "dead_letters.topic": "dead-letter topic",
    "producing.topic": "output topic",
    "handler.retry_topic": "retry topic",
}
"""Topics that are written to, by the setting that names them."""


class Connections:
    """One set for the service's whole life. Nothing is opened before `reach`."""

    def __init__(self, settings: Settings, share: Callable[[Token | Password], None]) -> None:
        """`share` passes a new login on to the workers."""
        self.unreached: str | None = "starting"
        """Why no broker has answered yet."""
        self._settings = settings
        self._share = share
        kafka, group = settings.kafka, settings.group
        rng = random.Random()
        self.tokens = Tokens(token_request(kafka), share) if kafka.uses_tokens else None
        self.cluster = Cluster(
            kafka.bootstrap_servers,
            client_id=kafka.client_id,
            security=security_of(kafka, self.tokens.bearer if self.tokens is not None else None),
            request_timeout=kafka.request_timeout_ms / 1000,
            connect_timeout=_CONNECT_TIMEOUT,
            rng=rng,
        )
        self._backoff = Backoff(kafka.retry_backoff_ms / 1000, max(kafka.retry_backoff_max_ms / 1000, 5.0), rng)
        wanted = settings.assign.wanted.topics or settings.subscribed_topics
        self.topics = Topics(wanted, self.cluster, brokers_match=group.group_protocol == "consumer")
        self.coordinator = Coordinator(self.cluster, group.id)
        self.brokers = Brokers(settings, self.cluster, self.coordinator, self.topics)

    @property
    def refusal(self) -> str | None:
        """Why the brokers do not let us in; None if they do, as far as is known."""
        return (self.tokens.problem if self.tokens is not None else None) or self.cluster.refusal

    def logins(self) -> Iterator[Awaitable[None]]:
        """What keeps the login valid, to be run from the start on."""
        if self.tokens is not None:
            yield self.tokens.keep()
        if self._settings.kafka.sasl_password_file is not None:
            yield watch_password(self._settings.kafka, self._share)

    async def reach(self) -> None:
        """Go round the bootstrap servers until one answers, however long that takes.

        Raises `ConfigError` for topics that are not there, or not ours to read.
        """
        if self.tokens is not None:
            await self.tokens.first()
        while True:
            try:
                await self.topics.refresh(self._settings.other_topics)
            except AuthenticationFailed as error:
                # Told by the cluster, once: credentials may be being rotated, so it is tried on.
                self.unreached = str(error)
                await asyncio.sleep(self._backoff.next())
            except PeerError as error:
                wait = self._backoff.next()
                self.unreached = f"no broker answers: {error}"
                log.warning(f"no broker answers, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)
            else:
                break
        _refuse_others(self._settings.other_topics, self.cluster.metadata.topics)
        _refuse_missing(self.topics, "assign.partitions" if self._settings.assigned else "group.topics")
        self.unreached = None

    def owns(self, pid: int) -> bool:
        """Whether the process is the token's helper, whose exit is watched there."""
        return self.tokens is not None and self.tokens.owns(pid)

    async def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(PeerError):
            await self.cluster.close()


def _refuse_others(named: Mapping[str, str], known: Mapping[str, TopicInfo]) -> None:
    """Raises `ConfigError` for a topic, of these by the setting that names it, that cannot be written to."""
    for name, setting in named.items():
        info = known.get(name)
        kind = _KINDS[setting]
        if info is None or info.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(
                f"{kind} {name!r} does not exist on this cluster: create it, or correct "
                f"{setting}; it is never created by itself"
            )
        if info.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            why = describe(info.error)
            raise ConfigError(f"{kind} {name!r}: {why}: this user needs DESCRIBE and WRITE on it")


def _refuse_missing(topics: Topics, setting: str) -> None:
    """Raises `ConfigError` for a topic, wanted by that setting, that cannot be read."""
    for name, code in topics.missing():
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigError(f"topic {name!r}: {describe(code)}: this user needs DESCRIBE and READ on it")
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(f"topic {name!r} does not exist on this cluster: create it, or correct {setting}")
