"""What the embedded broker (`kunicorn broker`) is known by, and what it lacks: commands say so, and do not ask it."""

from __future__ import annotations

from kunicorn.kafka.metadata import Metadata
from kunicorn.settings import Settings

_CLUSTER_ID = "mockCluster"
"""librdkafka's mock cluster begins its id with it."""


def is_embedded(metadata: Metadata) -> bool:
    """Whether the cluster is an embedded broker."""
    return (metadata.cluster_id or "").startswith(_CLUSTER_ID)


def unserved(settings: Settings) -> str | None:
    """The setting that asks for what the embedded broker has not got, and what to do; None: there is none."""
    if settings.group.group_protocol == "consumer":
        return (
            'group.group_protocol = "consumer": the embedded broker has the classic protocol alone; leave the setting '
            "out, or use a real Kafka"
        )
    if settings.producing.delivery == "transactions":
        return (
            'producing.delivery = "transactions": the embedded broker takes requests of transactions and keeps none of '
            'their promises; write "at_least_once", or use a real Kafka'
        )
    return None
