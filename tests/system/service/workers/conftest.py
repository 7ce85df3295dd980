"""One group with handlers that obey their records, and its judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.system.members import merged
from tests.system.scene import Scene

QUICK = {"handler": {"retry_backoff_ms": 50}, "group": {"commit_interval_ms": 500}}
"""Nobody has to wait for tries and commits who asks what becomes of records."""


@pytest.fixture
def scene(scene: Callable[..., Scene]) -> Callable[..., Scene]:
    """Makes the topic and its group: `scene(partitions=4, workers=1, handler="marked:handle", settings={...})`."""

    def make(
        partitions: int,
        *,
        handler: str = "marked:handle",
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> Scene:
        return scene(partitions, handler=handler, settings=merged(QUICK, settings or {}), **more)

    return make
