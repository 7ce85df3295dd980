"""The brokers' answers about offsets, with the group's settings filled in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kunicorn.errors import PeerError
from kunicorn.group.protocol import NO_GENERATION, EpochEnd, LogOffset, OffsetFetchAnswer
from kunicorn.settings import Settings
from kunicorn.supervisor.topics import Topics
from kunicorn.topics import TopicPartition
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.log_offsets import IsolationLevel, epoch_ends, list_offsets

_ENDS_TIMEOUT = 5.0
"""Seconds; a leader knows where its log begins and ends, only times have to be searched for. One that is frozen keeps
its connections, and start offsets led by the others wait for its answer, too."""


class Brokers:
    """Implements `starts.Offsets`."""

    def __init__(self, settings: Settings, cluster: Cluster, coordinator: Coordinator, topics: Topics) -> None:
        self.identity: Callable[[], tuple[str | None, int]] = lambda: (None, NO_GENERATION)
        """Set by the service: member id and epoch, for groups with the consumer protocol."""
        self._cluster = cluster
        self._coordinator = coordinator
        self._topics = topics
        self._isolation_level = IsolationLevel[settings.kafka.isolation_level.upper()]
        self._timeout = settings.kafka.request_timeout_ms / 1000

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        """See `Offsets`."""
        if self._coordinator.node is None:
            raise PeerError("the coordinator is being looked up")
        member_id, epoch = self.identity()
        return await self._coordinator.fetch_offsets(
            partitions=partitions, require_stable=True, timeout=self._timeout, member_id=member_id, epoch=epoch
        )

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        """See `Offsets`."""
        searched = any(at >= 0 for at in queries.values())
        timeout = self._timeout if searched else min(self._timeout, _ENDS_TIMEOUT)
        answer = await list_offsets(self._cluster, queries, self._isolation_level, timeout)
        if any(found.error for found in answer.values()):
            self._topics.doubt()
        return answer

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """See `Offsets`."""
        return await epoch_ends(self._cluster, queries, self._timeout)

    def created_anew(self, topic: str) -> bool:
        """See `Offsets`."""
        return self._topics.created_anew(topic)

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        """See `Offsets`."""
        return self._topics.partitions_of(topics)
