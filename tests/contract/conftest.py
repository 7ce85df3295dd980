"""A schema registry that runs: one process for the tests of a module, with the schemas that each test begins with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kunicorn.handler.decode.schema_registry import _kept
from tests.fakes.schema_registry import registry


@pytest.fixture(scope="module")
def _registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Its file and its address."""
    file = tmp_path_factory.mktemp("registry") / "schemas.json"
    with registry(file) as url:
        yield file, url


@pytest.fixture
def registered() -> Mapping[str, object]:
    """What it knows when a test begins. A folder has its own."""
    return {}


@pytest.fixture
def schemas(_registry: tuple[Path, str], registered: Mapping[str, object]) -> Path:
    """The file of what it knows. Of an earlier test there is nothing: no schema, no request, and no client that still
    takes the registry for away."""
    file, _ = _registry
    file.write_text(json.dumps(registered))
    file.with_suffix(".requests").unlink(missing_ok=True)
    _kept.cache_clear()
    return file


@pytest.fixture
def registry_url(_registry: tuple[Path, str], schemas: Path) -> str:
    """Where it is."""
    _, url = _registry
    return url


@pytest.fixture
def properties(registry_url: str) -> dict[str, str | int | float | bool]:
    """The registry, as workers are told of it."""
    return {"url": registry_url, "timeout": 5.0, "max.retries": 0}
