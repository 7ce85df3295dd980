"""Set-up of all tests of jobs."""

from __future__ import annotations

import pytest

from kunicorn.pipeline import plan


@pytest.fixture(autouse=True)
def others_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether topics exist that one broker does not know."""
    monkeypatch.setattr(plan, "_DOUBTS", (0.0,) * len(plan._DOUBTS))
