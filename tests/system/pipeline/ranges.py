"""Clients for ranges of a topic, and where its log ends."""

from __future__ import annotations

from typing import Literal

from kunicorn.clients.access import Access
from kunicorn.clients.session import cluster_session
from kunicorn.positions import TopicPartition
from kunicorn.settings import GroupSettings, HandlerSettings, KafkaSettings, Settings
from tests.kafka import KafkaCluster

IsolationLevel = Literal["read_committed", "read_uncommitted"]


def access(kafka: KafkaCluster, topic: str, isolation: IsolationLevel = "read_committed") -> Access:
    return Access(
        Settings(
            kafka=KafkaSettings(bootstrap_servers=(kafka.bootstrap,), isolation_level=isolation),
            group=GroupSettings(id=topic, topics=(topic,)),
            handler=HandlerSettings(entrypoint="x:y"),
        )
    )


def end_of(access: Access) -> int:
    """End of the first partition, as plans have it."""
    with cluster_session(access.settings) as session:
        (edges,) = session.edges([TopicPartition(access.settings.group.id, 0)]).values()
    return edges.end
