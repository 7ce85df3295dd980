"""What tests of producing ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bare_worker.rig import Rig, rig


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Rig]:
    """Templates and workers that import what the test writes into its own directory."""
    with rig(tmp_path) as started:
        yield started
