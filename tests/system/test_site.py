"""The documentation as a site: links lead somewhere, the names' docstrings are there, the search needs no server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kunicorn
from tests.markdown import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", str(there)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return there


def test_every_page_is_built_and_in_the_menu(site: Path) -> None:
    front = (site / "README.html").read_text()
    pages = [page.relative_to(ROOT).with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if not (site / page).exists() or f'href="{page}"' not in front]


def test_every_public_name_has_its_signature_and_docstring(site: Path) -> None:
    reference = (site / "docs" / "reference.html").read_text()
    assert not [name for name in kunicorn.__all__ if f'id="kunicorn.{name}"' not in reference]
    assert "kunicorn.testing.HandlerTest.run" in reference


def test_the_search_is_of_files_alone(site: Path) -> None:
    assert "dead" in (site / "searchindex.js").read_text()
    pages = (site / "search.html").read_text()
    assert "searchindex.js" in pages
    assert 'src="http' not in pages
