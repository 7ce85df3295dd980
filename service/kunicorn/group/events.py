"""The events that a member is told, and the commands that it gives: all that state machine and driver exchange.

Every request command is also the receipt of its answer: the driver hands the very object back, so the member sees
under which generation and member id it was sent, and ignores what belongs to the past.
Structs, as there are many: C makes their classes, where dataclasses would be a twentieth of a service's start.
Times are seconds of the driver's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from msgspec import Struct

from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, Member, Plan, SyncAnswer, TopicPartitions
from kunicorn.positions import TopicPartition

# -- commands: carried out by the driver, in order -----------------------------------------------------------


class FindCoordinator(Struct, frozen=True, eq=False):
    """Look the coordinator up; answer with `CoordinatorFound` or `CoordinatorRefused`."""


class ForgetCoordinator(Struct, frozen=True, eq=False):
    """Close the coordinator's connections: it moved, or does not answer."""

    reason: str


class SendJoin(Struct, frozen=True, eq=False):
    """Send JoinGroup, but only after the commit in flight has been answered (invariant 2)."""

    generation: int
    member_id: str
    owned: tuple[TopicPartition, ...]
    """What a worker of ours may still handle; an eager member has let go of everything by now."""
    assigned: tuple[TopicPartition, ...]
    """What the plan of `generation` gave us, for assignors that keep partitions where they were (KIP-54)."""
    reason: str


class MakePlan(Struct, frozen=True, eq=False):
    """We lead: plan off the loop, from fresh metadata for all members' topics; answer with `Planned`."""

    generation: int
    assignor: str
    members: tuple[Member, ...]
    skip: bool = False
    """The group keeps the plan it has (KIP-814): only watch the members' topics, and answer with an empty plan."""


class SendSync(Struct, frozen=True, eq=False):
    """Send SyncGroup; a follower's plan is empty."""

    generation: int
    member_id: str
    assignor: str | None
    plan: Plan


class SendHeartbeat(Struct, frozen=True, eq=False):
    """Send Heartbeat."""

    generation: int
    member_id: str
    sent_at: float


class SendLeave(Struct, frozen=True, eq=False):
    """Send LeaveGroup, best effort: one try."""

    generation: int
    member_id: str
    reason: str


class SendConsumerHeartbeat(Struct, frozen=True, eq=False):
    """Send ConsumerGroupHeartbeat: to join (epoch 0), stay, acknowledge, or leave (-1; -2 keeps a static slot).

    `full`: say everything (subscription, rebalance timeout, assignor), not only what changed since the last answer.
    """

    epoch: int
    member_id: str
    full: bool
    owned: TopicPartitions | None
    """What we own; None where that is as the coordinator was last told, or partitions are being let go of."""
    sent_at: float


class NameTopics(Struct, frozen=True, eq=False):
    """Ask the cluster what these topic ids are called; answer with `TopicsNamed`, even if none is known."""

    topic_ids: frozenset[UUID]


class FallBack(Struct, frozen=True, eq=False):
    """The brokers do not speak the consumer protocol: go on with a classic member."""

    why: str


class Assign(Struct, frozen=True, eq=False):
    """These partitions are ours from now on."""

    partitions: tuple[TopicPartition, ...]
    generation: int


class Revoke(Struct, frozen=True, eq=False):
    """Drain these partitions and commit them, synchronously; answer with `Released`."""

    partitions: tuple[TopicPartition, ...]


class Lose(Struct, frozen=True, eq=False):
    """These partitions may be another member's already: stop them, commit nothing."""

    partitions: tuple[TopicPartition, ...]
    reason: str


class ExtendLease(Struct, frozen=True, eq=False):
    """Extend the workers' lease: the membership is certain until then."""

    until: float


class Fail(Struct, frozen=True, eq=False):
    """The group refuses this member for good."""

    message: str


Command = (
    FindCoordinator | ForgetCoordinator | SendJoin | MakePlan | SendSync | SendHeartbeat | SendLeave
    | SendConsumerHeartbeat | NameTopics | FallBack | Assign | Revoke | Lose | ExtendLease | Fail
)  # fmt: skip
Request = SendJoin | SendSync | SendHeartbeat | SendLeave | SendConsumerHeartbeat

# -- events: told to the member by the driver ----------------------------------------------------------------


class Tick(Struct, frozen=True):
    """Time has passed; `deadline` says when the next one is due."""


class JoinWanted(Struct, frozen=True):
    """The service is ready for partitions."""


class CoordinatorFound(Struct, frozen=True):
    """The coordinator's node is known; and the session timeout (seconds) that it has for us, if it told."""

    session_timeout: float | None = None


class SessionTold(Struct, frozen=True):
    """The session timeout (seconds) that the brokers have for the group by now."""

    session_timeout: float


class CoordinatorRefused(Struct, frozen=True):
    """The look-up failed: with an error code, or (0) because no broker answered."""

    error: int
    why: str


class Joined(Struct, frozen=True):
    """JoinGroup was answered."""

    request: SendJoin
    answer: JoinAnswer


class Planned(Struct, frozen=True):
    """The plan for the generation we lead."""

    request: MakePlan
    plan: Plan


class PlanFailed(Struct, frozen=True):
    """The plan could not be made, for want of metadata."""

    request: MakePlan
    why: str


class Synced(Struct, frozen=True):
    """SyncGroup was answered."""

    request: SendSync
    answer: SyncAnswer
    sent_at: float


class HeartbeatAnswered(Struct, frozen=True):
    """Heartbeat was answered. While a commit is out, error 15 is the broker's way of saying "wait"."""

    request: SendHeartbeat
    error: int
    commit_pending: bool


class ConsumerHeartbeatAnswered(Struct, frozen=True):
    """ConsumerGroupHeartbeat was answered. `commit_pending` as for `HeartbeatAnswered`."""

    request: SendConsumerHeartbeat
    answer: ConsumerHeartbeatAnswer
    commit_pending: bool


class TopicsNamed(Struct, frozen=True):
    """What the cluster calls those topic ids that it knows."""

    request: NameTopics
    names: Mapping[UUID, str]


class LeaveAnswered(Struct, frozen=True):
    """LeaveGroup was answered, well or badly."""

    request: SendLeave
    error: int


class Unanswered(Struct, frozen=True):
    """The connection broke or the time-out passed: whether the broker acted on the request is unknown."""

    request: Request
    why: str


class Released(Struct, frozen=True):
    """The drain and the commit that `Revoke` asked for are over, whatever came of them.

    `held` of its partitions are still in a handler's hands and go on draining: they stay owned for now, so that the
    others need not wait for them (cooperative members only).
    """

    request: Revoke
    held: frozenset[TopicPartition] = frozenset()


class CommitRefused(Struct, frozen=True):
    """OffsetCommit was answered with an error that concerns membership."""

    generation: int
    member_id: str
    error: int


class TopicsChanged(Struct, frozen=True):
    """Topics or partition counts that the subscription or our plan stands on are not what they were."""

    reason: str


class LeaveWanted(Struct, frozen=True):
    """The service stops: drain, commit, leave."""

    reason: str


Event = (
    Tick | JoinWanted | CoordinatorFound | CoordinatorRefused | Joined | Planned | PlanFailed | Synced
    | HeartbeatAnswered | ConsumerHeartbeatAnswered | TopicsNamed | LeaveAnswered | Unanswered | Released
    | CommitRefused | TopicsChanged | LeaveWanted | SessionTold
)  # fmt: skip
