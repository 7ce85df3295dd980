"""docs/incidents.md names tests that exist, metrics that are exposed, and every incident once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kunicorn.observe.catalogue import every
from tests.chaos.faults import FAULTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "incidents.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name or path for path, name in NAMED])
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    file = ROOT / path
    assert file.exists()
    assert not name or re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)


def test_every_incident_has_a_number_and_names_what_shows_it() -> None:
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+) \|$", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 38))
    assert [number for number, here in rows if "`" not in here] == []


def test_faults_and_metrics_that_are_named_exist() -> None:
    assert set(re.findall(r"`([a-z-]+)` in `make chaos`", TEXT)) <= FAULTS.keys()
    metrics = {each.name for each in every()}
    assert set(re.findall(r"`((?:kunicorn|kafka)_\w+)", TEXT)) <= metrics
