"""Sections of a page, each written by the program that measures it: mostly docs/benchmarks.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_HEAD = "# Benchmarks\n"
"""Of a page that is not there yet. What docs/benchmarks.md says above its first section is written by hand."""


def write_section(title: str, body: str, page: Path = PAGE) -> None:
    """Put the section in its place, or at the end if it is new. The others stay as they are."""
    text = page.read_text() if page.exists() else _HEAD
    section = f"## {title}\n\n{body.strip()}\n"
    whole = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if whole.search(text):
        text = whole.sub(lambda _: section + "\n", text).rstrip() + "\n"
    else:
        text = text.rstrip() + "\n\n" + section
    page.write_text(text)


def sections(text: str) -> Mapping[str, str]:
    """A page's sections by their titles."""
    found = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def paragraph(text: str) -> str:
    """Broken into lines, as the page has them."""
    return textwrap.fill(text, 120, break_on_hyphens=False)
