"""The chart's README is made of its values, and is not stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.deploy.chart_page import PAGE, Value, page, values
from tests.deploy.charts import CHART

VALUES = CHART / "values.yaml"


def test_the_page_is_what_the_chart_says_now() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_value_has_a_row_with_its_default() -> None:
    told = {each.name: each.default for each in values(VALUES.read_text()) if each.default}
    expected = dict(leaves(yaml.safe_load(VALUES.read_text())))
    assert {name: yaml.safe_load(default) for name, default in told.items()} == expected


def leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Values that are written on one line, or are a list."""
    lines = VALUES.read_text()
    for key, value in table.items():
        if isinstance(value, dict) and value and f"{key}: {{" not in lines:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def test_a_value_is_told_with_the_comment_above_it_and_no_other() -> None:
    text = """# About the file.

# What it is.
# In two lines.
one: 1
two:
  # Below.
  three: {a: b}
  four: ""
#  an: example
five: []
"""
    assert list(values(text)) == [
        Value("one", "1", "What it is. In two lines."),
        Value("two", None, ""),
        Value("two.three", "{a: b}", "Below."),
        Value("two.four", '""', ""),
        Value("five", "[]", ""),
    ]
