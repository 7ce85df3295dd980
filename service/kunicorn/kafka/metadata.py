"""Metadata of the cluster: brokers, topics, and each partition's leader; a snapshot made of Metadata answers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from kunicorn.kafka.auth import Address
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_EPOCH, TopicPartition

NO_LEADER = -1
"""The partition has no leader now (Kafka's own marker)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One node as the cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's leader, its epoch, and the error that the broker reported (0: none)."""

    leader: int
    leader_epoch: int = NO_EPOCH
    error: int = 0
    replicas: tuple[int, ...] = ()
    """Node ids, in sync or not."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; `error` is about the topic as a whole. `topic_id` is None where the broker is too old to have one."""

    name: str
    topic_id: UUID | None = None
    error: int = 0
    partitions: Mapping[int, PartitionInfo] = field(default_factory=dict)
    is_internal: bool = False
    """One of Kafka's own: the offsets of groups, the state of transactions."""

    @property
    def gone(self) -> bool:
        """Whether the broker that was asked knows no such topic."""
        return self.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

    @property
    def can_match(self) -> bool:
        """Whether a pattern may match it. Kafka's own topics are had by name alone: each commit would make a record in
        them, to be committed again."""
        return not self.error and not self.is_internal

    def lacks(self, partition: int) -> bool:
        """Whether the broker that was asked knows no such partition; False where it does not tell."""
        return self.gone or (not self.error and partition not in self.partitions)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A snapshot of the cluster; replaced as a whole, never changed."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    cluster_id: str | None = None
    racks_of_absent: Mapping[int, str] = field(default_factory=dict)
    """Racks, as last told, of nodes that are not among the brokers now. One that is down leaves the list, and its
    replicas stay where they are."""

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """The leader's node id and epoch; `NO_LEADER` and `NO_EPOCH` while unknown."""
        topic = self.topics.get(partition.topic)
        info = topic.partitions.get(partition.partition) if topic else None
        return (info.leader, info.leader_epoch) if info else (NO_LEADER, NO_EPOCH)

    def racks(self, topics: Collection[str]) -> Mapping[TopicPartition, frozenset[str]]:
        """Racks in which each partition of these topics has replicas (KIP-881), whether their brokers are up or not;
        empty where no broker names one."""
        of_broker = {**self.racks_of_absent, **_racks_of(self.brokers)}
        if not of_broker:
            return {}
        # Partitions share few sets of replicas, and many share the racks.
        of_replicas: dict[tuple[int, ...], frozenset[str]] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        for topic in topics:
            for number, info in self.topics[topic].partitions.items() if topic in self.topics else ():
                known = of_replicas.get(info.replicas)
                if known is None:
                    known = frozenset(of_broker[node] for node in info.replicas if node in of_broker)
                    of_replicas[info.replicas] = known
                racks[TopicPartition(topic, number)] = known
        return racks


def metadata_from(message: Any) -> Metadata:
    """Snapshot made of one Metadata answer, of any version."""
    return Metadata(
        brokers={
            int(broker.node_id): Broker(int(broker.node_id), broker.host, int(broker.port), broker.rack)
            for broker in message.brokers or ()
            # To a resolver, no host means this machine.
            if broker.host
        },
        # A topic without a name was asked for by an id that the broker does not know: there is nothing to call it.
        topics={topic.name: _topic(topic) for topic in message.topics or () if topic.name},
        cluster_id=message.cluster_id,
    )


def _topic(topic: Any) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        error=int(topic.error_code),
        partitions={
            int(each.partition_index): PartitionInfo(
                int(each.leader_id), int(each.leader_epoch), int(each.error_code), each.replica_nodes or ()
            )
            for each in topic.partitions or ()
        },
        is_internal=bool(topic.is_internal),
    )


def merge(old: Metadata, answer: Metadata, asked: Collection[str] | None) -> Metadata:
    """The snapshot after `answer`, which is about the topics `asked` for (None: about all there are).

    A topic that the broker does not know stays in, with its error and without partitions: "deleted" must differ from
    "never asked". Topics that were not asked for stay as they were.
    """
    kept = {} if asked is None else dict(old.topics)
    merged = {name: _merge_topic(old.topics.get(name), topic) for name, topic in answer.topics.items()}
    # A broker that is starting, or was asked nonsense, lists no brokers: adopting that would strand us.
    brokers = answer.brokers or old.brokers
    racks = {**old.racks_of_absent, **_racks_of(old.brokers)}
    return Metadata(
        brokers=brokers,
        topics=kept | merged,
        cluster_id=answer.cluster_id or old.cluster_id,
        racks_of_absent={node_id: rack for node_id, rack in racks.items() if node_id not in brokers},
    )


def _racks_of(brokers: Mapping[int, Broker]) -> Mapping[int, str]:
    return {node_id: broker.rack for node_id, broker in brokers.items() if broker.rack}


def _merge_topic(old: TopicInfo | None, new: TopicInfo) -> TopicInfo:
    if new.gone:
        return replace(new, partitions={})
    if old is None or _recreated(old, new):
        return new
    if new.error and not new.partitions:
        return replace(new, topic_id=new.topic_id or old.topic_id, partitions=old.partitions)
    partitions = {number: _newer(old.partitions.get(number), partition) for number, partition in new.partitions.items()}
    return replace(new, partitions=partitions)


def _recreated(old: TopicInfo, new: TopicInfo) -> bool:
    return old.topic_id is not None and new.topic_id is not None and old.topic_id != new.topic_id


def _newer(old: PartitionInfo | None, new: PartitionInfo) -> PartitionInfo:
    """`new`, unless its broker lags behind the one that was asked before (`Metadata.java`, updateLatestMetadata)."""
    if old is not None and NO_EPOCH < new.leader_epoch < old.leader_epoch:
        return old
    return new
