"""What is tried and measured, as git names it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import checkout

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with three files, committed."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in ("service/loop.py", "service/jobs/plan.py", "docs/page.md"):
        write(tmp_path, name, "1")
    committed(tmp_path)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def committed(root: Path) -> None:
    for command in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=root, check=True)


def test_what_does_not_count_changes_no_code_and_all_else_does(repository: Path) -> None:
    def codes() -> tuple[str, ...]:
        every = checkout.code(root=repository)
        service = checkout.code(["service"], root=repository)
        return every, service, checkout.code(["service"], but=["service/jobs"], root=repository)

    before = codes()
    assert len(set(before)) == 3
    write(repository, "docs/page.md", "2")
    committed(repository)
    assert [one == other for one, other in zip(before, codes(), strict=True)] == [False, True, True]
    write(repository, "service/jobs/plan.py", "2")
    committed(repository)
    assert [one == other for one, other in zip(before, codes(), strict=True)] == [False, False, True]
    write(repository, "service/jobs_of_others.py", "2")
    committed(repository)
    assert codes()[2] != before[2], "a folder's name is no beginning of others"


@pytest.mark.parametrize("name", ["service/loop.py", "service/new.py"])
def test_code_that_is_not_committed_is_refused_by_name_and_pages_beside_it_are_not(repository: Path, name: str) -> None:
    write(repository, "docs/page.md", "2")
    assert checkout.changed("service", root=repository) == ""
    assert checkout.trees("service", root=repository)
    write(repository, name, "2")
    assert name in checkout.changed("service", root=repository)
    with pytest.raises(SystemExit, match=f"commit first.*\n.*{name}"):
        checkout.code(["service"], root=repository)
    with pytest.raises(SystemExit, match="commit first"):
        checkout.trees("docs", "service", root=repository)


def test_the_commit_and_trees_have_the_names_that_git_gives_them(repository: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True).stdout

    assert re.fullmatch(r"[0-9a-f]{10}", checkout.commit(repository))
    assert git("rev-parse", "HEAD").startswith(checkout.commit(repository))
    assert checkout.trees("service", "docs", root=repository) == [
        git("rev-parse", f"HEAD:{folder}").strip() for folder in ("service", "docs")
    ]


def test_nobody_else_asks_git_what_is_measured() -> None:
    asks = re.compile(r'"(rev-parse|ls-tree)"')
    files = [file for place in ("tests", "bench") for file in (ROOT / place).rglob("*.py")]
    assert {file.name for file in files if asks.search(file.read_text())} == {"checkout.py", "test_checkout.py"}
