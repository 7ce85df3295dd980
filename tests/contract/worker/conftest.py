"""Who fetches in tests over both."""

from __future__ import annotations

import pytest

from kunicorn.worker.assembly import OWN


@pytest.fixture(params=["librdkafka", OWN])
def fetcher(request: pytest.FixtureRequest) -> str:
    """Who fetches. `.ci/run` builds the compiled decoder first, and fails where that cannot be done."""
    if request.param == OWN:
        pytest.importorskip("kunicorn_columns", reason="not built: install Rust (https://rustup.rs), `make venv`")
    return str(request.param)
