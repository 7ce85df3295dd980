"""The README's five minutes, in its own words: its files and every one of its commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kunicorn
from tests.kafka.ports import kept_port
from tests.markdown import ROOT, commands, write_files
from tests.system.embedded import COMMITS_SOON, LOOK_SECONDS, Desk
from tests.waiting import wait_until

README = ROOT / "README.md"
INSTALL = ["python3 -m venv my-shop/.venv", "my-shop/.venv/bin/pip install ./kunicorn"]
ELSEWHERE = {
    ". .venv/bin/activate": "what is installed there runs here by its path",
    "kunicorn demo": "tests/system/test_demo.py",
}
REGISTRY = "registry.example.com/kunicorn"
DEPLOY = [
    f"docker build -t {REGISTRY}:{kunicorn.__version__} .",
    f"docker push {REGISTRY}:{kunicorn.__version__}",
    f"helm install example deploy/helm -f deploy/helm/ci/example-values.yaml --set image.repository={REGISTRY}",
]
"""tests/system/deploy renders the last one, and asks for the image that the others push."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    write_files(README, tmp_path, kept_port())
    return Desk(tmp_path, {"KUNICORN_HTTP__PORT": str(kept_port()), **COMMITS_SOON})


def test_a_newcomer_gets_from_nothing_to_a_handler_of_their_own(desk: Desk) -> None:
    told = [command for command in commands(README) if command not in {*INSTALL, *ELSEWHERE, *DEPLOY}]
    broker, check, run, status, lag, replay, plan = told
    with desk.broker(broker):
        checked = desk.type(check)
        assert checked.returncode == 0, checked.stdout
        assert "5 records handled" in checked.stdout
        with desk.running(run) as log:
            wait_until(lambda: "a large order" in log.read_text(), "a large order")
            all_handled = '"records": 1000'
            wait_until(lambda: all_handled in desk.type(status, "--json").stdout, "1000 orders", every=LOOK_SECONDS)
            assert "stable" in desk.type(status).stdout
            wait_until(lambda: re.search(r"orders +8 +0 ", desk.type(lag).stdout), "no lag", every=LOOK_SECONDS)
            assert json.loads(desk.type(lag, "--json").stdout)["lag"] == 0
            assert "done after" in desk.type(replay).stdout
            assert "1,000 offsets would be handled again" in desk.type(plan).stdout, "all is committed"


def test_the_handler_has_twelve_lines_and_the_page_is_short() -> None:
    handler = next(block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    assert len(handler.splitlines()) == 12
    assert len(README.read_text().splitlines()) < 160


def test_the_page_begins_with_what_installs_it() -> None:
    assert commands(README)[:2] == INSTALL


@pytest.mark.long
def test_the_command_that_installs_it_installs_it(tmp_path: Path) -> None:
    checkout = tmp_path / "kunicorn"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "service", checkout / "service", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    # The packages that it needs are here already.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(tmp_path / "there"), "./kunicorn"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "bin" / "kunicorn").exists()


@pytest.mark.parametrize("page", sorted([README, *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name)
def test_nothing_is_installed_from_a_name_that_anybody_may_register(page: Path) -> None:
    assert not re.search(r"pip install '?kunicorn\b(?!\S*(?: @|\.whl))", page.read_text())
