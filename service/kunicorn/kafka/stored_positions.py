"""Resolver of stored positions: where a partition starts, or what is lost, or that a person has to decide. Pure, and
asked by everything that starts to read a log: the service, `kunicorn offsets`, `lag`, `dlq`, and every job.

The facts: what is stored for the partition, the edges of its log, where the log of the stored leader epoch ends,
whether another topic had its name when the position was stored; and a policy (`auto_offset_reset`).

1. A stored position that the log holds is where the partition starts.
2. Nothing is stored: by the policy. Under `latest` a partition that was added after the group began to consume its
   topic starts at its beginning, else the records between its creation and our noticing it would be lost
   (`began_with`).
3. The topic was created anew: the offset means another record now. The partition starts at its beginning, whatever the
   policy.
4. Below the log's start (retention, DeleteRecords): by the policy.
5. Above the log's end, or above the end of its own leader epoch (truncation): where that epoch ends (KIP-320), else at
   the log's end; never by `latest`, which would skip what came instead.
6. The policy is `none`, and nothing is stored or the log does not reach the position: a person decides.
7. What was done ahead of the position is done only where the log still has those records. What lies at or above the end
   of the position's leader epoch may be other records by now, and none counts where the position itself was cut off.
8. While the leader cannot tell where the epoch ends (`unanswered`), the position is neither taken nor replaced: it is
   asked again. A leader that does not know the epoch, or is never going to tell, leaves rules 1 to 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kunicorn.group.protocol import Committed, EpochEnd
from kunicorn.ipc import bitmap
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Edges, Offsets, Position, TopicPartition


class Lost(Enum):
    """Why a log does not hold a stored position."""

    DELETED = "deleted"
    TRUNCATED = "truncated"
    CREATED_ANEW = "created anew"
    TOPIC_DELETED = "topic deleted"


@dataclass(frozen=True, slots=True)
class Loss:
    """A stored position that the log does not hold; as text for people."""

    tp: TopicPartition
    why: Lost
    stored: int
    edge: int
    """The log's first offset where records are deleted; where the log, or its epoch, ends when it was truncated."""

    def __str__(self) -> str:
        match self.why:
            case Lost.DELETED:
                return f"{self.tp} from {self.stored} to {self.edge} is deleted already"
            case Lost.TRUNCATED:
                return (
                    f"{self.tp} ends at {self.edge} now, before {self.stored}: it was truncated, or the topic created "
                    f"anew, and what came instead is unknown"
                )
            case Lost.CREATED_ANEW:
                return f"{self.tp} was created anew: what the former one had from offset {self.stored} on is gone"
            case Lost.TOPIC_DELETED:
                return f"{self.tp} does not exist any more: what its topic had from offset {self.stored} on is gone"


class Start(NamedTuple):
    """Where a partition starts; None: a person has to decide. And what is lost of the stored position, if anything."""

    offset: int | None
    loss: Loss | None = None
    done: str = ""
    """What was stored beside the position, as far as it holds from `offset` on (`Position.done`)."""


def resolve(
    tp: TopicPartition,
    stored: Position,
    log: Edges,
    policy: str = "earliest",
    *,
    epoch_end: int | None = None,
    anew: bool = False,
) -> Start:
    """Start of a partition with a stored position, by the rules above.

    `epoch_end`: where the log of the stored leader epoch ends, as far as the brokers know. `anew`: another topic had
    this name when the position was stored.
    """
    end = log.end if epoch_end is None else min(epoch_end, log.end)
    if anew:
        return Start(log.first, Loss(tp, Lost.CREATED_ANEW, stored.offset, log.first))
    if stored.offset < log.first:
        loss, start = Loss(tp, Lost.DELETED, stored.offset, log.first), log.end if policy == "latest" else log.first
    elif stored.offset > end:
        loss, start = Loss(tp, Lost.TRUNCATED, stored.offset, end), max(log.first, end)
    else:
        return Start(stored.offset, None, done_within(stored, stored.offset, end))
    return Start(None if policy == "none" else start, loss, done_within(stored, start, end))


def done_within(stored: Position, start: int, end: int) -> str:
    """What was stored beside a position, without the offsets that are done before `start`, or at or behind `end`, where
    the log of its leader epoch ends: what lies there by now may be records that nobody has handled. Pure.
    """
    done = [each for each in bitmap.read(stored.offset, stored.done) if start <= each < end]
    told = bitmap.written(start, done, bitmap.topic_in(stored.done))
    return bitmap.with_partitions(bitmap.partitions(stored.done), told)


def known_ends(answers: Mapping[TopicPartition, EpochEnd]) -> dict[TopicPartition, int]:
    """Where the logs of leader epochs end, of the partitions whose leader knows that (KIP-320)."""
    return {tp: each.end_offset for tp, each in answers.items() if not each.error and each.end_offset != NO_OFFSET}


_NEVER_TOLD = frozenset(
    {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
"""Where an epoch ends is told neither by a broker without that API nor to a user without the right."""


def unanswered(answers: Mapping[TopicPartition, EpochEnd]) -> dict[TopicPartition, int]:
    """Error codes of leaders that may tell another time where an epoch ends: behind an election, above all, which is
    when a stored position may be beyond it. Until they have told, no such position may be started from.
    """
    return {tp: each.error for tp, each in answers.items() if each.error and each.error not in _NEVER_TOLD}


def up_to_epochs(logs: Mapping[TopicPartition, Edges], epoch_ends: Offsets) -> dict[TopicPartition, Edges]:
    """The logs as far as they are those of the leader epochs that positions were stored in: what comes behind is other
    records, by the same offsets. Pure.
    """
    return {tp: log._replace(end=min(log.end, epoch_ends.get(tp, log.end))) for tp, log in logs.items()}


def resolve_all(
    stored: Offsets, logs: Mapping[TopicPartition, Edges], anew: Collection[str] = ()
) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """Starts of all partitions with a stored offset, going on behind what is lost, and what that is. `anew`: topics.

    A partition without a log was deleted: it has no start.
    """
    starts: dict[TopicPartition, int] = {}
    lost: list[Loss] = []
    for tp, at in stored.items():
        if tp not in logs:
            lost.append(Loss(tp, Lost.TOPIC_DELETED, at, at))
            continue
        start, loss, _ = resolve(tp, Position(at), logs[tp], anew=tp.topic in anew)
        assert start is not None
        starts[tp] = start
        if loss is not None:
            lost.append(loss)
    return starts, lost


def edge_of_new(tp: TopicPartition, policy: str, began_with: int | None) -> int | None:
    """Edge at which a partition starts that nothing is stored for: `EARLIEST` or `LATEST`; None: a person decides.

    `began_with`: see the function; it matters under `latest` alone.
    """
    if policy == "none":
        return None
    return LATEST if policy == "latest" and began_with is not None and tp.partition < began_with else EARLIEST


def began_with(
    topic: str, known: Collection[TopicPartition], answers: Mapping[TopicPartition, Committed]
) -> int | None:
    """How many partitions the topic had when the group began to consume it: now, if the group has not begun.

    Under `latest` every commit says so in its metadata. Offsets that other clients have committed do not say it: what
    lies above all of them was added since. None where the answers leave it open: some offset may be committed that they
    do not show.
    """
    committed = {tp.partition: each for tp, each in answers.items() if tp.topic == topic and each.offset >= 0}
    told = [count for each in committed.values() if (count := bitmap.partitions(each.metadata)) is not None]
    if told:
        return min(told)
    ours = [tp for tp in known if tp.topic == topic]
    if any(tp not in answers or answers[tp].error for tp in ours):
        return None
    return max(committed) + 1 if committed else len(ours)
