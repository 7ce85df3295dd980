"""What runbooks show: queries, and commands as one types them."""

from __future__ import annotations

import re

from tests.deploy.charts import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks"


def shown(language: str) -> dict[str, list[str]]:
    """The blocks of that language, by runbook."""
    return {file.stem: _blocks(language, file.read_text()) for file in RUNBOOKS.glob("*.md")}


def commands(page: str) -> tuple[list[str], list[str]]:
    """The lines of a page's `sh` blocks, in its order: those to look with, and those of its `## Repair`."""
    look, _, repair = (RUNBOOKS / f"{page}.md").read_text().partition("\n## Repair\n")
    return _lines(look), _lines(repair)


def _lines(text: str) -> list[str]:
    joined = "".join(_blocks("sh", text)).replace("\\\n", " ")
    return [line for each in joined.splitlines() if (line := each.partition("    #")[0].strip()) and line[0] != "#"]


def _blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
