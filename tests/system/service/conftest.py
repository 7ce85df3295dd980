"""One group whose supervisors, brokers and terminals are maltreated, and its judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.scene import Scene


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    topic: str,
    members_of: Callable[..., Members],
    tmp_path: Path,
) -> Callable[..., Scene]:
    """Makes the topic and its group on the common broker, or on `kafka`: `scene(6, handler="marked:handle")`."""

    def make(
        partitions: int,
        *,
        kafka: KafkaCluster | None = None,
        workers: int = 2,
        handler: str = "audited:handle",
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Scene:
        cluster: KafkaCluster = kafka or request.getfixturevalue("kafka")
        cluster.create_topic(topic, partitions)
        marks = tmp_path / "marks"
        marks.mkdir()
        members = members_of(
            cluster.bootstrap,
            topic,
            workers=workers,
            entrypoint=f"tests.system.handlers.{handler}",
            settings=settings,
            env={"MARKS_DIRECTORY": str(marks), **(env or {})},
        )
        return Scene(cluster, topic, partitions, members, marks)

    return make
