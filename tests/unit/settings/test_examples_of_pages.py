"""Settings that the pages show are taken as they stand there, with the least that must be said beside them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kunicorn.settings.load import load_tables
from tests.fakes.complete_settings import tables_of
from tests.markdown import ROOT, Block, blocks

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(each for each in blocks(page) if each.language == "toml")
]


def least_beside(shown: dict[str, Any]) -> dict[str, Any]:
    """What else has to be said: a page says it elsewhere."""
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "orders"}
    least = {**tables_of(**shown), "schema_registry": {"url": "http://127.0.0.1:8081"}}
    if shown.get("kafka", {}).keys() == {"sasl_password_file"}:
        least["kafka"] |= login
    if "producing" in shown:
        least["producing"] = {"delivery": "at_least_once"}
    return least


def with_files_that_are_there(shown: Any, file: Path) -> Any:
    """The settings, in which every file is `file`."""
    if isinstance(shown, list):
        return [with_files_that_are_there(each, file) for each in shown]
    if not isinstance(shown, dict):
        return shown
    return {
        name: str(file) if name.endswith(("_file", "_location")) else with_files_that_are_there(value, file)
        for name, value in shown.items()
    }


@pytest.mark.parametrize("block", EXAMPLES)
def test_settings_that_a_page_shows_are_taken(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a-long-and-random-text")
    shown = with_files_that_are_there(tomllib.loads(block.text), file)
    load_tables(Path("config.toml"), shown, least_beside(shown))
