"""Members that decide as Kafka's Java consumer does, for a group beside ours in the same model.

After Kafka 4.0, commit 1eb7644349c. Classic: `AbstractCoordinator.java` (joinGroupIfNeeded, the response handlers,
HeartbeatThread), `ConsumerCoordinator.java` (onJoinPrepare, onJoinComplete, rejoinNeededOrPending), `Heartbeat.java`.
Consumer protocol: `AbstractMembershipManager.java` (maybeReconcile, revokeAndAssign), `AbstractHeartbeatRequestManager`
and `ConsumerHeartbeatRequestManager.java`.

- Heartbeats have one pace: `heartbeat.interval.ms` = 3000, or the brokers' 5000 with the consumer protocol.
- A heartbeat's announcement is acted upon at the next poll(), which comes when the records in hand are handled.
- An eager member revokes everything before it joins. A cooperative one revokes what a plan takes away before it takes
  up what the plan adds, and joins again at once.
- Only the leader watches the topics' partitions.
- With the consumer protocol, what is taken away is let go of before anything is taken up; then it is told at once.

Nothing fails here: links that lose, and coordinators that move, are played to our members only. There is no lease: the
Java client handles records until poll() tells it better.
"""

from __future__ import annotations

from random import Random

from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.consumer import Holdings
from kunicorn.group.protocol import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_KEEPING_SLOT_EPOCH,
    NO_GENERATION,
    JoinAnswer,
    Plan,
)
from kunicorn.group.states import OVER, State
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.host import Host, Member
from tests.fakes.java_assignor import cooperative_sticky_plan

HEARTBEAT_INTERVAL = 3.0
CONSUMER_HEARTBEAT_INTERVAL = 5.0
"""`group.consumer.heartbeat.interval.ms`, which the brokers tell their members."""
_NEVER = float("inf")


class JavaHost(Host):
    """A process with the Java client: `drain` is how long it handles records from one poll() to the next. Of what a
    classic member revokes, in poll(), it has no records in hand any more."""

    def _member(self, rng: Random) -> Member:
        if self.assignor is None:
            return JavaConsumerMember(self.name, self.instance_id)
        poll, self.drain = self.drain, 0.0
        return JavaClassicMember(ASSIGNORS[self.assignor].cooperative, self.instance_id, poll)

    def plan(self, request: ev.MakePlan) -> Plan:
        """See `Host`. RangeAssignor's plan is ours."""
        if request.skip or request.assignor != "cooperative-sticky":
            return super().plan(request)
        return cooperative_sticky_plan(request.members, self.world.counts)


class JavaClassicMember:
    """A member of a classic group."""

    def __init__(self, cooperative: bool, instance_id: str | None, poll: float) -> None:
        """`poll`: seconds from one poll() to the next."""
        self.state = State.IDLE
        self.member_id = ""
        self.generation = NO_GENERATION
        self.leader = False
        self.owned: frozenset[TopicPartition] = frozenset()
        self._cooperative, self._instance_id, self._poll = cooperative, instance_id, poll
        self._request: ev.SendJoin | ev.MakePlan | ev.SendSync | ev.SendLeave | ev.Revoke | None = None
        self._beat_at = self._join_at = _NEVER
        self._assignor = ""
        self._added: frozenset[TopicPartition] = frozenset()
        self._changed = False
        """The topics have other partitions than the last plan stands on."""

    @property
    def may_commit(self) -> bool:
        """Whether a commit would be taken."""
        return self.generation != NO_GENERATION and self.state is not State.SYNCING

    def deadline(self) -> float:
        """When the next `Tick` is due."""
        return min(self._beat_at, self._join_at)

    def receive(self, event: ev.Event, now: float) -> list[ev.Command]:  # noqa: C901, PLR0911, PLR0912 - an arm an event
        """What is to be done."""
        match event:
            case ev.JoinWanted():
                return [ev.ExtendLease(_NEVER), ev.FindCoordinator()]
            case ev.CoordinatorFound():
                return self._join("")
            case ev.Tick():
                return self._due(now)
            case ev.Joined(request, answer) if request is self._request:
                return self._on_joined(answer, now)
            case ev.Planned(request, plan) if request is self._request:
                return self._sync(plan)
            case ev.Synced(request, answer) if request is self._request:
                if answer.error == E.REBALANCE_IN_PROGRESS:
                    return self._join("rebalance failed due to RebalanceInProgressException")
                assert answer.error == E.NONE, answer
                return self._complete(frozenset(answer.partitions), now)
            case ev.HeartbeatAnswered(request, error, _) if request.generation == self.generation:
                if error == E.REBALANCE_IN_PROGRESS and self.state is State.STABLE:
                    self._join_at = min(self._join_at, now + self._poll)
                assert error in (E.NONE, E.REBALANCE_IN_PROGRESS), event
                return []
            case ev.Released(request, _) if request is self._request:
                return self._on_released(request)
            case ev.TopicsChanged():
                self._changed = True
                self._join_at = now + self._poll if self.state is State.STABLE else self._join_at
                return []
            case ev.LeaveWanted():
                self._join_at, self.state = _NEVER, State.LEAVING
                return [self._revoke(self.owned)]
            case ev.LeaveAnswered():
                return self._gone()
            case ev.Unanswered() | ev.CoordinatorRefused() | ev.CommitRefused():
                raise AssertionError(f"nothing fails in this model, and {event} came")
            case _:
                return []

    def _due(self, now: float) -> list[ev.Command]:
        commands: list[ev.Command] = []
        if now >= self._beat_at:
            self._beat_at = now + HEARTBEAT_INTERVAL
            commands.append(ev.SendHeartbeat(self.generation, self.member_id, now))
        if now >= self._join_at:
            commands += self._prepare()
        return commands

    def _prepare(self) -> list[ev.Command]:
        """onJoinPrepare."""
        self._join_at = _NEVER
        if self._cooperative or not self.owned:
            return self._join("group is already rebalancing")
        self.state = State.PREPARING
        return [self._revoke(self.owned)]

    def _revoke(self, partitions: frozenset[TopicPartition]) -> ev.Command:
        self._request = revoke = ev.Revoke(tuple(sorted(partitions)))
        return revoke

    def _join(self, reason: str) -> list[ev.Command]:
        # The heartbeat thread stops until the join is answered.
        self.state, self.leader, self._beat_at, self._join_at = State.JOINING, False, _NEVER, _NEVER
        owned = tuple(sorted(self.owned))
        self._request = join = ev.SendJoin(self.generation, self.member_id, owned, owned, reason)
        return [join]

    def _on_joined(self, answer: JoinAnswer, now: float) -> list[ev.Command]:
        if answer.error == E.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self._join("need to re-join with the given member-id")
        assert answer.error == E.NONE, answer
        self.state, self._beat_at = State.SYNCING, now + HEARTBEAT_INTERVAL
        self.generation, self.member_id = answer.generation, answer.member_id
        self._assignor = answer.assignor or ""
        self.leader = answer.leader == answer.member_id
        if not self.leader:
            return self._sync({})
        self._changed = False
        self._request = plan = ev.MakePlan(
            answer.generation, answer.assignor or "", answer.members, answer.skip_assignment
        )
        return [plan]

    def _sync(self, plan: Plan) -> list[ev.Command]:
        self._request = sync = ev.SendSync(self.generation, self.member_id, self._assignor, plan)
        return [sync]

    def _complete(self, assigned: frozenset[TopicPartition], now: float) -> list[ev.Command]:
        """onJoinComplete."""
        revoked, self._added = self.owned - assigned, assigned - self.owned
        if self._cooperative and revoked:
            self.state = State.REVOKING
            return [self._revoke(revoked)]
        self.state = State.STABLE
        if self._changed and self.leader:
            self._join_at = now + self._poll
        return [self._take_up()]

    def _take_up(self) -> ev.Command:
        self.owned |= self._added
        assign = ev.Assign(tuple(sorted(self._added)), self.generation)
        self._added = frozenset()
        return assign

    def _on_released(self, request: ev.Revoke) -> list[ev.Command]:
        self.owned -= frozenset(request.partitions)
        match self.state:
            case State.REVOKING:
                return [self._take_up(), *self._join("need to revoke partitions and re-join")]
            case State.LEAVING if self._instance_id is None and self.member_id:
                self._beat_at = _NEVER
                self._request = leave = ev.SendLeave(self.generation, self.member_id, "the consumer is being closed")
                return [leave]
            case State.LEAVING:
                return self._gone()
            case _:
                return self._join("group is already rebalancing")

    def _gone(self) -> list[ev.Command]:
        self.state, self._beat_at, self._join_at = State.LEFT, _NEVER, _NEVER
        return []


class JavaConsumerMember:
    """A member of a group with the consumer protocol."""

    leader = False

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.state = State.IDLE
        self.member_id = member_id
        self.generation = NO_GENERATION
        self._instance_id = instance_id
        self._holdings = Holdings()
        self._draining: ev.Revoke | None = None
        self._beat_at = _NEVER
        self._in_flight = False

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What its poll() returns records of."""
        return self._holdings.owned

    @property
    def may_commit(self) -> bool:
        """Whether a commit would be taken."""
        return self.generation != NO_GENERATION

    def deadline(self) -> float:
        """When the next `Tick` is due."""
        return _NEVER if self._in_flight else self._beat_at

    def receive(self, event: ev.Event, now: float) -> list[ev.Command]:
        """What is to be done."""
        commands = [] if self.state in OVER else self._react(event, now)
        return commands + (self._beat(now) if now >= self.deadline() else [])

    def _react(self, event: ev.Event, now: float) -> list[ev.Command]:
        match event:
            case ev.JoinWanted():
                return [ev.ExtendLease(_NEVER), ev.FindCoordinator()]
            case ev.CoordinatorFound():
                self.state, self._beat_at = State.JOINING, now
                return []
            case ev.ConsumerHeartbeatAnswered(request, answer, _):
                self._in_flight = False
                if request.epoch < JOIN_EPOCH:
                    self.state, self._beat_at = State.LEFT, _NEVER
                    return []
                assert answer.error == E.NONE, answer
                self.generation = answer.epoch
                if answer.assignment is not None:
                    self._holdings.target = answer.assignment
                unnamed = self._holdings.unnamed
                return [ev.NameTopics(unnamed)] if unnamed else self._reconcile(now)
            case ev.TopicsNamed(_, names):
                self._holdings.name(names)
                return self._reconcile(now)
            case ev.Released(request, _) if request is self._draining:
                self._draining = None
                self._holdings.release(request.partitions)
                return self._part(now) if self.state is State.LEAVING else self._take_up(now)
            case ev.LeaveWanted():
                self.state = State.LEAVING
                self._draining = ev.Revoke(tuple(sorted(self.owned)))
                return [self._draining]
            case ev.Unanswered() | ev.CoordinatorRefused() | ev.CommitRefused():
                raise AssertionError(f"nothing fails in this model, and {event} came")
            case _:
                return []

    def _reconcile(self, now: float) -> list[ev.Command]:
        if self._draining is not None or self.state is State.LEAVING:
            return []
        surplus = self._holdings.surplus()
        if surplus:
            self.state, self._draining = State.RECONCILING, ev.Revoke(surplus)
            return [self._draining]
        return self._take_up(now)

    def _take_up(self, now: float) -> list[ev.Command]:
        added = self._holdings.take_up()
        if not added and self.state in (State.STABLE, State.ACKNOWLEDGING):
            return []
        if not added and self.state is State.JOINING:
            self.state = State.STABLE
            return []
        self.state, self._beat_at = State.ACKNOWLEDGING, now
        return [ev.Assign(added, self.generation)] if added else []

    def _beat(self, now: float) -> list[ev.Command]:
        self._in_flight, self._beat_at = True, now + CONSUMER_HEARTBEAT_INTERVAL
        joining = self.state is State.JOINING
        owned = () if joining else self._holdings.report() if self.state is State.ACKNOWLEDGING else None
        if self.state is State.ACKNOWLEDGING:
            self.state = State.STABLE
        epoch = JOIN_EPOCH if joining and self.generation == NO_GENERATION else self.generation
        return [ev.SendConsumerHeartbeat(epoch, self.member_id, joining, owned, now)]

    def _part(self, now: float) -> list[ev.Command]:
        epoch = LEAVE_EPOCH if self._instance_id is None else LEAVE_KEEPING_SLOT_EPOCH
        self._in_flight, self._beat_at = True, _NEVER
        return [ev.SendConsumerHeartbeat(epoch, self.member_id, False, None, now)]
