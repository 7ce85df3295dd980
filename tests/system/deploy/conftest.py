"""The tools that judge image, chart and alerts. What cannot be had fails the test: nothing is skipped silently."""

from __future__ import annotations

import pytest

from tests.deploy.tools import Tools
from tests.deploy.tools import tools as fetched


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Helm 3 and 4, promtool, Prometheus, hadolint and the schemas of Kubernetes."""
    return fetched()
