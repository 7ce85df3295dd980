"""Which tests show which scenario: read from the `scenario` marks in their source, which is not imported."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[3]

Tier = Literal["machine", "coordinator", "broker"]
TIERS: tuple[Tier, ...] = ("machine", "coordinator", "broker")

_TIER_OF: tuple[tuple[str, Tier], ...] = (
    ("tests/unit/group/", "machine"),
    ("tests/unit/fetch/", "machine"),
    ("tests/unit/worker/fetching/test_own_fetcher.py", "machine"),
    ("tests/contract/assignors/", "machine"),
    ("tests/contract/columns/", "machine"),
    ("tests/contract/conformance/machine/", "machine"),
    ("tests/unit/supervisor/", "coordinator"),
    ("tests/unit/kafka/", "coordinator"),
    ("tests/unit/worker/fetching/test_refused_fetches.py", "coordinator"),
    ("tests/contract/conformance/coordinator/", "coordinator"),
    ("tests/system/", "broker"),
)
"""What a test there runs on: a pure part alone, drivers beside a coordinator or broker that is played, or Kafka."""

_MARK = "pytest.mark.scenario"


@dataclass(frozen=True, slots=True)
class Proof:
    """One test that shows a scenario."""

    scenario: str
    tier: Tier
    path: str
    test: str


@cache
def proofs(root: Path = ROOT) -> Mapping[str, list[Proof]]:
    """All of them, by scenario, in the order of the tiers. Raises `ValueError` for a mark that cannot be counted."""
    found: dict[str, list[Proof]] = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_text()
        if _MARK in source:
            for proof in _in_file(path.relative_to(root).as_posix(), source):
                found[proof.scenario].append(proof)
    for each in found.values():
        each.sort(key=lambda proof: (TIERS.index(proof.tier), proof.path))
    return dict(found)


def _in_file(path: str, source: str) -> Iterator[Proof]:
    tier = next((tier for folder, tier in _TIER_OF if path.startswith(folder)), None)
    if tier is None:
        raise ValueError(f"{path} has scenarios, and nobody knows what its tests run on: add its folder to proofs.py")
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in _names(node):
                yield Proof(name, tier, path, node.name)


def _names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[str]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == _MARK:
            for argument in mark.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise ValueError(f"{node.name}: a scenario is a plain string, not {ast.unparse(argument)}")
                yield argument.value
