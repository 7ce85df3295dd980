"""What a classic member's commands become on the wire, and the events their answers are."""

from __future__ import annotations

import asyncio

from kunicorn.errors import PeerError
from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.protocol import NO_GENERATION, Subscription
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.settings import Settings
from kunicorn.supervisor.commits import Commits
from kunicorn.supervisor.topics import Topics
from kunicorn.wire.coordinator import Coordinator

log = logs.get("kunicorn.membership")

HEARTBEAT_TIMEOUT = 3.0
HEARTBEAT_TIMEOUT_BESIDE_COMMIT = 6.0
"""A frozen replica of the offsets partition makes the broker hold heartbeats for five seconds while a commit is out."""
LEAVE_TIMEOUT = 3.0
_JOIN_MARGIN = 5.0


class ClassicRequests:
    """Everything raises `PeerError` where the coordinator does not answer; nothing is retried here."""

    def __init__(self, settings: Settings, coordinator: Coordinator, topics: Topics, metrics: Metrics) -> None:
        self.commits: Commits
        """Set by the membership."""
        group = settings.group
        self._settings = settings
        self._coordinator = coordinator
        self._topics = topics
        self._metrics = metrics
        self._instance_id = group.group_instance_id
        self._assignors = [ASSIGNORS[name] for name in group.partition_assignment_strategy]
        self._parked = group.max_poll_interval_ms / 1000 + _JOIN_MARGIN
        self._said_of_plan = ""

    async def join(self, request: ev.SendJoin) -> ev.Event:
        """JoinGroup, after the commit in flight (invariant 2)."""
        await self.commits.quiet()
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
        """The plan for all members, from fresh metadata; made in a thread (invariant 5)."""
        topics = {topic for member in request.members for topic in member.subscription.topics}
        try:
            by_rack = any(member.subscription.rack for member in request.members)
            ground = await self._topics.plan_for(topics, by_rack=by_rack)
        except PeerError as error:
            # Without a plan to make there is nothing to wait for: the topics are watched from here on.
            return ev.Planned(request, {}) if request.skip else ev.PlanFailed(request, str(error))
        if request.skip:
            return ev.Planned(request, {})
        assignor = ASSIGNORS[request.assignor]
        plan = await asyncio.to_thread(assignor.plan, request.members, ground.counts, ground.racks)
        log.info(
            f"planned generation {request.generation} for {len(request.members)} members", assignor=request.assignor
        )
        return ev.Planned(request, plan)

    async def sync(self, request: ev.SendSync) -> ev.Event:
        """SyncGroup."""
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
        return ev.Synced(request, answer, sent_at)

    async def heartbeat(self, request: ev.SendHeartbeat) -> ev.Event:
        """Heartbeat."""
        beside_commit = self.commits.pending
        try:
            error = await self._coordinator.heartbeat(
                generation=request.generation,
                member_id=request.member_id,
                instance_id=self._instance_id,
                timeout=HEARTBEAT_TIMEOUT_BESIDE_COMMIT if beside_commit else HEARTBEAT_TIMEOUT,
            )
        except PeerError:
            self._metrics.heartbeats.labels(result="unanswered").inc()
            raise
        self._metrics.heartbeats.labels(result="ok" if not error else f"error {error}").inc()
        self._metrics.heartbeat_seconds.observe(clock.now() - request.sent_at)
        return ev.HeartbeatAnswered(request, error, beside_commit or self.commits.pending)

    async def leave(self, request: ev.SendLeave) -> ev.Event:
        """LeaveGroup."""
        error = await self._coordinator.leave(
            member_id=request.member_id,
            instance_id=self._instance_id,
            reason=request.reason,
            timeout=LEAVE_TIMEOUT,
        )
        return ev.LeaveAnswered(request, error)
