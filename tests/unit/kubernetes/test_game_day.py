"""The script that is called does what the alerts' pages say; the faults are meant for alerts that there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.deploy.charts import CHART
from tests.kubernetes.game_day import held
from tests.kubernetes.game_page import recorded, section
from tests.kubernetes.mishaps import MISHAPS
from tests.kubernetes.page import PAGE
from tests.kubernetes.runbook import PAGES, RUNBOOK

ALERTS = set(re.findall(r"- alert: (\w+)", (CHART / "alerts" / "rules.yaml").read_text()))


@pytest.mark.parametrize("alert", RUNBOOK)
def test_the_words_that_the_script_follows_are_on_the_alerts_page(alert: str) -> None:
    page = " ".join((PAGES / f"{alert}.md").read_text().partition("\n## Repair\n")[2].split())
    assert [step.words for step in RUNBOOK[alert] if step.words not in page] == []


def test_every_page_that_the_script_follows_is_an_alerts() -> None:
    assert set(RUNBOOK) <= ALERTS


def test_twelve_faults_each_have_an_alert() -> None:
    assert len(MISHAPS) == 12
    assert {each.pages for each in MISHAPS.values()} <= ALERTS


@pytest.mark.parametrize(
    ("played", "well"),
    [
        ({"paged": {"KunicornNoMembers": 95.0, "KunicornLagHigh": 300.0}, "healed": 130.0, "lost": 0}, True),
        ({"paged": {"KunicornNoMembers": 121.0}, "healed": 130.0, "lost": 0}, False),
        ({"paged": {}, "healed": 20.0, "lost": 0}, False),
        ({"paged": {"KunicornNoMembers": 95.0}, "healed": None, "lost": -1}, False),
        ({"paged": {"KunicornNoMembers": 95.0}, "healed": 130.0, "lost": 1}, False),
    ],
)
def test_a_fault_has_to_page_within_two_minutes_and_to_be_healed_without_a_loss(
    played: dict[str, Any], well: bool
) -> None:
    assert held(played) is well


def test_a_page_that_came_late_says_so() -> None:
    late = {"mishap": "overload", "paged": {"KunicornLagHigh": 300.0}, "followed": [], "healed": 400.0, "lost": 0}
    late |= {"commit": "abc1234"}
    conditions = dict.fromkeys(("date", "kubernetes", "machine", "commit"), "x")
    assert "**late**: LagHigh 300" in section({"conditions": conditions, "mishaps": [late]})
    assert "late" not in section({"conditions": conditions, "mishaps": [{**late, "paged": {"KunicornLagHigh": 90.0}}]})


def test_each_fault_names_the_commit_of_the_image_that_it_was_played_with() -> None:
    played = {"paged": {"KunicornLagHigh": 90.0}, "followed": [], "healed": 100.0, "lost": 0}
    images = {"overload": "abc0001", "rights": "abc0002"}
    two = [{**played, "mishap": name, "commit": commit} for name, commit in images.items()]
    written = section({"conditions": dict.fromkeys(("date", "kubernetes", "machine", "commit"), "x"), "mishaps": two})
    for name, commit in images.items():
        title = re.escape(MISHAPS[name].title)
        assert re.search(rf"^\| {title} \|.*\| {commit} \|$", written, re.MULTILINE)


def test_the_section_is_made_of_what_was_kept() -> None:
    assert section(recorded()) in PAGE.read_text(), "run `make docs`"


def test_every_fault_that_was_kept_paged_in_time_and_was_healed_without_a_loss() -> None:
    assert [each["mishap"] for each in recorded()["mishaps"] if not held(each)] == []
