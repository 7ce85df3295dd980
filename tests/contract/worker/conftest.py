"""Who fetches in tests over both, and the stage on which workers are put."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kunicorn.worker.assembly import OWN
from tests.compiled import compiled
from tests.contract.worker.assembled import on_stage
from tests.contract.worker.supervised import Memory


@pytest.fixture
def fetcher(request: pytest.FixtureRequest) -> str:
    """Who fetches, of those that the test's parameters name (`ways.fetchers`). `.ci/run` builds the compiled decoder
    first, and fails where that cannot be done."""
    if request.param == OWN:
        compiled()
    return str(request.param)


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with on_stage():
        yield Memory()
