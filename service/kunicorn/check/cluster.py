"""What the cluster says: brokers, topics, rights, the group's coordinator."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from kunicorn.check.findings import Finding
from kunicorn.check.prediction import predicted
from kunicorn.errors import ExitCode, PeerError
from kunicorn.settings import Settings
from kunicorn.settings.assign import shown
from kunicorn.topics import TopicPartition
from kunicorn.visits import REQUEST_TIMEOUT, fetch_token, open_cluster, unreached
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import AuthenticationFailed, CoordinatorUnavailable
from kunicorn.wire.group_admin import GroupAdmin
from kunicorn.wire.metadata import Metadata, TopicInfo
from kunicorn.wire.rights import Operation, may_join, on_topics

_PATIENCE = 15.0
"""Seconds for a coordinator: a new cluster creates __consumer_offsets when it is first asked for one."""
_PAUSE = 0.5


async def findings(settings: Settings) -> AsyncIterator[Finding]:
    """One after the other; ends early where nothing else can be asked."""
    kafka = settings.kafka
    try:
        token = await fetch_token(kafka)
    except PeerError as error:
        yield Finding("token", f"no OAUTHBEARER token: {error}", ExitCode.CONFIGURATION)
        return
    if token is not None:
        left = token.expires_at - time.time()
        yield Finding("token", f"OAUTHBEARER token of {token.principal!r}, valid for {left:.0f} s")
    cluster = open_cluster(kafka, token)
    try:
        async for finding in _asked(settings, cluster):
            yield finding
    finally:
        await cluster.close()


async def _asked(settings: Settings, cluster: Cluster) -> AsyncIterator[Finding]:
    topics = settings.assign.wanted.topics or settings.group.topics
    own = settings.assign.wanted.topics or settings.subscribed_topics
    patterns = any(topic.startswith("^") for topic in topics)
    try:
        metadata = await cluster.refresh(None if patterns else (*topics, *settings.other_topics))
    except AuthenticationFailed as error:
        yield Finding("brokers", str(error), ExitCode.CONFIGURATION)
        return
    except PeerError as error:
        yield Finding("brokers", unreached(error), ExitCode.CONFIGURATION)
        return
    yield Finding("brokers", f"{len(metadata.brokers)} in cluster {metadata.cluster_id or 'without an id'}")
    for topic in topics:
        yield _topic(topic, metadata)
    for topic, setting in settings.other_topics.items():
        retry = settings.retry_topics.get(topic)
        purpose = f"retries after {retry.delay}: " if retry is not None else _PURPOSES[setting]
        yield _named(topic, metadata, purpose, _remedies(setting))
    for finding in await _rights(cluster, consumed(own, metadata), settings.other_topics):
        yield finding
    if settings.assigned:
        yield _partitions(settings.assign.wanted.numbered, metadata)
        return
    group = await _group(Coordinator(cluster, settings.group.id), settings.group.id)
    yield group
    if group.failure is None:
        yield await _prediction(settings, cluster, consumed(own, metadata))


# -- topics and rights -----------------------------------------------------------------------------------------------


def consumed(topics: Sequence[str], metadata: Metadata) -> dict[str, int]:
    """The topics that `topics` mean, with their numbers of partitions."""
    return {
        name: len(info.partitions)
        for name, info in metadata.topics.items()
        if info.partitions and any(name == t or (t.startswith("^") and re.match(t, name)) for t in topics)
    }


def _topic(wanted: str, metadata: Metadata) -> Finding:
    if wanted.startswith("^"):
        matching = [t for t in metadata.topics.values() if not t.error and re.match(wanted, t.name)]
        return Finding("topics", f"{wanted} matches {_listed(matching)}")
    return _named(wanted, metadata, "", _TOPIC_REMEDIES)


def _named(name: str, metadata: Metadata, purpose: str, remedies: Mapping[int, str]) -> Finding:
    info = metadata.topics.get(name)
    if info is not None and info.partitions and not info.error:
        return Finding("topics", f"{purpose}{_with_count(info)}")
    error = info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    remedy = remedies.get(error, "ask whoever runs the cluster")
    return Finding("topics", f"{purpose}{name}: {describe(error)}; {remedy}", ExitCode.CONFIGURATION)


_TOPIC_REMEDIES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or correct group.topics (assign.partitions)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user DESCRIBE and READ on it",
    ErrorCode.LEADER_NOT_AVAILABLE: "it is being created or its brokers are down; try again",
}


_PURPOSES = {"dead_letters.topic": "dead letters: ", "producing.topic": "outputs: "}


def _remedies(setting: str) -> Mapping[int, str]:
    return {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: f"create the topic, or correct {setting}",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user DESCRIBE and WRITE on it",
    }


async def _rights(cluster: Cluster, topics: Collection[str], others: Collection[str]) -> list[Finding]:
    """What is missing, topic by topic, or one line that nothing is."""
    needed = [*((name, Operation.READ) for name in topics), *((name, Operation.WRITE) for name in others)]
    try:
        held = await on_topics(cluster, {name for name, _ in needed}, REQUEST_TIMEOUT) if needed else {}
    except PeerError as error:
        return [Finding("rights", f"not known: {error}", warning=True)]
    missing = [
        Finding(
            "rights",
            f"{name}: this user may not {what.name}; grant it {what.name} on the topic",
            ExitCode.CONFIGURATION,
        )
        for name, what in needed
        if name in held and what not in held[name]
    ]
    if missing or not held:
        return missing
    return [Finding("rights", f"this user may {' and '.join(sorted({o.name for _, o in needed}))} as needed")]


def _partitions(numbered: Collection[TopicPartition], metadata: Metadata) -> Finding:
    there = {name: topic.partitions for name, topic in metadata.topics.items()}
    if absent := [tp for tp in numbered if tp.partition not in there.get(tp.topic, ())]:
        return Finding("assign", f"{shown(absent)} do not exist; correct assign.partitions", ExitCode.CONFIGURATION)
    return Finding("assign", "no group is joined, no offsets are committed")


def _listed(topics: list[TopicInfo], most: int = 5) -> str:
    if not topics:
        return "no topic yet; those that appear will be consumed"
    names = ", ".join(_with_count(topic) for topic in topics[:most])
    return names + (f" and {len(topics) - most} more topics" if len(topics) > most else "")


def _with_count(topic: TopicInfo) -> str:
    count = len(topic.partitions)
    return f"{topic.name} ({count} partition{'' if count == 1 else 's'})"


# -- the group -------------------------------------------------------------------------------------------------------


async def _group(coordinator: Coordinator, group: str) -> Finding:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        try:
            node = await coordinator.find()
            if not await may_join(coordinator, REQUEST_TIMEOUT):
                raise CoordinatorUnavailable(
                    ErrorCode.GROUP_AUTHORIZATION_FAILED,
                    f"group {group!r} can be seen but not joined: {describe(ErrorCode.GROUP_AUTHORIZATION_FAILED)}",
                )
        except CoordinatorUnavailable as error:
            if error.error not in _COMING or loop.time() > deadline:
                remedy = _GROUP_REMEDIES.get(error.error, "ask whoever runs the cluster")
                return Finding("group", f"{error}; {remedy}", ExitCode.CONFIGURATION)
        except PeerError as error:
            return Finding("group", f"{error}; try again", ExitCode.CONFIGURATION)
        else:
            return Finding("group", f"{group} has its coordinator on node {node.node_id} at {node.address}")
        await asyncio.sleep(_PAUSE)


_COMING: frozenset[int] = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_GROUP_REMEDIES: Mapping[int, str] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this user READ on the group",
    ErrorCode.INVALID_GROUP_ID: "correct group.id",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the brokers that hold __consumer_offsets are down; try again",
}


async def _prediction(settings: Settings, cluster: Cluster, topics: Mapping[str, int]) -> Finding:
    try:
        group = await GroupAdmin(cluster, settings.group.id, REQUEST_TIMEOUT).describe()
    except PeerError as error:
        return Finding("members", f"not known: {error}", warning=True)
    if group.error and group.error != ErrorCode.GROUP_ID_NOT_FOUND:
        return Finding(
            "members", f"not known: {describe(group.error)}; DESCRIBE on the group would show them", warning=True
        )
    return predicted(settings, group, topics)
