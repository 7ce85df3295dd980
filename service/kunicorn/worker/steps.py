"""What is done about one transaction, in which order, and what follows which end of a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from confluent_kafka import KafkaError


class Step(Enum):
    """What is done next about one shipment."""

    #: Ask the supervisor as whom to commit; drop what is not ours any more.
    ASK = "ask"
    BEGIN = "begin"
    PRODUCE = "produce"
    #: Wait until the brokers have acknowledged all of it.
    FLUSH = "flush"
    OFFSETS = "offsets"
    COMMIT = "commit"
    ABORT = "abort"
    #: Nothing is open. Wait until everything before it is delivered, then begin again.
    REST = "rest"
    #: Nothing of it is left to commit. Wait until everything before it is delivered: what comes behind it waits for
    #: this one alone.
    EMPTY = "empty"
    #: It is committed, or nothing of it was left to commit.
    DONE = "done"
    #: The producer is of no use any more.
    FENCED = "fenced"


class Result(Enum):
    """How a step ended."""

    OK = "ok"
    #: Not decided, or not its turn yet: the same step once more.
    AGAIN = "again"
    #: This transaction cannot be committed; another one may.
    ABORTABLE = "abortable"
    FATAL = "fatal"
    #: The shipment is empty by now.
    EMPTY = "empty"


S, R = Step, Result

STEPS: Mapping[tuple[Step, Result], Step] = {
    (S.ASK, R.OK): S.BEGIN,
    (S.ASK, R.AGAIN): S.ASK,
    (S.ASK, R.EMPTY): S.EMPTY,
    (S.BEGIN, R.OK): S.PRODUCE,
    (S.BEGIN, R.AGAIN): S.BEGIN,
    # Left over from a call whose end was not seen.
    (S.BEGIN, R.ABORTABLE): S.ABORT,
    (S.BEGIN, R.FATAL): S.FENCED,
    (S.PRODUCE, R.OK): S.FLUSH,
    (S.PRODUCE, R.AGAIN): S.PRODUCE,
    (S.PRODUCE, R.ABORTABLE): S.ABORT,
    (S.PRODUCE, R.FATAL): S.FENCED,
    (S.FLUSH, R.OK): S.OFFSETS,
    (S.FLUSH, R.AGAIN): S.FLUSH,
    (S.FLUSH, R.ABORTABLE): S.ABORT,
    (S.FLUSH, R.FATAL): S.FENCED,
    (S.OFFSETS, R.OK): S.COMMIT,
    (S.OFFSETS, R.AGAIN): S.OFFSETS,
    (S.OFFSETS, R.ABORTABLE): S.ABORT,
    (S.OFFSETS, R.FATAL): S.FENCED,
    (S.COMMIT, R.OK): S.DONE,
    # Its outcome is unknown until the call says so: aborting now could abort what the brokers have committed.
    (S.COMMIT, R.AGAIN): S.COMMIT,
    (S.COMMIT, R.ABORTABLE): S.ABORT,
    (S.COMMIT, R.FATAL): S.FENCED,
    (S.ABORT, R.OK): S.REST,
    (S.ABORT, R.AGAIN): S.ABORT,
    (S.ABORT, R.ABORTABLE): S.FENCED,
    (S.ABORT, R.FATAL): S.FENCED,
    (S.REST, R.OK): S.ASK,
    (S.REST, R.AGAIN): S.REST,
    (S.EMPTY, R.OK): S.DONE,
    (S.EMPTY, R.AGAIN): S.EMPTY,
}
"""What follows which end of a step; the only place that decides it."""

ENDS = frozenset({S.DONE, S.FENCED})

BEHIND: Mapping[Step, Step] = {
    # Else outputs of one partition could change their order.
    S.PRODUCE: S.FLUSH,
    # Of a group's offsets for one partition, those written last count, in whatever order their transactions end
    # (OffsetMetadataManager.java, replayEndTransactionMarker).
    S.OFFSETS: S.OFFSETS,
    # Offsets are never committed past an unfinished record.
    S.COMMIT: S.COMMIT,
    S.REST: S.DONE,
    S.EMPTY: S.DONE,
}
"""Steps that wait for the transaction before: which of its steps must have ended well. It may still be aborted behind
that; then this one is, too."""

CLOSED = frozenset({S.REST, S.EMPTY})
"""In these nothing is open, whatever becomes of the transaction before."""

OPEN = frozenset({S.OFFSETS, S.COMMIT})
"""Waiting for its turn here, a transaction is open at the brokers, and its time-out runs."""


def result_of(error: KafkaError) -> Result:
    """What librdkafka's classification of an error means for a step (KIP-360, KIP-890 are within it)."""
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._FENCED):
        return Result.FATAL
    if error.txn_requires_abort():
        return Result.ABORTABLE
    # A call that was not allowed now has changed nothing; what it was to do did not happen.
    return Result.AGAIN if error.retriable() else Result.FATAL
