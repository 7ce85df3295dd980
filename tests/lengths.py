"""Matrices of tests of which each run tries a core, and `make test-long` the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def rest_long(every: Iterable[Any], core: Collection[Any]) -> list[Any]:
    """Parameters for each cell, a tuple of values or one value; those beyond the core are `long`."""
    return [
        pytest.param(*(cell if isinstance(cell, tuple) else (cell,)), marks=() if cell in core else pytest.mark.long)
        for cell in every
    ]
