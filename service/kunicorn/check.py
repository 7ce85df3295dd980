"""`kunicorn check`: would the service work with these settings? Asks everything that can be asked without joining the
group: an answer never costs the group a rebalance, so it may be asked beside running members.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from kunicorn.clients import consumer_properties
from kunicorn.errors import ConfigError, ExitCode, PeerError
from kunicorn.settings import Settings
from kunicorn.settings.assign import shown
from kunicorn.settings.security import without_secrets
from kunicorn.topics import TopicPartition
from kunicorn.visits import fetch_token, open_cluster
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import AuthenticationFailed, CoordinatorUnavailable
from kunicorn.wire.metadata import Metadata, TopicInfo

IMPORT_TIMEOUT = 60.0
"""Seconds the handler's module may take to import."""
_PATIENCE = 15.0
"""Seconds for a coordinator: a new cluster creates __consumer_offsets when it is first asked for one."""
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer. `text` says what was found and, where it failed, what to do."""

    what: str
    text: str
    failure: ExitCode | None = None

    def __str__(self) -> str:
        return f"{'ok' if self.failure is None else 'FAILED':<7} {self.what:<9} {self.text}"


def check(settings: Settings, say: Callable[[str], None], import_timeout: float = IMPORT_TIMEOUT) -> ExitCode:
    """Check one thing after the other, `say` a line of each; the code of the first that failed. Blocks for seconds."""
    worst = ExitCode.CLEAN
    for finding in _findings(settings, import_timeout):
        say(str(finding))
        if worst is ExitCode.CLEAN and finding.failure is not None:
            worst = finding.failure
    return worst


def _findings(settings: Settings, import_timeout: float) -> Iterator[Finding]:
    for warning in settings.kafka.warnings():
        yield Finding("security", f"warning: {warning}")
    yield _handler(settings.handler.entrypoint, settings.handler.exception_names, import_timeout)
    yield _client(settings)
    with asyncio.Runner() as runner:
        findings = _cluster(settings)
        while (finding := runner.run(anext(findings, None))) is not None:
            yield finding


# -- the handler ---------------------------------------------------------------------------------------------------

_IMPORT = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from kunicorn.errors import ServiceError
from kunicorn.exceptions import find
from kunicorn.handlers import load
try:
    load(sys.argv[2])
    for name in sys.argv[4:]:
        find(name)
except ServiceError as error:
    os.write(int(sys.argv[3]), str(error).encode(errors="backslashreplace"))
    os._exit(int(error.exit_code))
os._exit(0)
"""
"""Run by a Python of its own. Leaves by `_exit`: threads that the handler's module started must not keep it."""


def _handler(entrypoint: str, exceptions: Collection[str], timeout: float) -> Finding:
    """Import the handler, and the exceptions that rules name, where it can neither hang us nor take us along."""
    read_end, write_end = os.pipe()
    importable_here = json.dumps(list(dict.fromkeys([os.getcwd(), *sys.path])))
    child = subprocess.Popen(
        [sys.executable, "-c", _IMPORT, importable_here, entrypoint, str(write_end), *exceptions],
        pass_fds=[write_end],
        env=without_secrets(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as error:
        code = _ended(child, timeout)
        # The group is dead, so this meets the pipe's end: nothing that the module started still holds the other one.
        message = error.read().decode()
    if code is None:
        return _no_handler(
            f"importing {entrypoint!r} took more than {timeout:g} s; do slow work in setup(), not at import"
        )
    if code == 0:
        return Finding("handler", f"{entrypoint} can be imported and called")
    if code == ExitCode.CONFIGURATION and message:
        return Finding("handler", message, ExitCode.CONFIGURATION)
    return _no_handler(message or f"importing {entrypoint!r} ended the process: {_how_it_ended(code)}")


def _ended(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The child's exit code, None if it had to be killed; whatever it started goes with it."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _how_it_ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _no_handler(text: str) -> Finding:
    return Finding("handler", text, ExitCode.HANDLER)


# -- the workers' client -------------------------------------------------------------------------------------------


def _client(settings: Settings) -> Finding:
    """Whether librdkafka takes the properties; a consumer that is only made speaks to nobody."""
    from confluent_kafka import Consumer, KafkaException

    kafka = settings.kafka
    try:
        properties = consumer_properties(settings, kafka.client_id)
        Consumer({**properties, "log_level": 0}).close()
    except ConfigError as error:
        return Finding("client", str(error), ExitCode.CONFIGURATION)
    except KafkaException as error:
        return Finding("client", f"{error.args[0].str()}; correct [kafka.librdkafka]", ExitCode.CONFIGURATION)
    own = f", {len(kafka.librdkafka)} of them from [kafka.librdkafka]" if kafka.librdkafka else ""
    return Finding("client", f"librdkafka accepts the properties{own}")


# -- the cluster ---------------------------------------------------------------------------------------------------


async def _cluster(settings: Settings) -> AsyncIterator[Finding]:
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
        topics = settings.assign.wanted.topics or settings.group.topics
        patterns = any(topic.startswith("^") for topic in topics)
        try:
            metadata = await cluster.refresh(None if patterns else (*topics, *settings.other_topics))
        except AuthenticationFailed as error:
            yield Finding("brokers", str(error), ExitCode.CONFIGURATION)
            return
        except PeerError as error:
            yield Finding("brokers", f"{error}; correct kafka.bootstrap_servers, or start them", ExitCode.CONFIGURATION)
            return
        yield Finding("brokers", f"{len(metadata.brokers)} in cluster {metadata.cluster_id or 'without an id'}")
        for topic in topics:
            yield _topic(topic, metadata)
        for topic in settings.other_topics:
            yield _dead_letter_topic(topic, metadata)
        if settings.assigned:
            yield _partitions(settings.assign.wanted.numbered, metadata)
        else:
            yield await _group(Coordinator(cluster, settings.group.id), settings.group.id)
    finally:
        await cluster.close()


def _topic(wanted: str, metadata: Metadata) -> Finding:
    if wanted.startswith("^"):
        matching = [t for t in metadata.topics.values() if not t.error and re.match(wanted, t.name)]
        return Finding("topics", f"{wanted} matches {_listed(matching)}")
    info = metadata.topics.get(wanted)
    if info is not None and info.partitions and not info.error:
        return Finding("topics", _with_count(info))
    error = info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    remedy = _TOPIC_REMEDIES.get(error, "ask whoever runs the cluster")
    return Finding("topics", f"{wanted}: {describe(error)}; {remedy}", ExitCode.CONFIGURATION)


def _dead_letter_topic(name: str, metadata: Metadata) -> Finding:
    info = metadata.topics.get(name)
    if info is not None and info.partitions and not info.error:
        return Finding("topics", f"dead letters: {_with_count(info)}")
    error = info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    remedy = _LETTER_REMEDIES.get(error, "ask whoever runs the cluster")
    return Finding("topics", f"dead letters: {name}: {describe(error)}; {remedy}", ExitCode.CONFIGURATION)


_LETTER_REMEDIES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or correct dead_letters.topic",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user DESCRIBE and WRITE on it",
}


def _partitions(numbered: Collection[TopicPartition], metadata: Metadata) -> Finding:
    there = {name: topic.partitions for name, topic in metadata.topics.items()}
    if absent := [tp for tp in numbered if tp.partition not in there.get(tp.topic, ())]:
        return Finding("assign", f"{shown(absent)} do not exist; correct assign.partitions", ExitCode.CONFIGURATION)
    return Finding("assign", "no group is joined, no offsets are committed")


_TOPIC_REMEDIES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or correct group.topics (assign.partitions)",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user DESCRIBE and READ on it",
    ErrorCode.LEADER_NOT_AVAILABLE: "it is being created or its brokers are down; try again",
}


def _listed(topics: list[TopicInfo], most: int = 5) -> str:
    if not topics:
        return "no topic yet; those that appear will be consumed"
    names = ", ".join(_with_count(topic) for topic in topics[:most])
    return names + (f" and {len(topics) - most} more topics" if len(topics) > most else "")


def _with_count(topic: TopicInfo) -> str:
    count = len(topic.partitions)
    return f"{topic.name} ({count} partition{'' if count == 1 else 's'})"


async def _group(coordinator: Coordinator, group: str) -> Finding:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while True:
        try:
            node = await coordinator.find()
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
