"""The states of one assigned partition: one flat table; tests walk it, the docs draw it.

A partition is in the hands of at most one worker (invariant 4), and always in a state that says why it is or is not
being fetched (invariant 7).
"""

from __future__ import annotations

from enum import Enum


class PartitionState(Enum):
    """Where an assigned partition stands."""

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
    """What happens to a partition."""

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
    #: A person has it resumed that was halted, or whose worker died while it was paused, before its start was known.
    LOOK_UP = "look up"
    #: The worker outlives SIGKILL.
    CLING = "cling"


S, E = PartitionState, PartitionEvent

TRANSITIONS: dict[tuple[PartitionState, PartitionEvent], PartitionState] = {
    (S.RESOLVING, E.RESOLVED): S.STARTING,
    (S.RESOLVING, E.STOP): S.RELEASED,
    (S.RESOLVING, E.HALT): S.HALTED,
    (S.STARTING, E.FETCHED): S.RUNNING,
    (S.STARTING, E.LET_GO): S.STARTING,
    (S.STARTING, E.LET_GO_UNSURE): S.RESOLVING,
    (S.STARTING, E.MOVE): S.MOVING,
    (S.STARTING, E.PAUSE): S.PAUSED,
    (S.STARTING, E.STOP): S.STOPPING,
    (S.STARTING, E.HALT): S.HALTED,
    (S.STARTING, E.OUT_OF_RANGE): S.RESOLVING,
    (S.RUNNING, E.LET_GO): S.STARTING,
    (S.RUNNING, E.LET_GO_UNSURE): S.RESOLVING,
    (S.RUNNING, E.MOVE): S.MOVING,
    (S.RUNNING, E.PAUSE): S.PAUSED,
    (S.RUNNING, E.STOP): S.STOPPING,
    (S.RUNNING, E.HALT): S.HALTED,
    (S.RUNNING, E.OUT_OF_RANGE): S.RESOLVING,
    (S.PAUSED, E.LET_GO): S.PAUSED,
    (S.PAUSED, E.LET_GO_UNSURE): S.PAUSED,
    (S.PAUSED, E.LOOK_UP): S.RESOLVING,
    (S.PAUSED, E.RESUME): S.STARTING,
    (S.PAUSED, E.STOP): S.STOPPING,
    (S.PAUSED, E.HALT): S.HALTED,
    (S.MOVING, E.LET_GO): S.STARTING,
    (S.MOVING, E.LET_GO_UNSURE): S.RESOLVING,
    (S.MOVING, E.STOP): S.STOPPING,
    (S.MOVING, E.HALT): S.HALTED,
    (S.MOVING, E.OUT_OF_RANGE): S.RESOLVING,
    (S.STOPPING, E.LET_GO): S.RELEASED,
    (S.STOPPING, E.LET_GO_UNSURE): S.RELEASED,
    (S.STOPPING, E.HALT): S.RELEASED,
    (S.STOPPING, E.OUT_OF_RANGE): S.RELEASED,
    (S.STOPPING, E.STOP): S.STOPPING,
    (S.STOPPING, E.CLING): S.STUCK,
    (S.STUCK, E.LET_GO): S.RELEASED,
    (S.STUCK, E.LET_GO_UNSURE): S.RELEASED,
    (S.STUCK, E.STOP): S.STUCK,
    (S.HALTED, E.RESUME): S.STARTING,
    (S.HALTED, E.LOOK_UP): S.RESOLVING,
    (S.HALTED, E.STOP): S.RELEASED,
}


class IllegalTransition(Exception):
    """The event cannot happen in that state: a bug in the caller; nothing was changed."""


def advance(state: PartitionState, event: PartitionEvent) -> PartitionState:
    """The state after `event`. Raises `IllegalTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a partition that is {state.value} cannot meet “{event.value}”") from None
