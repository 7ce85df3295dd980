"""Questions about the logs themselves, each to be put to the partition's leader: ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Generic, TypeVar

from kunicorn.errors import PeerError
from kunicorn.group.protocol import EpochEnd, LogOffset
from kunicorn.topics import TopicPartition
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.error_codes import ErrorCode
from kunicorn.wire.group_requests import by_topic
from kunicorn.wire.make import Fields
from kunicorn.wire.metadata import NO_LEADER, Metadata
from kunicorn.wire.versions import Api

logger = logging.getLogger(__name__)

PURPOSE = "offsets-of-logs"
"""These connections' own: a slow look-up in an old segment must not hold up a heartbeat."""

LATEST = -1
EARLIEST = -2

_CONSUMER = -1
"""The replica id of those who are no replica."""


class IsolationLevel(IntEnum):
    """Where the log ends: at the high watermark, or at the last stable offset (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that asking again after fresh metadata may cure (`OffsetFetcherUtils.java`)."""

AnswerT = TypeVar("AnswerT", LogOffset, EpochEnd)
Batch = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Question(Generic[AnswerT]):
    """One API that leaders answer: how to ask it, how to read it, and how to say that it failed."""

    api: Api
    fields: Callable[[Batch, Metadata], Fields]
    read: Callable[[Any], dict[TopicPartition, AnswerT]]
    failed: Callable[[int], AnswerT]


async def list_offsets(
    cluster: Cluster, queries: Batch, isolation_level: int, timeout: float
) -> dict[TopicPartition, LogOffset]:
    """The offset at `LATEST`, `EARLIEST` or a timestamp (milliseconds), for each partition asked.

    A timestamp finds the first record not older than it; the answer's offset is −1 where there is none.
    Every partition has an answer, with an error of its own: `NETWORK_EXCEPTION` if its leader did not reply.
    Refreshes metadata and asks once more where that may help. Raises nothing but bugs, within twice `timeout`.
    """

    def fields(batch: Batch, metadata: Metadata) -> Fields:
        return {
            "replica_id": _CONSUMER,
            "isolation_level": int(isolation_level),
            "timeout": timedelta(seconds=timeout),
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": each.partition,
                            "current_leader_epoch": metadata.leader(each)[1],
                            "timestamp": batch[each],
                        }
                        for each in partitions
                    ],
                }
                for topic, partitions in by_topic(batch)
            ],
        }

    return await _ask_leaders(cluster, queries, _Question(Api.LIST_OFFSETS, fields, _log_offsets, LogOffset), timeout)


async def epoch_ends(cluster: Cluster, queries: Batch, timeout: float) -> dict[TopicPartition, EpochEnd]:
    """Where the log of the given leader epoch ends, for each partition asked (KIP-320); otherwise as `list_offsets`."""
    question = _Question(Api.OFFSET_FOR_LEADER_EPOCH, _epoch_fields, _epoch_ends, EpochEnd)
    return await _ask_leaders(cluster, queries, question, timeout)


def _epoch_fields(batch: Batch, metadata: Metadata) -> Fields:
    return {
        "replica_id": _CONSUMER,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": each.partition,
                        "current_leader_epoch": metadata.leader(each)[1],
                        "leader_epoch": batch[each],
                    }
                    for each in partitions
                ],
            }
            for topic, partitions in by_topic(batch)
        ],
    }


def _log_offsets(message: Any) -> dict[TopicPartition, LogOffset]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): LogOffset(
            int(each.error_code), int(each.offset), int(each.leader_epoch), int(each.timestamp)
        )
        for topic in message.topics or ()
        for each in topic.partitions or ()
    }


def _epoch_ends(message: Any) -> dict[TopicPartition, EpochEnd]:
    return {
        TopicPartition(topic.topic, int(each.partition)): EpochEnd(
            int(each.error_code), int(each.leader_epoch), int(each.end_offset)
        )
        for topic in message.topics or ()
        for each in topic.partitions or ()
    }


async def _ask_leaders(
    cluster: Cluster, queries: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    answers = await _ask_once(cluster, queries, question, timeout)
    again = {each: queries[each] for each, answer in answers.items() if answer.error in STALE_METADATA}
    if not again:
        return answers
    try:
        async with asyncio.timeout(timeout):
            await cluster.refresh({each.topic for each in again})
    except (PeerError, TimeoutError):
        return answers
    return answers | await _ask_once(cluster, again, question, timeout)


async def _ask_once(
    cluster: Cluster, queries: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, query in queries.items():
        by_leader[cluster.metadata.leader(partition)[0]][partition] = query
    answers = await asyncio.gather(
        *(_ask_leader(cluster, leader, batch, question, timeout) for leader, batch in by_leader.items())
    )
    return {partition: answer for batch in answers for partition, answer in batch.items()}


async def _ask_leader(
    cluster: Cluster, leader: int, batch: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    """One leader's answers, for exactly the partitions asked."""
    if leader == NO_LEADER:
        return {each: question.failed(ErrorCode.LEADER_NOT_AVAILABLE) for each in batch}
    try:
        connection = await cluster.connection(leader, PURPOSE, timeout)
        message = await connection.request(question.api, question.fields(batch, cluster.metadata), timeout)
    except PeerError as error:
        logger.info("%s for %d partitions: %s", question.api.title, len(batch), error)
        return {each: question.failed(ErrorCode.NETWORK_EXCEPTION) for each in batch}
    answers = question.read(message)
    return {each: answers.get(each) or question.failed(ErrorCode.UNKNOWN_SERVER_ERROR) for each in batch}
