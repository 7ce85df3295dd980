"""A module with handlers that a test writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def importable(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Write the module into that directory, which is the current one and importable for as long as the test lasts."""
    (directory / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.chdir(directory)
    monkeypatch.delitem(sys.modules, name, raising=False)
