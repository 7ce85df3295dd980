"""docs/promises.md: each situation of which something is promised has tests that show it, and these are there."""

from __future__ import annotations

import re

from tests.markdown import ROOT, cells

PAGE = (ROOT / "docs" / "promises.md").read_text()


def rows(head: str) -> dict[str, str]:
    """The table with this head: its first column, in words alone, and its second."""
    table = PAGE.split(f"| {head} |\n", 1)[1].split("\n\n", 1)[0]
    pairs = (cells(line) for line in table.splitlines()[1:])
    return {re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first): second for first, second in pairs}


def test_each_promise_names_tests_that_are_there() -> None:
    named = rows("situation | tests that show what is promised")
    assert named.keys() == rows("situation | what is promised").keys()
    for situation, cell in named.items():
        tests = re.findall(r"`(tests/[\w/.]+)`", cell)
        assert tests, situation
        assert [test for test in tests if not (ROOT / test).exists()] == []
