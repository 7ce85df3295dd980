"""States, of a group's member (a flat table for each protocol) and of an assigned partition (one flat table). Tests
walk them, the docs draw them.

A partition is in the hands of at most one worker (invariant 4), and always in a state that says why it is or is not
being fetched (invariant 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """The states of a member between joining and leaving."""

    #: Not asked to join yet.
    IDLE = "idle"
    #: Classic: a JoinGroup is due as soon as the coordinator is known. Partitions may still be owned (cooperative).
    UNJOINED = "unjoined"
    #: Classic: partitions are being drained and committed before the JoinGroup.
    PREPARING = "preparing"
    #: Classic: JoinGroup is out; the broker parks it until all members have joined. Heartbeats, no commits.
    #: Consumer: heartbeats with epoch 0 ask to be let in.
    JOINING = "joining"
    #: Classic: the plan is being made, or SyncGroup is out. Heartbeats, no commits.
    SYNCING = "syncing"
    #: A member with an assignment.
    STABLE = "stable"
    #: Classic: partitions that the last plan took away are being drained and committed; a rejoin follows (KIP-429).
    REVOKING = "revoking"
    #: Consumer: partitions that the coordinator takes away are being drained and committed (KIP-848).
    RECONCILING = "reconciling"
    #: Consumer: the coordinator is to be told what we own now; it gives what we let go of to others then.
    ACKNOWLEDGING = "acknowledging"
    #: Everything is being drained and committed, or the leave is out.
    LEAVING = "leaving"
    #: Out of the group, as asked.
    LEFT = "left"
    #: Refused for good.
    FAILED = "failed"


class Transition(Enum):
    """The transitions of a member from state to state; several events may amount to the same one."""

    WANT = "join wanted"
    ASK = "JoinGroup sent"
    ACCEPT = "accepted by the coordinator"
    RETRY = "asked again later"
    ASSIGN = "assignment received"
    ASSIGN_LESS = "assignment takes partitions away"
    REBALANCE = "rebalance under way"
    REBALANCE_KEEPING = "rebalance under way, partitions stay"
    RELEASE = "drained and committed"
    EVICT = "membership lost"
    LEAVE = "leave wanted"
    GONE = "left"
    FAIL = "refused for good"


S, T = State, Transition

Table = Mapping[tuple[State, Transition], State]

CLASSIC: Table = {
    (S.IDLE, T.WANT): S.UNJOINED,
    (S.IDLE, T.LEAVE): S.LEAVING,
    (S.UNJOINED, T.ASK): S.JOINING,
    (S.UNJOINED, T.EVICT): S.UNJOINED,
    (S.UNJOINED, T.LEAVE): S.LEAVING,
    (S.UNJOINED, T.FAIL): S.FAILED,
    (S.PREPARING, T.RELEASE): S.UNJOINED,
    (S.PREPARING, T.EVICT): S.UNJOINED,
    (S.PREPARING, T.LEAVE): S.LEAVING,
    (S.PREPARING, T.FAIL): S.FAILED,
    (S.JOINING, T.ACCEPT): S.SYNCING,
    (S.JOINING, T.RETRY): S.UNJOINED,
    (S.JOINING, T.EVICT): S.UNJOINED,
    (S.JOINING, T.LEAVE): S.LEAVING,
    (S.JOINING, T.FAIL): S.FAILED,
    (S.SYNCING, T.ASSIGN): S.STABLE,
    (S.SYNCING, T.ASSIGN_LESS): S.REVOKING,
    (S.SYNCING, T.RETRY): S.UNJOINED,
    (S.SYNCING, T.EVICT): S.UNJOINED,
    (S.SYNCING, T.LEAVE): S.LEAVING,
    (S.SYNCING, T.FAIL): S.FAILED,
    (S.STABLE, T.REBALANCE): S.PREPARING,
    (S.STABLE, T.REBALANCE_KEEPING): S.UNJOINED,
    (S.STABLE, T.EVICT): S.UNJOINED,
    (S.STABLE, T.LEAVE): S.LEAVING,
    (S.STABLE, T.FAIL): S.FAILED,
    (S.REVOKING, T.RELEASE): S.UNJOINED,
    (S.REVOKING, T.EVICT): S.UNJOINED,
    (S.REVOKING, T.LEAVE): S.LEAVING,
    (S.REVOKING, T.FAIL): S.FAILED,
    (S.LEAVING, T.EVICT): S.LEFT,
    (S.LEAVING, T.GONE): S.LEFT,
    (S.LEAVING, T.FAIL): S.FAILED,
}

CONSUMER: Table = {
    (S.IDLE, T.WANT): S.JOINING,
    (S.IDLE, T.LEAVE): S.LEAVING,
    (S.JOINING, T.ACCEPT): S.STABLE,
    (S.JOINING, T.ASSIGN): S.ACKNOWLEDGING,
    (S.JOINING, T.EVICT): S.JOINING,
    (S.JOINING, T.LEAVE): S.LEAVING,
    (S.JOINING, T.FAIL): S.FAILED,
    (S.STABLE, T.ASSIGN): S.ACKNOWLEDGING,
    (S.STABLE, T.ASSIGN_LESS): S.RECONCILING,
    (S.STABLE, T.EVICT): S.JOINING,
    (S.STABLE, T.LEAVE): S.LEAVING,
    (S.STABLE, T.FAIL): S.FAILED,
    (S.RECONCILING, T.RELEASE): S.ACKNOWLEDGING,
    (S.RECONCILING, T.EVICT): S.JOINING,
    (S.RECONCILING, T.LEAVE): S.LEAVING,
    (S.RECONCILING, T.FAIL): S.FAILED,
    (S.ACKNOWLEDGING, T.ACCEPT): S.STABLE,
    (S.ACKNOWLEDGING, T.ASSIGN): S.ACKNOWLEDGING,
    (S.ACKNOWLEDGING, T.ASSIGN_LESS): S.RECONCILING,
    (S.ACKNOWLEDGING, T.EVICT): S.JOINING,
    (S.ACKNOWLEDGING, T.LEAVE): S.LEAVING,
    (S.ACKNOWLEDGING, T.FAIL): S.FAILED,
    (S.LEAVING, T.EVICT): S.LEFT,
    (S.LEAVING, T.GONE): S.LEFT,
    (S.LEAVING, T.FAIL): S.FAILED,
}

BEATING = frozenset({S.UNJOINED, S.PREPARING, S.JOINING, S.SYNCING, S.STABLE, S.REVOKING, S.LEAVING})
"""States in which a classic member's heartbeats go out, as long as there is a generation to send them for."""

COMMITTING = frozenset({S.UNJOINED, S.PREPARING, S.STABLE, S.REVOKING, S.RECONCILING, S.ACKNOWLEDGING, S.LEAVING})
"""States in which the broker accepts commits of our generation or epoch (invariant 2)."""

OVER = frozenset({S.LEFT, S.FAILED})
"""States that nothing leads out of."""


def state_after(table: Table, state: State, transition: Transition) -> State:
    """The state after `transition`. Raises `IllegalTransition`."""
    try:
        return table[state, transition]
    except KeyError:
        raise IllegalTransition(f"a member that is {state.value} cannot meet “{transition.value}”") from None


class PartitionState(Enum):
    """The states of an assigned partition."""

    # Each member is the only one of its kind. Enum's own hash is written in Python, and was half of what a report costs
    # in a table of a thousand partitions.
    __hash__ = object.__hash__

    #: Its start offset is being looked up.
    RESOLVING = "resolving"
    #: The start offset is known; a worker has been asked to fetch it, or will be as soon as one is ready.
    STARTING = "starting"
    #: A worker fetches and handles it.
    RUNNING = "running"
    #: A person has paused it, or it is handled up to where it is to end.
    PAUSED = "paused"
    #: It drains in one worker to go on in another one of ours.
    MOVING = "moving"
    #: It drains because it leaves us.
    STOPPING = "stopping"
    #: A record cannot be handled; nothing is fetched until a person acts.
    HALTED = "halted"
    #: Its worker does not let go: killed, but not yet seen dead.
    STUCK = "stuck"
    #: In nobody's hands here; the consumed offset is final.
    RELEASED = "released"


class PartitionEvent(Enum):
    """The events that change a partition's state."""

    RESOLVED = "resolved"
    #: The ledger shows that the worker has opened its slot.
    FETCHED = "fetched"
    PAUSE = "pause"
    RESUME = "resume"
    MOVE = "move"
    #: The partition leaves us: revoked or lost.
    STOP = "stop"
    #: The worker reported `FetcherStopped`, or is dead and its ledger has been read.
    LET_GO = "let go"
    #: The start offset is not in the log any more.
    OUT_OF_RANGE = "out of range"
    #: Its worker died, and only the brokers know how far its last transaction has come.
    LET_GO_UNSURE = "let go, unsure how far"
    #: A record failed on every try, or was in hand at too many deaths.
    HALT = "halt"
    #: It goes on after nobody has fetched it for a while: its log may have been cut meanwhile. Or it was halted, or its
    #: worker died while it was paused, before its start was known.
    LOOK_UP = "look up"
    #: The worker outlives SIGKILL.
    CLING = "cling"


_P, _PE = PartitionState, PartitionEvent

TRANSITIONS: dict[tuple[PartitionState, PartitionEvent], PartitionState] = {
    (_P.RESOLVING, _PE.RESOLVED): _P.STARTING,
    (_P.RESOLVING, _PE.STOP): _P.RELEASED,
    (_P.RESOLVING, _PE.HALT): _P.HALTED,
    (_P.STARTING, _PE.FETCHED): _P.RUNNING,
    (_P.STARTING, _PE.LET_GO): _P.STARTING,
    (_P.STARTING, _PE.LET_GO_UNSURE): _P.RESOLVING,
    (_P.STARTING, _PE.MOVE): _P.MOVING,
    (_P.STARTING, _PE.PAUSE): _P.PAUSED,
    (_P.STARTING, _PE.STOP): _P.STOPPING,
    (_P.STARTING, _PE.HALT): _P.HALTED,
    (_P.STARTING, _PE.OUT_OF_RANGE): _P.RESOLVING,
    (_P.STARTING, _PE.LOOK_UP): _P.RESOLVING,
    (_P.RUNNING, _PE.LET_GO): _P.STARTING,
    (_P.RUNNING, _PE.LET_GO_UNSURE): _P.RESOLVING,
    (_P.RUNNING, _PE.MOVE): _P.MOVING,
    (_P.RUNNING, _PE.PAUSE): _P.PAUSED,
    (_P.RUNNING, _PE.STOP): _P.STOPPING,
    (_P.RUNNING, _PE.HALT): _P.HALTED,
    (_P.RUNNING, _PE.OUT_OF_RANGE): _P.RESOLVING,
    (_P.PAUSED, _PE.LET_GO): _P.PAUSED,
    (_P.PAUSED, _PE.LET_GO_UNSURE): _P.PAUSED,
    (_P.PAUSED, _PE.LOOK_UP): _P.RESOLVING,
    (_P.PAUSED, _PE.RESUME): _P.STARTING,
    (_P.PAUSED, _PE.STOP): _P.STOPPING,
    (_P.PAUSED, _PE.HALT): _P.HALTED,
    (_P.MOVING, _PE.LET_GO): _P.STARTING,
    (_P.MOVING, _PE.LET_GO_UNSURE): _P.RESOLVING,
    (_P.MOVING, _PE.STOP): _P.STOPPING,
    (_P.MOVING, _PE.HALT): _P.HALTED,
    (_P.MOVING, _PE.OUT_OF_RANGE): _P.RESOLVING,
    (_P.STOPPING, _PE.LET_GO): _P.RELEASED,
    (_P.STOPPING, _PE.LET_GO_UNSURE): _P.RELEASED,
    (_P.STOPPING, _PE.HALT): _P.RELEASED,
    (_P.STOPPING, _PE.OUT_OF_RANGE): _P.RELEASED,
    (_P.STOPPING, _PE.STOP): _P.STOPPING,
    (_P.STOPPING, _PE.CLING): _P.STUCK,
    (_P.STUCK, _PE.LET_GO): _P.RELEASED,
    (_P.STUCK, _PE.LET_GO_UNSURE): _P.RELEASED,
    (_P.STUCK, _PE.STOP): _P.STUCK,
    (_P.HALTED, _PE.RESUME): _P.STARTING,
    (_P.HALTED, _PE.LOOK_UP): _P.RESOLVING,
    (_P.HALTED, _PE.STOP): _P.RELEASED,
}


class IllegalTransition(Exception):
    """The event cannot happen in that state: a bug in the caller; nothing was changed."""


def advance(state: PartitionState, event: PartitionEvent) -> PartitionState:
    """The state after `event`. Raises `IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a partition that is {state.value} cannot meet “{event.value}”") from None
