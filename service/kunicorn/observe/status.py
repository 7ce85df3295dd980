"""The snapshot of the service that `/status`, the metrics, the probes and the demo's view are made of.

Frozen and plain, so that it can be rendered in another thread while the service goes on. No secret enters it. Durations
and ages are seconds; offsets are the next offset to read.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One assigned partition. `reason` says why it is not simply running; None where there is nothing to say."""

    topic: str
    partition: int
    state: str
    """A `PartitionState` value: resolving, starting, running, paused, moving, stopping, halted, stuck, released."""
    reason: str | None
    since: float
    """Seconds in this state."""
    worker: int | None
    grant: int | None
    position: int | None
    """The next offset to handle; None until it is resolved."""
    committed: int | None
    log_end: int | None
    """High watermark, or last stable offset with `isolation_level = "read_committed"`."""
    lag: int | None
    lag_seconds: float | None
    in_hand: int | None
    """First unfinished offset the handler has in hand."""
    in_hand_age: float | None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One slot of the pool, and the worker process that has it now."""

    worker: int
    pid: int | None
    state: str
    """starting, ready, draining, backing-off, idle."""
    revision: int | None
    """Which reload's code and settings it runs; 1 are those of the service's start."""
    predecessor: int | None
    """Pid of the process that still hands its partitions over to this one."""
    predecessor_pong_age: float | None
    """Since the predecessor last answered."""
    partitions: int
    handled: int
    """Records finished by all the incarnations of this worker."""
    restarts: int
    rss_bytes: int | None
    in_hand: str | None
    """topic-partition@offset of the record in hand."""
    in_hand_age: float | None
    runner_age: float | None
    """Since the runner last showed progress of its own; None before the first evidence."""
    pong_age: float | None
    """Since the control thread last answered."""
    paused_by_lease: bool
    last_exit: str | None
    waiting: dict[str, int] = field(default_factory=dict)
    """Partitions of which a record waits, by what for: as the metric `kunicorn_partitions_waiting` says."""
    broken_circuits: dict[str, int] = field(default_factory=dict)
    """Number of its partitions, by topic, whose handler is not called, or only probed: its circuit breaker is open."""
    in_flight: int = 0
    """Records that calls of the handler have right now, one unless several may be in hand; `in_hand` is the oldest."""
    load: float = 0.0
    """Share of its time that its partitions take: 1 is all it has; a lag counts as what it takes to catch up in ten
    seconds."""
    starting: float | None = None
    """For how long its process has not been ready yet; None once it has been."""


@dataclass(frozen=True, slots=True)
class RateStatus:
    """A handler's rate limit that workers have together."""

    handler: str
    per_second: float
    """Of this pod."""
    members: int
    """By so many members the rate is divided."""


@dataclass(frozen=True, slots=True)
class RebalanceStatus:
    """One finished rebalance."""

    generation: int
    reason: str
    result: str
    """"completed", "lost" or "failed"."""
    seconds: float
    age: float


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Membership of the group, as this member knows it."""

    group_id: str
    protocol: str
    """"classic" or "consumer"."""
    state: str
    member_id: str
    instance_id: str | None
    generation: int
    leader: bool
    assignor: str | None
    coordinator: str | None
    joined: bool
    """Has been a stable member at least once since the start."""
    heartbeat_age: float | None
    """Since the last heartbeat that was answered without an error."""
    lease_left: float | None
    """Until workers pause; negative when they have."""
    session_timeout: float
    rebalances: int
    last_rebalances: tuple[RebalanceStatus, ...]


@dataclass(frozen=True, slots=True)
class AssignStatus:
    """Partitions named by [assign], without membership."""

    stop: str
    """"never" or "end"."""
    partitions: int
    finished: int
    """Handled up to their end."""
    fetched: bool
    """All have been fetched since the start."""


@dataclass(frozen=True, slots=True)
class CommitStatus:
    """State of the committer."""

    last_age: float | None
    """Since the last successful commit."""
    last_result: str | None
    pending: bool


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """The last reload of settings and handler, or the one that runs."""

    result: str
    """running, completed, failed (nothing was changed) or incomplete (some workers run the revision before)."""
    revision: int
    """The one in force; 1 is that of the start."""
    message: str
    """What was changed, or why it failed."""
    kept: tuple[str, ...]
    """Settings whose new value takes effect with the next start only."""
    age: float


@dataclass(frozen=True, slots=True)
class Status:
    """The whole service at one instant."""

    version: str
    client_id: str
    pid: int
    uptime: float
    stopping: bool
    loop_lag: float
    """How late the supervisor's event loop ran lately, worst of the last seconds."""
    brokers_reached: bool
    problem: str | None
    """What keeps the service from working at all, in plain words: no broker, refused group."""
    outage: str | None
    """Why no broker answered when all were asked last, of a service that has begun; None once one has. The service is
    ready all the same: it goes on by itself."""
    template: str
    """starting, ready, backing-off."""
    reload: ReloadStatus | None
    """None before the first."""
    group_id: str
    """What our clients carry as `group.id`, whether or not we are a member."""
    group: GroupStatus | None
    """None with [assign]."""
    assign: AssignStatus | None
    """None for a member of a group."""
    commit: CommitStatus | None
    """None where the supervisor commits no offsets, or starts alone: with [assign], where workers commit, and where
    all handlers keep their offsets."""
    workers: tuple[WorkerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    totals: dict[str, int] = field(default_factory=dict)
    """Since the start: records, failures, retries, dead_letters, retry_topics, skipped; sent (records that handlers
    returned), and aborted (transactions, each of which is sent again)."""
    rates: tuple[RateStatus, ...] = ()
    """Rate limits that are divided, by handler."""
    acts: bool = False
    """Whether something can be done over HTTP, by whoever has the token."""
    settings: dict[str, object] = field(default_factory=dict)
    """The settings in force, secrets hidden."""
