"""What a member hears and what it orders: the closed vocabulary between the state machine and its driver.

Every request command is also the receipt of its answer: the driver hands the very object back, so the member sees
under which generation and member id it was sent, and ignores what belongs to the past.
Times are seconds of the driver's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, Member, Plan, SyncAnswer, TopicPartitions
from kunicorn.topics import TopicPartition

# -- commands: carried out by the driver, in order -----------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FindCoordinator:
    """Look the coordinator up; answer with `CoordinatorFound` or `CoordinatorRefused`."""


@dataclass(frozen=True, slots=True, eq=False)
class ForgetCoordinator:
    """Close the coordinator's connections: it moved, or does not answer."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class SendJoin:
    """Send JoinGroup, but only after the commit in flight has been answered (invariant 2)."""

    generation: int
    member_id: str
    owned: tuple[TopicPartition, ...]
    """What a worker of ours may still handle; an eager member has let go of everything by now."""
    assigned: tuple[TopicPartition, ...]
    """What the plan of `generation` gave us, for assignors that keep partitions where they were (KIP-54)."""
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class MakePlan:
    """We lead: plan off the loop, from fresh metadata for all members' topics; answer with `Planned`."""

    generation: int
    assignor: str
    members: tuple[Member, ...]
    skip: bool = False
    """The group keeps the plan it has (KIP-814): only watch the members' topics, and answer with an empty plan."""


@dataclass(frozen=True, slots=True, eq=False)
class SendSync:
    """Send SyncGroup; a follower's plan is empty."""

    generation: int
    member_id: str
    assignor: str | None
    plan: Plan
    again: bool = False
    """No answer came to the one before."""


@dataclass(frozen=True, slots=True, eq=False)
class SendHeartbeat:
    """Send Heartbeat."""

    generation: int
    member_id: str
    sent_at: float


@dataclass(frozen=True, slots=True, eq=False)
class SendLeave:
    """Send LeaveGroup, best effort: one try."""

    generation: int
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class SendConsumerHeartbeat:
    """Send ConsumerGroupHeartbeat: to join (epoch 0), stay, acknowledge, or leave (-1; -2 keeps a static slot).

    `full`: say everything (subscription, rebalance timeout, assignor), not only what changed since the last answer.
    """

    epoch: int
    member_id: str
    full: bool
    owned: TopicPartitions | None
    """What we own; None where that is as the coordinator was last told, or partitions are being let go of."""
    sent_at: float


@dataclass(frozen=True, slots=True, eq=False)
class NameTopics:
    """Ask the cluster what these topic ids are called; answer with `TopicsNamed`, even if none is known."""

    topic_ids: frozenset[UUID]


@dataclass(frozen=True, slots=True, eq=False)
class FallBack:
    """The brokers do not speak the consumer protocol: go on with a classic member."""

    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """These partitions are ours from now on."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True, eq=False)
class Revoke:
    """Drain these partitions and commit them, synchronously; answer with `Released`."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lose:
    """These partitions may be another member's already: stop them, commit nothing."""

    partitions: tuple[TopicPartition, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class BeCertain:
    """Membership is certain until then: extend the workers' lease."""

    until: float


@dataclass(frozen=True, slots=True, eq=False)
class Fail:
    """The group refuses this member for good."""

    message: str


Command = (
    FindCoordinator | ForgetCoordinator | SendJoin | MakePlan | SendSync | SendHeartbeat | SendLeave
    | SendConsumerHeartbeat | NameTopics | FallBack | Assign | Revoke | Lose | BeCertain | Fail
)  # fmt: skip
Request = SendJoin | SendSync | SendHeartbeat | SendLeave | SendConsumerHeartbeat

# -- events: told to the member by the driver ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; `deadline` says when the next one is due."""


@dataclass(frozen=True, slots=True)
class JoinWanted:
    """The service is ready for partitions."""


@dataclass(frozen=True, slots=True)
class CoordinatorFound:
    """The coordinator's node is known; and the session timeout (seconds) that it has for us, if it told."""

    session_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorRefused:
    """The look-up failed: with an error code, or (0) because no broker answered."""

    error: int
    why: str


@dataclass(frozen=True, slots=True)
class Joined:
    """JoinGroup was answered."""

    request: SendJoin
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan for the generation we lead."""

    request: MakePlan
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """The plan could not be made, for want of metadata."""

    request: MakePlan
    why: str


@dataclass(frozen=True, slots=True)
class Synced:
    """SyncGroup was answered."""

    request: SendSync
    answer: SyncAnswer
    sent_at: float


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """Heartbeat was answered. While a commit is out, error 15 is the broker's way of saying "wait"."""

    request: SendHeartbeat
    error: int
    commit_pending: bool


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswered:
    """ConsumerGroupHeartbeat was answered. `commit_pending` as for `HeartbeatAnswered`."""

    request: SendConsumerHeartbeat
    answer: ConsumerHeartbeatAnswer
    commit_pending: bool


@dataclass(frozen=True, slots=True)
class TopicsNamed:
    """What the cluster calls those topic ids that it knows."""

    request: NameTopics
    names: Mapping[UUID, str]


@dataclass(frozen=True, slots=True)
class LeaveAnswered:
    """LeaveGroup was answered, well or badly."""

    request: SendLeave
    error: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The connection broke or the time-out passed: whether the broker acted on the request is unknown."""

    request: Request
    why: str


@dataclass(frozen=True, slots=True)
class Released:
    """The drain and the commit that `Revoke` asked for are over, whatever came of them.

    `held` of its partitions are still in a handler's hands and go on draining: they stay owned for now, so that the
    others need not wait for them (cooperative members only).
    """

    request: Revoke
    held: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """OffsetCommit was answered with an error that concerns membership."""

    generation: int
    member_id: str
    error: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics or partition counts that the subscription or our plan stands on are not what they were."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """The service stops: drain, commit, leave."""

    reason: str


Event = (
    Tick | JoinWanted | CoordinatorFound | CoordinatorRefused | Joined | Planned | PlanFailed | Synced
    | HeartbeatAnswered | ConsumerHeartbeatAnswered | TopicsNamed | LeaveAnswered | Unanswered | Released
    | CommitRefused | TopicsChanged | LeaveWanted
)  # fmt: skip
