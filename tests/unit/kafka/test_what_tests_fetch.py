"""What tests download is asked for again where a network was away for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.artifacts import fetched


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (2, 0), (3, 7)])
def test_a_command_that_fetches_has_three_tries(
    failures: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("tests.kafka.artifacts.time.sleep", pauses.append)
    done = fetched(["sh", "-c", f"echo x >> tries; test $(wc -l < tries) -gt {failures} || exit 7"], cwd=tmp_path)
    assert done.returncode == code
    assert len((tmp_path / "tries").read_text().splitlines()) == min(failures + 1, 3)
    assert len(pauses) == min(failures, 2)
