"""Which interpreters the tests find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pythons


def stand_in(path: Path, code: int) -> Path:
    """An interpreter that only ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_a_command_on_the_path_that_does_not_run_is_passed_over_for_one_that_pyenv_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin/python3.13", 127)
    kept = stand_in(tmp_path / "pyenv/versions/3.13.0/bin/python3.13", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert pythons.find("3.13", tmp_path / "pyenv") == str(kept)


def test_a_python_that_is_nowhere_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pythons.find("3.12", tmp_path) is None
