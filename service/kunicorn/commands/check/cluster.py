"""Findings of `kunicorn check` about the cluster: brokers, topics, rights, coordinator, schema registry, and the
partitions that this member would be assigned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.clients.config import decoding_of
from kunicorn.clients.session import REQUEST_TIMEOUT, fetch_token, open_cluster, unreached
from kunicorn.commands.embedded import is_embedded, unserved
from kunicorn.commands.topics.plan import found_in, needs, undurable
from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError, PeerError
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import Member, Subscription
from kunicorn.handler.config import takes
from kunicorn.kafka.admin import Described, GroupAdmin, Operation, conversion_refused, may_join, no_consumers, on_topics
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.consumer_protocol import decode_subscription
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.errors import AuthenticationFailed, CoordinatorUnavailable
from kunicorn.kafka.metadata import Metadata, TopicInfo
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.assign import AssignSettings, existing
from kunicorn.settings.checks import needs_registry
from kunicorn.supervisor.partitions.balance import workers_wanted
from kunicorn.text import printable


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the result. `text` says what was found and, where it failed, what to do."""

    what: str
    text: str
    failure: ExitCode | None = None
    warning: bool = False
    """Whether it works, and should be known nevertheless."""
    passes: bool = False
    """Whether a failure may pass by itself, so that the service would wait for it rather than end."""

    def __str__(self) -> str:
        # Lines of a traceback stay lines; what else an exception quotes of a record must not reach the terminal.
        text = "\n".join(map(printable, self.text.split("\n")))
        return f"{self.result:<7} {self.what:<9} {text}"

    @property
    def result(self) -> str:
        """The result in one word."""
        return "FAILED" if self.failure is not None else "warning" if self.warning else "ok"

    def told(self) -> dict[str, str]:
        """The finding for a program."""
        return {"what": self.what, "result": self.result, "text": self.text}


_NEWCOMER = "\uffff this member"
"""Sorts behind the members there are, as a newcomer's id usually does not, but its share does not depend on it."""


def predicted(settings: Settings, group: Described, topics: Mapping[str, int]) -> Finding:
    """Number of partitions that this member would be assigned beside the members that `group` has, and its workers
    each. Pure.

    With the classic protocol as the group's own strategy would plan it; with the consumer protocol the brokers plan
    (KIP-848), evenly. Which strategies the members know beside the one that they have agreed upon no broker tells.
    """
    if group.refuses_consumers:
        return Finding("members", no_consumers(settings.group.id, group), ExitCode.CONFIGURATION)
    if group.classic and settings.group.group_protocol == "consumer" and not settings.group.allow_protocol_upgrade:
        return Finding("members", conversion_refused(settings.group.id, group), ExitCode.CONFIGURATION)
    ours = settings.group.partition_assignment_strategy
    if settings.group.group_protocol == "classic" and group.members and group.strategy and group.strategy not in ours:
        return Finding(
            "members",
            f"its {len(group.members)} members have agreed upon {group.strategy!r}, which "
            f"group.partition_assignment_strategy = {list(ours)} does not name: unless all of them know another one of "
            f"these, the group refuses this member (INCONSISTENT_GROUP_PROTOCOL); name it as well, until they do",
            warning=True,
        )
    total, others = sum(topics.values()), len(group.members)
    instance = settings.group.group_instance_id
    if instance is not None and any(member.instance_id == instance for member in group.members):
        # By the classic protocol the earlier one is fenced, by the consumer protocol the later one waits (KIP-848).
        waits = settings.group.group_protocol == "consumer"
        then = "while it runs, the brokers do not let this member in; behind it this one" if waits else "this member"
        return Finding("members", f"{others}; one of them is {instance}: {then} would take its place and partitions")
    share = _planned(settings, group, topics) if others and group.strategy in ASSIGNORS else None
    if share is None:
        share = -(-total // (others + 1))
    if total and not share:
        return Finding("members", f"{others} already share {total} partitions: this member would idle", warning=True)
    workers = workers_wanted(share, settings.workers.count)
    return Finding(
        "members",
        f"{others or 'none'} now; this member would get {share} of {total} partitions, "
        f"for {min(workers, share) or 'no'} of its {settings.workers.count} workers",
    )


def _planned(settings: Settings, group: Described, topics: Mapping[str, int]) -> int:
    members = [
        Member(each.member_id, decode_subscription(group.strategy, each.member_id, each.metadata), each.instance_id)
        for each in group.members
    ]
    newcomer = Member(_NEWCOMER, Subscription(tuple(topics), rack=settings.kafka.client_rack))
    # In a first round a cooperative plan gives nobody what another one still has to give back (KIP-429).
    strategy = "sticky" if ASSIGNORS[group.strategy].cooperative else group.strategy
    return len(ASSIGNORS[strategy].plan([*members, newcomer], topics)[_NEWCOMER])


_PATIENCE = 15.0
"""Seconds for a coordinator: a new cluster creates __consumer_offsets when it is first asked for one."""
_PAUSE = 0.5


async def findings(settings: Settings) -> AsyncIterator[Finding]:
    """Findings, one after the other; ends early where nothing else can be asked."""
    kafka = settings.kafka
    try:
        token = await fetch_token(kafka)
    except PeerError as error:
        yield Finding("token", f"no OAUTHBEARER token: {error}", ExitCode.CONFIGURATION, passes=True)
        return
    if token is not None:
        left = token.expires_at - time.time()
        yield Finding("token", f"OAUTHBEARER token of {token.principal!r}, valid for {left:.0f} s")
    cluster = open_cluster(kafka)
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
        # Credentials are rotated, and one broker may learn of it later than another.
        yield Finding("brokers", str(error), ExitCode.CONFIGURATION, passes=True)
        return
    except PeerError as error:
        yield Finding("brokers", unreached(error), ExitCode.CONFIGURATION, passes=True)
        return
    yield _brokers(settings, metadata)
    for topic in topics:
        yield _topic(topic, metadata)
    for topic, setting in settings.other_topics.items():
        retry = settings.retry_topics.get(topic)
        purpose = f"retries after {retry.delay}: " if retry is not None else _PURPOSES[setting]
        yield _written(topic, metadata, purpose, setting)
    for told in durability(settings, consumed(topics, metadata), metadata):
        yield Finding("topics", told, warning=True)
    for finding in await _rights(cluster, consumed(own, metadata), settings.other_topics):
        yield finding
    if settings.assigned:
        yield assigned(settings.assign, metadata)
        return
    group = await _group(Coordinator(cluster, settings.group.id), settings.group.id)
    yield group
    if group.failure is None:
        yield await _prediction(settings, cluster, consumed(own, metadata))


def _brokers(settings: Settings, metadata: Metadata) -> Finding:
    if is_embedded(metadata) and (lacking := unserved(settings)) is not None:
        return Finding("brokers", lacking, ExitCode.CONFIGURATION)
    return Finding("brokers", f"{len(metadata.brokers)} in cluster {metadata.cluster_id or 'without an id'}")


# -- topics and rights -----------------------------------------------------------------------------------------------


def consumed(topics: Sequence[str], metadata: Metadata) -> dict[str, int]:
    """Topics that `topics` (names and patterns) match, with their numbers of partitions. Pure."""
    patterns = [topic for topic in topics if topic.startswith("^")]
    return {
        name: len(info.partitions)
        for name, info in metadata.topics.items()
        if info.partitions and (name in topics or (info.can_match and takes(patterns, name)))
    }


def _topic(wanted: str, metadata: Metadata) -> Finding:
    if wanted.startswith("^"):
        matching = [t for t in metadata.topics.values() if t.can_match and takes([wanted], t.name)]
        return Finding("topics", f"{wanted} matches {_listed(matching)}")
    return _named(wanted, metadata, "", {"rights": "DESCRIBE and READ", "setting": "group.topics (assign.partitions)"})


def _written(name: str, metadata: Metadata, purpose: str, setting: str) -> Finding:
    return _named(name, metadata, purpose, {"rights": "DESCRIBE and WRITE", "setting": setting})


def _named(name: str, metadata: Metadata, purpose: str, needed: Mapping[str, str]) -> Finding:
    info = metadata.topics.get(name)
    if info is not None and info.partitions and not info.error:
        return Finding("topics", f"{purpose}{_with_count(info)}")
    error = info.error if info is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    text = f"{purpose}{name}: {describe(error)}; {fault(error).remedy(**needed)}"
    return Finding("topics", text, ExitCode.CONFIGURATION, passes=error not in _ENDS_A_START)


_ENDS_A_START: frozenset[int] = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Errors of a topic with which the service does not start. Others pass, such as those of one that is just being made:
it waits for its leaders."""


def durability(settings: Settings, inputs: Collection[str], metadata: Metadata) -> Iterator[str]:
    """What may lose records by the number of replicas; `kunicorn topics check` asks for the topics' settings, too."""
    found = found_in(
        metadata, [name for name in inputs if name not in settings.other_topics], settings.other_topics, {}
    )
    try:
        wanted = needs(settings, found)
    except ConfigError as error:
        yield str(error)
        return
    for need in wanted:
        if (topic := found.topics.get(need.name)) is not None:
            yield from undurable(need, topic)


_PURPOSES = {"dead_letters.topic": "dead letters: ", "producing.topic": "outputs: ", "producing.topics": "outputs: "}


async def _rights(cluster: Cluster, topics: Collection[str], others: Collection[str]) -> list[Finding]:
    """Missing rights, topic by topic, or one line that none is missing."""
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


def assigned(assign: AssignSettings, metadata: Metadata) -> Finding:
    """Whether the partitions that [assign] names exist, and each has its start. Pure."""
    try:
        existing(
            assign, [TopicPartition(name, number) for name, t in metadata.topics.items() for number in t.partitions]
        )
    except ConfigError as error:
        coming = any(
            (info := metadata.topics.get(name)) is not None and info.error and info.error not in _ENDS_A_START
            for name in assign.wanted.topics
        )
        return Finding("assign", str(error), ExitCode.CONFIGURATION, passes=coming)
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
                coming = error.error in _COMING
                return Finding(
                    "group", f"{error}: {fault(error.error).remedy()}", ExitCode.CONFIGURATION, passes=coming
                )
        except PeerError as error:
            return Finding("group", f"{error}; try again", ExitCode.CONFIGURATION, passes=True)
        else:
            return Finding("group", f"{group} has its coordinator on node {node.node_id} at {node.address}")
        await asyncio.sleep(_PAUSE)


_COMING: frozenset[int] = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


async def _prediction(settings: Settings, cluster: Cluster, topics: Mapping[str, int]) -> Finding:
    if is_embedded(cluster.metadata):
        return Finding("members", "not known: the embedded broker does not tell a group's members")
    admin = GroupAdmin(cluster, settings.group.id, REQUEST_TIMEOUT)
    try:
        group = await admin.describe()
        if group.classic and settings.group.group_protocol == "consumer" and not await admin.can_be_converted():
            settings = _fallen_back(settings)
    except PeerError as error:
        return Finding("members", f"not known: {error}", warning=True)
    if group.error and group.error != ErrorCode.GROUP_ID_NOT_FOUND:
        text = f"not known: {describe(group.error)}; {fault(group.error).remedy(rights='DESCRIBE')}"
        return Finding("members", text, warning=True)
    return predicted(settings, group, topics)


def _fallen_back(settings: Settings) -> Settings:
    """What the service goes on with where brokers have no consumer protocol."""
    return settings.model_copy(update={"group": settings.group.model_copy(update={"group_protocol": "classic"})})


def registry_findings(settings: Settings) -> Iterator[Finding]:
    """Findings about the schema registry; none where none is set. Blocks up to schema_registry.timeout_ms. Raises
    `ConfigError` for the password.
    """
    url = settings.schema_registry.url
    if url is None:
        return
    from kunicorn.handler.decode.schema_registry import why_silent

    try:
        why = why_silent(decoding_of(settings, settings.handler).schema_registry)
    except HandlerLoadError as error:
        yield Finding("registry", str(error), ExitCode.CONFIGURATION)
        return
    yield from _impatient_handlers(settings)
    if why is None:
        yield Finding("registry", f"{url} answers")
    else:
        remedy = "correct [schema_registry], or start it; records would wait"
        yield Finding("registry", f"{url} cannot be asked: {why}; {remedy}", ExitCode.CONFIGURATION, passes=True)


def _impatient_handlers(settings: Settings) -> Iterator[Finding]:
    """Findings about handlers whose time is over before the registry's: while it hangs they are interrupted, and try
    after try of records is counted that could wait."""
    patience = settings.schema_registry.timeout_ms
    for handler in settings.every_handler:
        asks = settings.producing.needs_registry or needs_registry(handler.value) or needs_registry(handler.key)
        if asks and handler.handler_timeout_ms is not None and handler.handler_timeout_ms <= patience:
            yield Finding(
                "registry",
                f"a registry that hangs fails the record: handler_timeout_ms = {handler.handler_timeout_ms} is over "
                f"before schema_registry.timeout_ms = {patience}; make the latter smaller",
                warning=True,
            )
