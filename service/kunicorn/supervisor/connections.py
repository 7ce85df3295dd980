"""The service's connections to the brokers: cluster, coordinator, login, and the topics as the metadata has them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from kunicorn.backoff import Backoff, Retries
from kunicorn.clients.config import security_of
from kunicorn.errors import ConfigError, PeerError
from kunicorn.ipc.messages import Password, Token
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.kafka.metadata import TopicInfo
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import logs
from kunicorn.settings import KafkaSettings, Settings
from kunicorn.supervisor.credentials import Tokens, watch_password
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.offsets.start_offsets import Brokers
from kunicorn.supervisor.topics import Topics

log = logs.get("kunicorn")

_CONNECT_TIMEOUT = 5.0
_KINDS: Mapping[str, str] = {
    "dead_letters.topic": "dead-letter topic",
    "producing.topic": "output topic",
    "producing.topics": "output topic",
    "handler.retry_topic": "retry topic",
}
"""Topics that are written to, by the setting that names them."""


def cluster_of(kafka: KafkaSettings, tokens: Tokens | None) -> Cluster:
    """The cluster that the settings name; nothing is opened."""
    return Cluster(
        kafka.bootstrap_servers,
        client_id=kafka.client_id,
        security=security_of(kafka, tokens.bearer if tokens is not None else None),
        timeouts=Timeouts(request=kafka.request_timeout_ms / 1000, connect=_CONNECT_TIMEOUT),
        rng=random.Random(),
    )


class Connections:
    """All clients of the brokers, made once. No connection is opened before `reach`."""

    def __init__(self, settings: Settings, cluster: Cluster, member: MemberState, tokens: Tokens | None = None) -> None:
        """`member`: as whom offsets are read. `tokens`: what `cluster` logs in with, if it takes tokens."""
        self.cluster = cluster
        self.member = member
        self.tokens = tokens
        self.unreached: str | None = "starting"
        """Why no broker has answered yet."""
        self._settings = settings
        kafka, group = settings.kafka, settings.group
        backoff = Backoff(kafka.retry_backoff_ms / 1000, max(kafka.retry_backoff_max_ms / 1000, 5.0))
        self._retries = Retries(backoff)
        wanted = settings.assign.wanted.topics or settings.subscribed_topics
        self.topics = Topics(wanted, self.cluster, brokers_match=group.group_protocol == "consumer")
        self.coordinator = Coordinator(self.cluster, group.id)
        self.brokers = Brokers(settings, cluster, self.coordinator, self.topics, member)

    @property
    def refusal(self) -> str | None:
        """Why a broker refuses our login; None if none does, as far as is known."""
        return (self.tokens.problem if self.tokens is not None else None) or self.cluster.refusal

    @property
    def outage(self) -> str | None:
        """Why no broker answers any more; None while one does, and before one ever has."""
        return self.cluster.outage if self.unreached is None else None

    def logins(self, share: Callable[[Token | Password], None]) -> Iterator[Coroutine[Any, Any, None]]:
        """The tasks that renew the login, and try it again where a broker refused it, from the start on; `share` passes
        each new one on to the workers."""
        yield self.cluster.retry_failed()
        if self.tokens is not None:
            yield self.tokens.keep(share)
        if self._settings.kafka.sasl_password_file is not None:
            yield watch_password(self._settings.kafka, share)

    async def reach(self) -> None:
        """Ask the bootstrap servers in turn until one answers, however long that takes.

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
                await asyncio.sleep(self._retries.failed())
            except PeerError as error:
                wait = self._retries.failed()
                self.unreached = f"no broker answers: {error}"
                log.warning(f"no broker answers, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)
            else:
                break
        _refuse_others(self._settings.other_topics, self.cluster.metadata.topics)
        _refuse_missing(self.topics, "assign.partitions" if self._settings.assigned else "group.topics")
        self.unreached = None

    async def look_for(self, others: Mapping[str, str]) -> None:
        """Ask for these topics, by name, that a reload brings with the setting that names each.

        Raises `ConfigError`, as `reach` does, where one cannot be written to, or no broker says whether it is there.
        """
        if not others:
            return
        try:
            await self.topics.refresh(others)
        except PeerError as error:
            named = ", ".join(map(repr, others))
            raise ConfigError(f"whether the topic {named} is there is not known: {error}; reload again") from error
        _refuse_others(others, self.cluster.metadata.topics)

    def owns(self, pid: int) -> bool:
        """Whether the process is the helper that fetches tokens, whose exit `Tokens` watches."""
        return self.tokens is not None and self.tokens.owns(pid)

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(PeerError):
            await self.cluster.close()


def _refuse_others(named: Mapping[str, str], known: Mapping[str, TopicInfo]) -> None:
    """Raises `ConfigError` for a topic, of these by the setting that names it, that cannot be written to."""
    for name, setting in named.items():
        info = known.get(name)
        kind = _KINDS[setting]
        if info is None or info.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            remedy = fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).remedy(topic="it", setting=setting)
            missing = f"{kind} {name!r} does not exist on this cluster"
            raise ConfigError(f"{missing}: {remedy}; it is never created by itself")
        if info.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            remedy = fault(info.error).remedy(topic="it", rights="DESCRIBE and WRITE")
            raise ConfigError(f"{kind} {name!r}: {describe(info.error)}: {remedy}")


def _refuse_missing(topics: Topics, setting: str) -> None:
    """Raises `ConfigError` for a topic, wanted by that setting, that cannot be read."""
    for name, code in topics.missing():
        remedy = fault(code).remedy(topic="it", setting=setting)
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigError(f"topic {name!r}: {describe(code)}: {remedy}")
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(f"topic {name!r} does not exist on this cluster: {remedy}")
