"""The section [topics]: what `kunicorn topics` gives the topics that the service needs. Pure. Small: an own section."""

from __future__ import annotations

from pydantic import Field

from kunicorn.settings.checks import MillisecondsOfYears, Section

_DAY_MS = 86_400_000


class TopicSettings(Section):
    """What `kunicorn topics` gives topics; the running service creates and changes none."""

    partitions: int | None = Field(
        None,
        ge=1,
        le=100_000,
        examples=[12],
        json_schema_extra={"default": "as many as the largest topic that is consumed"},
        description="Partitions of a topic that is created. A consumed topic that is missing is created only where "
        "this is set.",
    )
    replication_factor: int | None = Field(
        None,
        ge=1,
        le=100,
        examples=[3],
        json_schema_extra={"default": "3, or as many as there are brokers"},
        description="Replicas of a topic that is created; one that has fewer is told of.",
    )
    min_insync_replicas: int | None = Field(
        None,
        ge=1,
        le=100,
        examples=[2],
        json_schema_extra={"default": "one less than `replication_factor`, or than the topic's own, at least 1"},
        description="Replicas that must have a record before it counts as written, for each topic that is written to.",
    )
    retention_ms: MillisecondsOfYears = Field(
        14 * _DAY_MS,
        description="How long dead letters and retries are kept at least: the longest that nobody looks at them, or "
        "that the service is down.",
    )
