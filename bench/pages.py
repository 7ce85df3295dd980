"""docs/benchmarks.md: a section for each benchmark, written by the benchmark itself."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_HEAD = "# Benchmarks\n\nEvery section is written by the program it names; nobody copies figures by hand.\n"


def write_section(title: str, body: str) -> None:
    """Put the section in its place, or at the end if it is new. The others stay as they are."""
    text = PAGE.read_text() if PAGE.exists() else _HEAD
    section = f"## {title}\n\n{body.strip()}\n"
    whole = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if whole.search(text):
        text = whole.sub(lambda _: section + "\n", text).rstrip() + "\n"
    else:
        text = text.rstrip() + "\n\n" + section
    PAGE.write_text(text)
