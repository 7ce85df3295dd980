"""The states of a member of a classic group: one flat table; tests walk it, the docs draw it."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a member stands between joining and leaving."""

    #: Not asked to join yet.
    IDLE = "idle"
    #: A JoinGroup is due as soon as the coordinator is known. Partitions may still be owned (cooperative).
    UNJOINED = "unjoined"
    #: Partitions are being drained and committed before the JoinGroup.
    PREPARING = "preparing"
    #: JoinGroup is out; the broker parks it until all members have joined. No heartbeats, no commits.
    JOINING = "joining"
    #: The plan is being made, or SyncGroup is out. Heartbeats, no commits.
    SYNCING = "syncing"
    #: A member with an assignment.
    STABLE = "stable"
    #: Partitions that the last plan took away are being drained and committed; a rejoin follows (KIP-429).
    REVOKING = "revoking"
    #: Everything is being drained and committed, or LeaveGroup is out.
    LEAVING = "leaving"
    #: Out of the group, as asked.
    LEFT = "left"
    #: Refused for good.
    FAILED = "failed"


class Step(Enum):
    """What moves a member from state to state; several events may amount to the same step."""

    WANT = "join wanted"
    ASK = "JoinGroup sent"
    ACCEPT = "JoinGroup accepted"
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


S, T = State, Step

TRANSITIONS: dict[tuple[State, Step], State] = {
    (S.IDLE, T.WANT): S.UNJOINED,
    (S.IDLE, T.LEAVE): S.LEAVING,
    (S.IDLE, T.FAIL): S.FAILED,
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

BEATING = frozenset({S.UNJOINED, S.PREPARING, S.SYNCING, S.STABLE, S.REVOKING, S.LEAVING})
"""States in which heartbeats go out, as long as there is a generation to send them for."""

COMMITTING = frozenset({S.UNJOINED, S.PREPARING, S.STABLE, S.REVOKING, S.LEAVING})
"""States in which the broker accepts commits of our generation (invariant 2)."""


class IllegalStep(Exception):
    """The step cannot happen in that state: a bug; nothing was changed."""


def take(state: State, step: Step) -> State:
    """The state after `step`. Raises `IllegalStep`."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalStep(f"a member that is {state.value} cannot meet “{step.value}”") from None
