"""The state machine's commands as Kafka requests, and their answers as events.

- `CommitRequests` sends the committer's OffsetCommits; an error that concerns the membership becomes an event.
- `ClassicRequests` for a classic member, `ConsumerRequests` for one with the consumer protocol (KIP-848).
- `LookUp` for the group's coordinator: what came of it is an event, and in the log as often as that helps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from kunicorn.errors import ConfigError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import NO_GENERATION, CommitAnswer, ConsumerHeartbeatAnswer, Plan, Subscription
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.ipc import clock
from kunicorn.kafka.admin import classic_group, conversion_refused
from kunicorn.kafka.consumer_protocol import encode_assignment
from kunicorn.kafka.coordinator import Coordinator, Wishes
from kunicorn.kafka.errors import CoordinatorUnavailable, UnsupportedByBroker
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.partitions.table import PartitionTable
from kunicorn.supervisor.topics import PlanGround

log = logs.get("kunicorn.membership")

HEARTBEAT_TIMEOUT = 3.0
HEARTBEAT_TIMEOUT_BESIDE_COMMIT = 6.0
"""A frozen replica of the offsets partition makes the broker hold heartbeats for five seconds while a commit is out."""
LEAVE_TIMEOUT = 3.0
_JOIN_MARGIN = 5.0
_TOLD_EVERY = 10.0
"""Seconds between lines on what is tried again and again: a dead coordinator is named by the brokers for as long as
that, and asked for up to ten times a second."""

_PLANNING_SHARE = 0.25
"""Of the rebalance timeout, for the metadata that a plan is made of: the plan itself and SyncGroup come behind it."""
_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

Events = asyncio.Queue[ev.Event]
"""What the state machine is to be told."""


class CommitRequests:
    """Implements `CommitTarget`: OffsetCommit under the member id and generation of that moment."""

    def __init__(self, settings: Settings, connections: Connections, table: PartitionTable, events: Events) -> None:
        self._timeout = settings.group.commit_timeout_ms / 1000
        self._coordinator = connections.coordinator
        self._topics = connections.topics
        self._member = connections.member
        self._table = table
        self._events = events
        self._committed_as = (NO_GENERATION, "")

    @property
    def may_commit(self) -> bool:
        return self._member.may_commit

    @property
    def changed(self) -> Notifier:
        return self._table.changed

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        member = self._member
        self._committed_as = (member.generation, member.member_id)
        answer = await self._coordinator.commit(
            generation=member.generation,
            member_id=member.member_id,
            instance_id=member.instance_id,
            offsets=offsets,
            topic_ids=self._table.topic_ids(offsets),
            metadata="",
            timeout=self._timeout,
        )
        if any(error in _TOPIC_GONE for error in answer.errors.values()):
            self._topics.doubt()
        return answer

    def commit_refused(self, error: int) -> None:
        self._events.put_nowait(ev.CommitRefused(*self._committed_as, error))

    def is_gone(self, topic: str) -> bool:
        return self._topics.is_gone(topic)


class HeartbeatAnswers:
    """Counts and times what heartbeats are answered with, and logs each error once until another answer comes."""

    def __init__(self, api: Api, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics
        self._last_error = 0

    def unanswered(self) -> None:
        """The coordinator has not answered."""
        self._metrics.count(catalogue.HEARTBEATS, result="unanswered")

    def note(self, sent_at: float, error: int, message: str = "") -> None:
        """It has, with this error code; `message` is what it says about it."""
        self._metrics.count(catalogue.HEARTBEATS, result="ok" if not error else f"error {error}")
        self._metrics.observe(catalogue.HEARTBEAT_SECONDS, clock.now() - sent_at)
        # A rebalance is no news: its own lines follow.
        if error and error != self._last_error and reaction(self._api, error) is not Reaction.REJOIN:
            log.warning(f"{self._api.value} was answered with {describe(error)}{': ' if message else ''}{message}")
        self._last_error = error


class ClassicRequests:
    """The requests of a classic member. Each raises `PeerError` where the coordinator does not answer; nothing is
    retried here."""

    def __init__(
        self, settings: Settings, connections: Connections, commits: OffsetCommitter, metrics: Metrics
    ) -> None:
        """Joins wait for `commits`."""
        group = settings.group
        self._settings = settings
        self._coordinator = connections.coordinator
        self._topics = connections.topics
        self._commits = commits
        self._heartbeats = HeartbeatAnswers(Api.HEARTBEAT, metrics)
        self._instance_id = group.group_instance_id
        self._assignors = [ASSIGNORS[name] for name in group.partition_assignment_strategy]
        self._parked = group.max_poll_interval_ms / 1000 + _JOIN_MARGIN
        self._said_of_plan = ""
        self._refusal_told_at = float("-inf")

    async def join(self, request: ev.SendJoin) -> ev.Event:
        """The answer to JoinGroup, which is sent after the commit in flight (invariant 2)."""
        await self._commits.wait_answered()
        topics = self._topics.subscribe()
        subscriptions = [
            (
                assignor.name,
                Subscription(
                    topics=topics,
                    owned=request.owned,
                    generation=request.generation,
                    rack=self._settings.kafka.client_rack,
                    user_data=assignor.user_data(request.generation, request.assigned),
                ),
            )
            for assignor in self._assignors
        ]
        # The first join only brings a member id (KIP-394), and is sent once more with it: one line is enough.
        say = log.debug if request.member_id and request.generation == NO_GENERATION else log.info
        say(f"joining: {request.reason}", generation=request.generation, owned=len(request.owned))
        answer = await self._coordinator.join(
            member_id=request.member_id,
            instance_id=self._instance_id,
            session_timeout_ms=self._settings.group.session_timeout_ms,
            rebalance_timeout_ms=self._settings.group.max_poll_interval_ms,
            protocols=subscriptions,
            reason=request.reason,
            timeout=max(self._parked, self._settings.kafka.request_timeout_ms / 1000),
        )
        return ev.Joined(request, answer)

    async def plan(self, request: ev.MakePlan) -> ev.Event:
        """The plan for all members, made from fresh metadata in a thread (invariant 5)."""
        topics = {topic for member in request.members for topic in member.subscription.topics}
        try:
            ground = await self._ground(topics, by_rack=any(each.subscription.rack for each in request.members))
        except PeerError as error:
            # Without a plan to make there is nothing to wait for: the topics are watched from here on.
            return ev.Planned(request, {}) if request.skip else ev.PlanFailed(request, str(error))
        if request.skip:
            return await self._without_plan(request)
        assignor = ASSIGNORS[request.assignor]
        plan = await asyncio.to_thread(assignor.plan, request.members, ground.counts, ground.racks)
        log.info(
            f"planned generation {request.generation} for {len(request.members)} members", assignor=request.assignor
        )
        return ev.Planned(request, plan)

    async def _without_plan(self, request: ev.MakePlan) -> ev.Event:
        """Of a static leader that has come back and sends no plan (KIP-814): look what the one in force deals out.

        Partitions that were added before it came back would never be assigned: only a leader watches their number, and
        this one from now on. (Java's does likewise, and misses them.)
        """
        try:
            found = classic_group(await self._coordinator.describe(HEARTBEAT_TIMEOUT), self._settings.group.id)
        except PeerError as error:
            return ev.PlanFailed(request, f"what the members have is not told: {error}")
        if found.error:
            log.warning(
                f"what the group's members have is not told ({describe(found.error)}): partitions that were added "
                f"while their leader was away are found with the next rebalance"
            )
        else:
            self._topics.plan_stands_on({tp for member in found.members for tp in member.partitions})
        return ev.Planned(request, {})

    async def _ground(self, topics: Collection[str], *, by_rack: bool) -> PlanGround:
        """What a plan stands on, fresh if brokers tell it in time: one that says nothing must not cost the leader its
        membership, as whoever sends no SyncGroup within the rebalance timeout is expelled. Raises `PeerError`."""
        within = self._settings.group.max_poll_interval_ms / 1000 * _PLANNING_SHARE
        try:
            async with asyncio.timeout(within):
                return await self._topics.plan_for(topics, by_rack=by_rack)
        except TimeoutError:
            if (known := self._topics.plan_on_known(topics, by_rack=by_rack)) is None:
                raise PeerError(f"no broker has told the topics' partitions within {within:g} s") from None
            log.warning(f"no broker has told the topics' partitions within {within:g} s: planning with those known")
            return known

    async def sync(self, request: ev.SendSync) -> ev.Event:
        sent_at = clock.now()
        answer = await self._coordinator.sync(
            generation=request.generation,
            member_id=request.member_id,
            instance_id=self._instance_id,
            assignor=request.assignor,
            plan=request.plan,
            timeout=self._parked,
        )
        if answer.unreadable and answer.unreadable != self._said_of_plan:
            log.error(
                f"{answer.unreadable}; it is asked for again until another member leads: see which client that is",
                generation=request.generation,
            )
        self._said_of_plan = answer.unreadable
        if reaction(Api.SYNC, answer.error) is Reaction.REJOIN_LATER and sent_at >= self._refusal_told_at + _TOLD_EVERY:
            self._refusal_told_at = sent_at
            log.warning(_refused_plan(answer.error, request.plan), generation=request.generation)
        return ev.Synced(request, answer, sent_at)

    async def heartbeat(self, request: ev.SendHeartbeat) -> ev.Event:
        beside_commit = self._commits.pending
        try:
            error = await self._coordinator.heartbeat(
                generation=request.generation,
                member_id=request.member_id,
                instance_id=self._instance_id,
                timeout=HEARTBEAT_TIMEOUT_BESIDE_COMMIT if beside_commit else HEARTBEAT_TIMEOUT,
            )
        except PeerError:
            self._heartbeats.unanswered()
            raise
        self._heartbeats.note(request.sent_at, error)
        return ev.HeartbeatAnswered(request, error, beside_commit or self._commits.pending)

    async def leave(self, request: ev.SendLeave) -> ev.Event:
        error = await self._coordinator.leave(
            member_id=request.member_id,
            instance_id=self._instance_id,
            reason=request.reason,
            timeout=LEAVE_TIMEOUT,
        )
        return ev.LeaveAnswered(request, error)


def _refused_plan(error: int, plan: Plan) -> str:
    """In words; `plan` is empty where another member leads."""
    size = "its leader tells how large the plan is"
    if plan:
        parts = [encode_assignment(partitions) for partitions in plan.values()]
        size = f"the plan has {sum(map(len, parts)):,} bytes, for {len(parts):,} members"
    return (
        f"{Api.SYNC.value} was answered with {describe(error)}: {fault(error).remedy()}. The whole group is one record "
        f"of __consumer_offsets, and {size}: if that record is too large, raise max.message.bytes of that topic, or "
        f"set group.group_protocol = consumer, with which each member has a record of its own"
    )


_SESSION_TIMEOUT = "consumer.session.timeout.ms"
"""A group's own setting; what was not set for it is the brokers' group.consumer.session.timeout.ms (`GroupConfig`)."""


class ConsumerRequests:
    """The requests of a member with the consumer protocol. Each raises `PeerError` where the coordinator does not
    answer; nothing is retried here."""

    def __init__(
        self, settings: Settings, connections: Connections, commits: OffsetCommitter, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._coordinator = connections.coordinator
        self._topics = connections.topics
        self._commits = commits
        self._heartbeats = HeartbeatAnswers(Api.CONSUMER_HEARTBEAT, metrics)
        self._conversion_checked = False
        self._session_timeout_known = False
        self._said_of_session = ""

    async def check_conversion(self) -> None:
        """Whether joining would convert a classic group: a group once converted takes its classic members along.

        Raises `ConfigError` where that was not asked for, `PeerError` where it cannot be told now. Brokers without the
        protocol convert nothing: there the member falls back, and so did those that made the group a classic one.
        Caller: before the first join; sends nothing once it was answered.
        """
        if self._conversion_checked or self._settings.group.allow_protocol_upgrade:
            return
        group_id = self._settings.group.id
        found = classic_group(await self._coordinator.describe(HEARTBEAT_TIMEOUT), group_id)
        if found.error == ErrorCode.GROUP_ID_NOT_FOUND:
            self._conversion_checked = True
        elif found.error:
            untold = f"whether it is a classic one is not told: {describe(found.error)}"
            raise CoordinatorUnavailable(found.error, f"group {group_id!r}: {untold}")
        elif await self._coordinator.speaks_consumer_protocol(HEARTBEAT_TIMEOUT):
            raise ConfigError(conversion_refused(group_id, found))

    async def session_timeout(self) -> float | None:
        """The brokers' session timeout for this group, in seconds; None where it was told before, or is not told now.

        Caller: whenever the coordinator was found; asks until it was answered, once.
        """
        return None if self._session_timeout_known else await self.session_timeout_now()

    async def session_timeout_now(self) -> float | None:
        """The brokers' session timeout for this group, in seconds; None where they do not say.

        A heartbeat's answer does not tell it, and a lease longer than the session would leave workers handling beside
        the partitions' new owner. It may be set anew at any time.
        """
        try:
            error, value = await self._coordinator.describe_config(_SESSION_TIMEOUT, HEARTBEAT_TIMEOUT)
        except UnsupportedByBroker:
            return None
        except PeerError as failure:
            log.debug(f"the brokers' {_SESSION_TIMEOUT} is asked for again later: {failure}")
            return None
        self._session_timeout_known = True
        ours = self._settings.group.session_timeout_ms
        if error or value is None or not value.isdecimal():
            right = fault(ErrorCode.GROUP_AUTHORIZATION_FAILED).remedy(rights="DESCRIBE_CONFIGS")
            self._say(
                log.info,
                f"the brokers' {_SESSION_TIMEOUT} for the group cannot be read ({describe(error)}): make sure that it "
                f"is not below group.session_timeout_ms = {ours}; to read it, {right}",
            )
            return None
        if int(value) < ours:
            self._say(
                log.warning,
                f"the brokers' {_SESSION_TIMEOUT} for the group is {value}, below group.session_timeout_ms = {ours}: "
                f"workers pause after {value} ms without an answered heartbeat; raise the one, or lower the other",
            )
        return int(value) / 1000

    def _say(self, level: Callable[[str], None], line: str) -> None:
        """Log the line, unless it is the one that was logged last."""
        if line != self._said_of_session:
            level(line)
        self._said_of_session = line

    async def heartbeat(self, request: ev.SendConsumerHeartbeat) -> ev.Event:
        if request.epoch == 0:
            log.info("joining with the consumer protocol", member_id=request.member_id)
        beside_commit = self._commits.pending
        timeout = HEARTBEAT_TIMEOUT_BESIDE_COMMIT if beside_commit else HEARTBEAT_TIMEOUT
        try:
            answer = await self._coordinator.consumer_heartbeat(
                member_id=request.member_id,
                epoch=request.epoch,
                instance_id=self._settings.group.group_instance_id,
                wishes=self._wishes() if request.full else None,
                owned=request.owned,
                timeout=timeout if request.epoch >= 0 else LEAVE_TIMEOUT,
            )
        except UnsupportedByBroker as error:
            answer = ConsumerHeartbeatAnswer(ErrorCode.UNSUPPORTED_VERSION, str(error))
        except PeerError:
            self._heartbeats.unanswered()
            raise
        self._heartbeats.note(request.sent_at, answer.error, answer.message)
        return ev.ConsumerHeartbeatAnswered(request, answer, beside_commit or self._commits.pending)

    async def name_topics(self, request: ev.NameTopics) -> ev.Event:
        """The names of topic ids, from Metadata; ids that the broker does not know yet are left out, and asked for
        again."""
        try:
            return ev.TopicsNamed(request, await self._topics.name(request.topic_ids))
        except PeerError as error:
            log.info(f"{len(request.topic_ids)} assigned topics have no name yet: {error}")
            return ev.TopicsNamed(request, {})

    def _wishes(self) -> Wishes:
        group = self._settings.group
        return Wishes(
            topics=self._topics.names,
            pattern=self._topics.pattern,
            rebalance_timeout_ms=group.max_poll_interval_ms,
            rack=self._settings.kafka.client_rack,
            assignor=group.group_remote_assignor,
        )


class LookUp:
    """The look-up of the group's coordinator. Caller: `GroupDriver`, one at a time."""

    def __init__(self, group_id: str, coordinator: Coordinator, consumer: ConsumerRequests) -> None:
        self._group_id = group_id
        self._coordinator = coordinator
        self._consumer = consumer
        self._told_at = float("-inf")

    async def find(self, protocol: str) -> ev.CoordinatorFound | ev.CoordinatorRefused:
        """The coordinator and, with the consumer protocol, what has to be known of the group before joining.

        Raises `ConfigError` where joining would convert a group that nobody asked to convert.
        """
        try:
            node = await self._coordinator.find()
            session_timeout = None
            if protocol == "consumer":
                await self._consumer.check_conversion()
                session_timeout = await self._consumer.session_timeout()
        except CoordinatorUnavailable as error:
            return self._refused(error.error, str(error))
        except PeerError as error:
            return self._refused(0, str(error))
        log.info(f"the coordinator of group {self._group_id!r} is node {node.node_id} at {node.host}:{node.port}")
        self._told_at = float("-inf")
        return ev.CoordinatorFound(session_timeout)

    def _refused(self, error: int, why: str) -> ev.CoordinatorRefused:
        if clock.now() >= self._told_at + _TOLD_EVERY:
            self._told_at = clock.now()
            log.warning(f"the coordinator of group {self._group_id!r} is not known: {why}")
        return ev.CoordinatorRefused(error, why)


class GroupRequests:
    """All requests of the group member, as `GroupDriver` uses them."""

    def __init__(
        self, settings: Settings, connections: Connections, commits: OffsetCommitter, events: Events, metrics: Metrics
    ) -> None:
        self.connections = connections
        self.events = events
        """Where answers go."""
        self.classic = ClassicRequests(settings, connections, commits, metrics)
        self.consumer = ConsumerRequests(settings, connections, commits, metrics)
        self.look_up = LookUp(settings.group.id, connections.coordinator, self.consumer)
