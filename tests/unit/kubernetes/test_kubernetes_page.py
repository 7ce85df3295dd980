"""docs/operations.md shows the figures that were kept, and names every scenario."""

from __future__ import annotations

import pytest

from tests.kubernetes import page
from tests.kubernetes.cluster import NoCluster, connect
from tests.kubernetes.scenarios import SCENARIOS

WRITE = "run `make docs`"


def test_the_section_is_made_of_the_figures() -> None:
    assert page.section(page.recorded()) in page.PAGE.read_text(), WRITE


def test_every_scenario_is_either_a_row_or_not_run() -> None:
    written = page.section(page.recorded())
    assert [name for name, each in SCENARIOS.items() if f"| {each.title} |" not in written] == []


def test_no_recorded_scenario_has_lost_a_record() -> None:
    assert [each["scenario"] for each in page.recorded()["scenarios"] if each["lost"]] == []


def test_without_a_cluster_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(NoCluster, match=r"^There is no cluster to run on: .*\.$"):
        connect(None)  # type: ignore[arg-type]
