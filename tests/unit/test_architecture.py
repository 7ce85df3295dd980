"""docs/architecture.md names modules, methods, packages and tests that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from kunicorn.settings.load import sections

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "service"
TEXT = (ROOT / "docs" / "architecture.md").read_text()
DRAWN = "\n".join(re.findall(r"^```mermaid\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
KAFKAS = {"group.consumer.session.timeout.ms"}
SETTINGS = {f"{section}.{name}" for section, model in sections().items() for name in model.model_fields}
FILES = (".md", ".py", ".json", ".toml")
MODULES = sorted(
    ".".join(path.relative_to(SERVICE).with_suffix("").parts).removesuffix(".__init__")
    for path in SERVICE.rglob("*.py")
    if path.name != "__main__.py"
)
DOTTED = sorted(
    name
    for name in {*re.findall(r"`([A-Za-z_]+(?:\.\w+)+)`", PROSE), *re.findall(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)+", DRAWN)}
    if name not in KAFKAS | SETTINGS and not name.endswith(FILES)
)
CLASSES = sorted(set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PROSE)))


@cache
def classes() -> dict[str, list[str]]:
    """Modules by the class that they define."""
    found = defaultdict(list)
    for module in MODULES:
        path = SERVICE / Path(*module.split("."))
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module)
    return found


def named(dotted: str) -> bool:
    """Whether that is a module, by the end of its path, and a name in it; or a class, and a name in it."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        ending = ".".join(parts[:length])
        modules = [module for module in MODULES if f".{module}".endswith(f".{ending}")]
        if any(_has(importlib.import_module(module), parts[length:]) for module in modules):
            assert len(modules) == 1, f"{ending} may be {' or '.join(modules)}"
            return True
    return any(_has(importlib.import_module(module), parts) for module in classes().get(parts[0], ()))


def _has(of: object, names: list[str]) -> bool:
    try:
        reduce(_attribute, names, of)
    except AttributeError:
        return False
    return True


def _attribute(of: Any, name: str) -> Any:
    return None if name in getattr(of, "__annotations__", ()) else getattr(of, name)


@pytest.mark.parametrize("dotted", DOTTED)
def test_a_module_or_method_that_is_named_exists(dotted: str) -> None:
    assert named(dotted)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_is_named_exists(name: str) -> None:
    assert name in classes()


def test_files_and_tests_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:tests|deploy|kunicorn)/[\w/.]+)`", PROSE):
        assert (SERVICE / path if path.startswith("kunicorn") else ROOT / path).exists(), path
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PROSE):
        assert f"def {name}(" in tests, name


def test_every_package_has_its_floor() -> None:
    floors = dict(re.findall(r"^\| \d \| `(\w+)`()", PROSE, re.MULTILINE))
    assert set(floors) - {"errors"} == {path.parent.name for path in (SERVICE / "kunicorn").glob("*/__init__.py")}


def test_invariants_are_numbered() -> None:
    rows = PROSE.partition("## Invariants")[2].partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"^\| (\d) \|", rows, re.MULTILINE)] == list(range(1, 10))
    assert all("`test_" in row for row in rows.splitlines() if re.match(r"\| \d \|", row))
