"""What the schema registry knows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.contract.decoding.shop_schemas import SCHEMAS


@pytest.fixture
def registered() -> Mapping[str, object]:
    """Schemas of a shop's orders."""
    return SCHEMAS
