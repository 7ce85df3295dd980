"""The dashboard shows what is declared, and the chart carries it as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kunicorn.observe.catalogue import Kind, every, every_of_jobs
from kunicorn.observe.generate import dashboard, expressions, fleet_dashboard

ROOT = Path(__file__).parents[3]
_SUFFIX = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket", Kind.GAUGE: ""}
EXPOSED = {declared.name + _SUFFIX[declared.kind]: declared for declared in every()}


BOTH = {"kunicorn.json": dashboard, "kunicorn-fleet.json": fleet_dashboard}


@pytest.mark.parametrize("name", BOTH)
def test_the_dashboards_are_current(name: str) -> None:
    file = ROOT / "deploy/helm/dashboards" / name
    assert file.read_text() == BOTH[name](), "run `python -m kunicorn.observe`"


def test_every_expression_asks_for_metrics_and_labels_that_there_are() -> None:
    for expression in expressions():
        named = re.findall(r"(?<![:\w])(?:kunicorn|kafka|messaging)_\w+", expression)
        assert named or "group:" in expression, expression
        assert set(named) <= set(EXPOSED), expression
        labels = {label for name in named for label in EXPOSED[name].labels}
        grouped = {label for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(", ")}
        assert grouped <= labels | {"namespace", "instance", "group", "le"}, expression


@pytest.mark.parametrize("page", BOTH.values())
def test_panels_do_not_overlap_and_have_numbers_of_their_own(page: Callable[[], str]) -> None:
    panels = json.loads(page())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = sorted((p["gridPos"] for p in panels), key=lambda place: (place["y"], place["x"]))
    for one, other in pairwise(places):
        assert other["y"] >= one["y"] + one["h"] or other["x"] >= one["x"] + one["w"]
        assert one["x"] + one["w"] <= 24


@pytest.mark.parametrize("page", BOTH.values())
def test_every_panel_says_what_it_means_and_what_to_do(page: Callable[[], str]) -> None:
    for panel in json.loads(page())["panels"]:
        assert panel["type"] == "row" or panel["description"]


def test_alerts_ask_for_metrics_that_there_are() -> None:
    rules = (ROOT / "deploy/helm/alerts/rules.yaml").read_text()
    expressions = re.findall(r"expr: (.*?)\n        for:", rules, flags=re.DOTALL)
    assert len(expressions) == rules.count("- alert:")
    named = {name for each in expressions for name in re.findall(r"(?<![:\w])(?:kunicorn|kafka)_\w+", each)}
    assert named <= set(EXPOSED)


SHOWN = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(file for file in (ROOT / "deploy/helm").rglob("*") if file.suffix in (".md", ".yaml", ".tpl", ".json")),
]
NO_METRICS = {"kunicorn_columns", "kunicorn_config", "kunicorn_handler", "kafka_errors", "kafka_dlt"}
"""A wheel, a setting of pytest and a fixture of ours; a module, and headers of Spring's."""
OF_OTHERS = {"kafka_consumergroup_lag"}
"""Of the exporters that are named beside our own."""
RECORDED = {"kunicorn_lag_over_objective"}
"""Made by recording rules: group:kunicorn_lag_over_objective:ratio_1h."""


def test_every_metric_that_pages_rules_and_dashboards_name_is_there() -> None:
    there = {*EXPOSED, *NO_METRICS, *OF_OTHERS, *RECORDED}
    for declared in every_of_jobs():
        there.add(declared.name + _SUFFIX[declared.kind])
    for declared in (*every(), *every_of_jobs()):
        if declared.kind is Kind.HISTOGRAM:
            there |= {declared.name, *(f"{declared.name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))}
    named = re.compile(r"(?<![\w./-])(?:kunicorn|kafka|messaging)_[a-z0-9_]*[a-z0-9](?![\w*…])")
    strange = {
        (str(file.relative_to(ROOT)), name)
        for file in SHOWN
        for name in named.findall(file.read_text())
        if name not in there
    }
    assert strange == set()
