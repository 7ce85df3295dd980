"""What the commands of a member with the consumer protocol become on the wire (KIP-848), and the answers' events."""

from __future__ import annotations

from collections.abc import Callable

from kunicorn.errors import ConfigError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.error_codes import COORDINATOR_MOVED, ErrorCode
from kunicorn.group.protocol import ConsumerHeartbeatAnswer
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.settings import Settings
from kunicorn.supervisor.classic_requests import HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_BESIDE_COMMIT, LEAVE_TIMEOUT
from kunicorn.supervisor.commits import Commits
from kunicorn.supervisor.topics import Topics
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import describe
from kunicorn.wire.errors import CoordinatorUnavailable, UnsupportedByBroker
from kunicorn.wire.group_admin import classic_group, conversion_refused
from kunicorn.wire.group_requests import Wishes

log = logs.get("kunicorn.membership")


_SESSION_TIMEOUT = "consumer.session.timeout.ms"
"""A group's own setting; what was not set for it is the brokers' group.consumer.session.timeout.ms (`GroupConfig`)."""


class ConsumerRequests:
    """Raises `PeerError` where the coordinator does not answer; nothing is retried here."""

    def __init__(self, settings: Settings, coordinator: Coordinator, topics: Topics, metrics: Metrics) -> None:
        self.commits: Commits
        """Set by the membership."""
        self._settings = settings
        self._coordinator = coordinator
        self._topics = topics
        self._metrics = metrics
        self._last_error = 0
        self._conversion_checked = False
        self._session_timeout_known = False
        self._said_of_session = ""

    async def check_conversion(self) -> None:
        """Whether joining would convert a classic group: a group once converted takes its classic members along.

        Raises `ConfigError` where that was not asked for, `PeerError` where it cannot be told now. Caller: before the
        first join; sends nothing once it was answered.
        """
        if self._conversion_checked or self._settings.group.allow_protocol_upgrade:
            return
        group_id = self._settings.group.id
        found = classic_group(await self._coordinator.describe(HEARTBEAT_TIMEOUT), group_id)
        if found.error in COORDINATOR_MOVED:
            raise CoordinatorUnavailable(found.error, f"group {group_id!r}: {describe(found.error)}")
        if not found.error:
            raise ConfigError(conversion_refused(group_id, found))
        self._conversion_checked = True

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
            self._say(
                log.info,
                f"the brokers' {_SESSION_TIMEOUT} for the group cannot be read ({describe(error)}): make sure that it "
                f"is not below group.session_timeout_ms = {ours}, or grant this user DESCRIBE_CONFIGS on the group",
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
        """Not again what was said at the last question."""
        if line != self._said_of_session:
            level(line)
        self._said_of_session = line

    async def heartbeat(self, request: ev.SendConsumerHeartbeat) -> ev.Event:
        """ConsumerGroupHeartbeat."""
        if request.epoch == 0:
            log.info("joining with the consumer protocol", member_id=request.member_id)
        beside_commit = self.commits.pending
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
            self._metrics.heartbeats.labels(result="unanswered").inc()
            raise
        self._note(answer)
        self._metrics.heartbeat_seconds.observe(clock.now() - request.sent_at)
        return ev.ConsumerHeartbeatAnswered(request, answer, beside_commit or self.commits.pending)

    async def name_topics(self, request: ev.NameTopics) -> ev.Event:
        """Metadata by topic id; a broker that does not know a new topic yet is asked again later."""
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

    def _note(self, answer: ConsumerHeartbeatAnswer) -> None:
        error = answer.error
        self._metrics.heartbeats.labels(result="ok" if not error else f"error {error}").inc()
        if error and error != self._last_error:
            log.warning(f"ConsumerGroupHeartbeat was answered with {describe(error)}: {answer.message}")
        self._last_error = error
