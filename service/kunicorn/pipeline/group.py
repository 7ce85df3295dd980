"""The live group, seen from outside: who is in it, and its committed offsets. Nobody joins.

1. The broker is the fence: it refuses offsets of strangers while the group has members (UNKNOWN_MEMBER_ID). So a live
   member that comes back stops a job, never the other way round.
2. Between two jobs the broker knows no difference. Each commits with its run's name as metadata, and looks before every
   commit whether what it finds is still its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.errors import FatalGroupError
from kunicorn.pipeline.access import Access, Admin
from kunicorn.pipeline.log import unanswered
from kunicorn.pipeline.ranges import Offsets
from kunicorn.settings import Settings
from kunicorn.topics import TopicPartition
from kunicorn.visits import visiting

_TIMEOUT = 20.0
_PAUSE = 1.0
_FENCED = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError.NON_EMPTY_GROUP, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that the group has, and what its committer wrote beside it."""

    offset: int
    metadata: str


class GroupOffsets:
    """The committed offsets of one group. Every method blocks. Raises `ConfigError` where the brokers do not answer."""

    def __init__(self, access: Access, group_id: str) -> None:
        self._admin = Admin(access)
        self._group_id = group_id

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Those that there are, open transactions waited for (KIP-447)."""
        request = self._request([ClientPartition(*tp) for tp in partitions])
        answer = self._answer(
            self._admin.now().list_consumer_group_offsets([request], require_stable=True, request_timeout=_TIMEOUT)
        )
        return {
            TopicPartition(each.topic, each.partition): Committed(each.offset, each.metadata or "")
            for each in answer
            if each.offset >= 0
        }

    def commit(self, offsets: Offsets, metadata: str) -> None:
        """Commit as a stranger to the group. Raises `FatalGroupError` where the broker refuses."""
        if not offsets:
            return
        wanted = [ClientPartition(*tp, offset, metadata) for tp, offset in sorted(offsets.items())]
        answer = self._answer(
            self._admin.now().alter_consumer_group_offsets([self._request(wanted)], request_timeout=_TIMEOUT)
        )
        for each in answer:
            if each.error is not None:
                raise self._refused(each.error)

    def _request(self, partitions: list[ClientPartition]) -> ConsumerGroupTopicPartitions:
        return ConsumerGroupTopicPartitions(self._group_id, partitions)

    def _answer(self, futures: Mapping[str, Any]) -> list[ClientPartition]:
        try:
            found: list[ClientPartition] = futures[self._group_id].result(_TIMEOUT + 5).topic_partitions
        except KafkaException as error:
            if (what := error.args[0]).code() in {*_FENCED, KafkaError.GROUP_AUTHORIZATION_FAILED}:
                raise self._refused(what) from error
            raise unanswered(error) from error
        return found

    def _refused(self, error: KafkaError) -> FatalGroupError:
        if error.code() in _FENCED:
            return FatalGroupError(
                f"group {self._group_id!r} has members again and refuses our commit ({error.name()}): the live service "
                f"goes on from the last round that was committed and handles this one's records, too. Stop it first to "
                f"catch up; nothing is lost"
            )
        return FatalGroupError(
            f"group {self._group_id!r} refuses the commit: {error.str()}; grant this user READ on the group"
        )


def group_members(settings: Settings) -> list[str]:
    """Who is in the group, as people know them; none where the group is empty or does not exist. Blocks.

    Raises `ConfigError`, `FatalGroupError`.
    """
    with visiting(settings) as visit:
        members = visit.described().members
    return [each.instance_id or f"{each.client_id} at {each.host.removeprefix('/')}" for each in members]


def wait_until_empty(settings: Settings, seconds: float) -> None:
    """Wait so long for the members to leave. Blocks. Raises `FatalGroupError` where they do not."""
    deadline = time.monotonic() + seconds
    while members := group_members(settings):
        if time.monotonic() >= deadline:
            raise FatalGroupError(
                f"group {settings.group.id!r} has {len(members)} member(s): {', '.join(sorted(members)[:5])}. Stop the "
                f"live service first (--wait waits for it). A static member stays until its session times out: "
                f"kunicorn leave removes it"
            )
        time.sleep(min(_PAUSE, max(0.05, deadline - time.monotonic())))
