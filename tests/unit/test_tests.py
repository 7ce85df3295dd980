"""The tests' own order: a helper has a home that is no test, and a failure's short name says where it is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAY_IMPORT_A_TEST = re.compile(r"^\s*(?:from|import)\s[^(\n]*(?:\btest_|\([^)]*\btest_)", re.MULTILINE)
"""What a file has that imports a test, on one line or in parentheses; few others have it."""
FILES = sorted(file for folder in ("tests", "bench") for file in (ROOT / folder).rglob("*.py"))


def imported(file: Path) -> set[str]:
    """The modules that this one imports from, and each name that may be a module, where a test may be among them."""
    found: set[str] = set()
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if MAY_IMPORT_A_TEST.search(text) else ():
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return {each for each in found if each.startswith("tests.")}


def test_no_module_imports_from_a_test() -> None:
    tests = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES if file.name.startswith("test_")}
    assert {file.name: used for file in FILES if (used := imported(file) & tests)} == {}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    names = Counter(file.name for file in FILES if file.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_has_collections_of_garbage_go_through_all_tests_again() -> None:
    """What was collected is frozen (`tests/conftest.py`), and `unfreeze` is of everything."""
    assert [str(file.relative_to(ROOT)) for file in FILES if re.search(r"gc\.unfreeze\(", file.read_text())] == []
