"""What tests of producing ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bare_worker.rig import Rig, Templates, rig


@pytest.fixture
def processes(templates: Templates, tmp_path: Path) -> Iterator[Rig]:
    """Workers whose handlers are what the test writes."""
    with rig(templates, tmp_path) as started:
        yield started
