"""The table of Pythons and Kafkas says what was measured, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import matrix
from tests.kafka.cluster import VERSION
from tests.system.pipeline.versions import FEATURES

ROOT = Path(__file__).parents[2]
GREEN = {"kind": "Kafka", "version": "4.3.1", "result": "green", "passed": 9, "tree": "abc", "date": "2026-11-23"}


def test_the_page_is_current() -> None:
    page = matrix.PAGE.read_text()
    assert page == matrix.with_table(page, matrix.cells()), "run `make docs`"


def test_what_was_not_run_is_not_green() -> None:
    rows = [line for line in matrix.table([]).splitlines() if re.match(r"\| (Python|Kafka) \d", line)]
    assert len(rows) == len(matrix.PYTHONS) + len(matrix.KAFKAS)
    assert all("| not run | – | – | – |" in row for row in rows)


def test_the_reason_why_something_was_not_run_is_told() -> None:
    cell = {"kind": "Python", "version": "3.14", "result": "not run", "why": "not on this machine", "tree": "abc"}
    assert "| Python 3.14 | not run: not on this machine | – | – | – |" in matrix.table([cell])


@pytest.mark.parametrize(
    ("code", "said", "result"),
    [
        (0, "....\n12 passed, 3 deselected in 4.10s\n", {"result": "green", "passed": 12, "deselected": 3}),
        (0, "=== 3731 passed in 52.10s (0:00:52) ===\n", {"result": "green", "passed": 3731}),
        (1, "FAILED x\n1 failed, 11 passed in 4.10s\n", {"result": "red", "passed": 11, "failed": 1}),
        (5, "no tests ran in 0.10s\n", {"result": "red"}),
        (0, "make: nothing to be done\n", {"result": "red"}),
        (2, "make: *** [Makefile:45] Error 1\n", {"result": "red"}),
    ],
)
def test_a_run_is_judged_by_its_exit_code_and_its_last_line(code: int, said: str, result: dict[str, object]) -> None:
    assert matrix.judged(code, said) == result


def test_a_series_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    matrix.note({**GREEN, "version": "2.8.2", "result": "red"}, file)
    matrix.note(GREEN, file)
    assert [each["version"] for each in matrix.cells(file)] == ["4.3.1", "2.8.2"]
    assert matrix.is_done("Kafka", "4.3.1", "abc", matrix.cells(file))
    assert not matrix.is_done("Kafka", "4.3.1", "def", matrix.cells(file))
    assert not matrix.is_done("Kafka", "2.8.2", "abc", matrix.cells(file))
    matrix.note({**GREEN, "tree": "def"}, file)
    assert len(matrix.cells(file)) == 2


def test_what_is_claimed_is_in_the_table() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert set(re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))) <= set(matrix.PYTHONS)
    assert VERSION in matrix.KAFKAS


def test_the_core_is_there() -> None:
    assert [name for name in matrix.CORE if not (ROOT / "tests/system" / name).exists()] == []


def test_of_a_spark_each_feature_has_what_its_own_test_came_to() -> None:
    said = "\n".join(
        [
            f"PASSED tests/x.py::{FEATURES['backfill']}[4.0.5]",
            f"FAILED tests/x.py::{FEATURES['export']}[4.0.5] - AssertionError: PASSED",
            f"PASSED tests/x.py::{FEATURES['stream']}[4.0.5]",
            f"SKIPPED [1] tests/x.py: {FEATURES['transform']}[4.0.5] is not there",
        ]
    )
    found = matrix.features("4.0.5", said)
    assert found == {
        "backfill": "green", "catch-up": "not run", "transform": "not run", "export": "red", "data source": "not run",
        "stream": "refused",
    }  # fmt: skip
    assert matrix.features("4.2.1", said)["stream"] == "green"
    cell = {"kind": "Spark", "version": "4.0.5", "python": "3.11", "features": found, "tree": "abc", "date": "today"}
    row = "| 4.0.5 | 3.11 | green | not run | not run | red | not run | refused | `abc` | today |"
    assert row in matrix.table([cell]).splitlines()
    assert "| 4.1.4 | – | not run | not run | not run | not run | not run | not run | – | – |" in matrix.table([])


def test_every_feature_of_jobs_has_its_test() -> None:
    text = (ROOT / "tests/system/pipeline/test_spark_versions.py").read_text()
    assert set(re.findall(r"^def (test_\w+)", text, re.MULTILINE)) == set(FEATURES.values())
