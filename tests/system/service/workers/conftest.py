"""One group with handlers that obey their records, and its judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members, merged
from tests.system.scene import Scene

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
def scene(kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path) -> Callable[..., Scene]:
    """Makes the topic and its group: `scene(partitions=4, workers=1, handler="marked:handle", settings={...})`."""

    def make(
        partitions: int,
        *,
        workers: int = 2,
        handler: str = "marked:handle",
        settings: dict[str, dict[str, Any]] | None = None,
        env: dict[str, str] | None = None,
    ) -> Scene:
        kafka.create_topic(topic, partitions)
        marks = tmp_path / "marks"
        marks.mkdir()
        paths = [str(REPOSITORY), str(REPOSITORY / "service")]
        members = members_of(
            kafka.bootstrap,
            topic,
            workers=workers,
            entrypoint=f"tests.system.handlers.{handler}",
            settings=merged({"handler": {"retry_backoff_ms": 50}}, settings or {}),
            env={"MARKS_DIRECTORY": str(marks), "PYTHONPATH": ":".join(paths), **(env or {})},
        )
        return Scene(kafka, topic, partitions, members, marks)

    return make
