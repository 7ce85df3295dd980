"""Unit and contract tests on each supported Python of this machine, each in an environment of its own.

`make test-pythons` runs it. The Python that `make test` runs on is left out: it has been tried. Of stories by the
thousand the others tell a part: what they find is an order of events, which does not depend on the interpreter.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORTED = ("3.11", "3.12", "3.13")
_ROOT = Path(__file__).parents[1]


def find(version: str, pyenv: Path | None = None) -> str | None:
    """The interpreter of that version which runs: on the PATH, or one that pyenv keeps; None if there is none."""
    kept = (pyenv or Path.home() / ".pyenv").glob(f"versions/{version}.*/bin/python{version}")
    # pyenv puts a command for each of its versions on the PATH; those that are not switched on only say so.
    for candidate in (shutil.which(f"python{version}"), *sorted(map(str, kept), reverse=True)):
        if candidate is not None and _runs([candidate, "-c", ""], capture_output=True):
            return candidate
    return None


def _runs(command: list[str], **options: Any) -> bool:
    return subprocess.run(command, check=False, **options).returncode == 0


def main() -> int:
    """The exit code: 0 when all that are there are green."""
    failed = []
    for version in SUPPORTED:
        if version == "{}.{}".format(*sys.version_info):
            continue
        python = find(version)
        if python is None:
            print(f"Python {version} is not on this machine: not tried", flush=True)
            continue
        print(f"Python {version}: {python}", flush=True)
        fast = ["make", "--no-print-directory", "test-fast", f"PYTHON={python}", "FAST=not long and not once"]
        if not _runs(fast, cwd=_ROOT):
            failed.append(version)
    if failed:
        print(f"unit or contract tests fail on Python {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
