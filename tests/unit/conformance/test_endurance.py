"""What the long runs came to, on disk and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.conformance.endurance import SPOILT_FOR, UNREADABLE_FOR, came_through, read, section


def test_parts_of_a_run_are_shown_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = tmp_path / "endurance.json"
    monkeypatch.setenv("KUNICORN_RECORD_RUNS", str(recorded))
    came_through("stories", "eager group", 1000)
    for part in range(3):
        came_through(SPOILT_FOR.format(protocol="classic"), "Metadata", 500, part)
        came_through(UNREADABLE_FOR.format(protocol="classic"), "Metadata", 300, part)
    came_through(SPOILT_FOR.format(protocol="classic"), "Metadata", 700, 2)
    page = section(read(recorded))
    assert "| stories | eager group | 1,000 |" in page
    assert "| Metadata | 1,700 | 900 |  |  |" in page


def test_nothing_is_written_where_nobody_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUNICORN_RECORD_RUNS", raising=False)
    came_through("stories", "eager group", 1000)
    assert not list(tmp_path.iterdir())
    assert section({}) == ""
