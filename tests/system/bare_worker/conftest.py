"""What tests of real workers ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bare_worker.rig import Rig, Templates, rig
from tests.system.bare_worker.traffic import HANDLERS


@pytest.fixture
def processes(request: pytest.FixtureRequest, templates: Templates, tmp_path: Path) -> Iterator[Rig]:
    """Workers whose handlers are `traffic.HANDLERS`, or what the test writes in their place. With
    `rig.OVER_BOTH_FETCHERS` once for each fetcher."""
    with rig(templates, tmp_path, getattr(request, "param", "librdkafka")) as started:
        started.module(HANDLERS)
        yield started
