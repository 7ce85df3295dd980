"""A schema registry that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunicorn.handler.decode.schema_registry import _kept
from tests.contract.decoding.shop_schemas import SCHEMAS
from tests.fakes.schema_registry import registry


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """What the registry knows."""
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps(SCHEMAS))
    _kept.cache_clear()
    return file


@pytest.fixture
def properties(schemas: Path) -> Iterator[dict[str, str | int | float | bool]]:
    """A registry that runs, as workers are told of it."""
    with registry(schemas) as url:
        yield {"url": url, "timeout": 5.0, "max.retries": 0}
