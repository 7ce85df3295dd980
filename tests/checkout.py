"""What is tried and measured, as git names it: the commit that is checked out, and the code that figures depend on.

Figures of one code may stand beside one another, and what was measured on another one is measured again. So code that
is not committed is refused: its figures could not be told apart.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out."""
    return _git(root, "rev-parse", "--short=10", "HEAD").strip()


def changed(*parts: str, root: Path = ROOT) -> str:
    """Files of these folders (all, without any) that differ from the commit, as git lists them; empty: none."""
    return _git(root, "status", "--porcelain", "--", *parts)


def code(parts: Sequence[str] = (), but: Collection[str] = (), root: Path = ROOT) -> str:
    """Hash of git's names for the files of these folders, or of all. `but`: files and folders that do not count. Raises
    `SystemExit` where files differ from the commit.
    """
    _refuse_changes(parts, root)
    listed = _git(root, "ls-tree", "-r", "HEAD", "--", *parts).splitlines()
    counted = [line for line in listed if not is_of(line.partition("\t")[2], but)]
    return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:12]


def trees(*folders: str, root: Path = ROOT) -> list[str]:
    """Git's name for each folder as it is. Raises as `code` does."""
    _refuse_changes(folders, root)
    return [_git(root, "rev-parse", f"HEAD:{folder}").strip() for folder in folders]


def _refuse_changes(parts: Sequence[str], root: Path) -> None:
    if listed := changed(*parts, root=root):
        raise SystemExit(f"commit first, so that it can be said what was tried; changed:\n{listed}")


def is_of(path: str, named: Collection[str]) -> bool:
    """Whether the file is one of these files, or in one of these folders."""
    return any(path == each or path.startswith(f"{each}/") for each in named)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout
