"""Members of an earlier commit: the repository's own history, installed as that commit's image was, with the packages
that it locked, in an environment of its own.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunicorn import __version__
from tests.golden.make import COMMIT
from tests.kafka.artifacts import cache_directory, fetched, locked

_REPOSITORY = Path(__file__).parents[2]

VERSION = "0.1.0"
"""What members of that commit say that they are of."""
Start = Mapping[str, Any]
"""What makes a member one of another version: arguments of `Members.start`."""


class NotInHistory(Exception):
    """This clone has not got the commit; the message says what to do."""


def of_then(place: Path) -> Start:
    """What makes a member one of that commit, whose files go to `place`. The tests' handlers are that commit's, too.
    Blocks for a minute where the environment is not in the tests' cache. Raises `NotInHistory`."""
    check_history()
    python = str(_installed(_extracted(place)))
    environment = {"PYTHONPATH": str(place)}
    said = "import kunicorn, tests; print(kunicorn.__version__, kunicorn.__file__, tests.__file__)"
    told = subprocess.run(
        [python, "-c", said], env={**os.environ, **environment}, cwd="/", capture_output=True, text=True, check=True
    )
    version, package, handlers = told.stdout.split()
    assert version == VERSION != __version__
    assert Path(package).is_relative_to(cache_directory())
    assert handlers == str(place / "tests/__init__.py")
    return {"python": python, "env": environment}


def check_history() -> None:
    """Raises `NotInHistory` where members of that commit cannot be had."""
    if _git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode:
        raise NotInHistory(f"this clone has no commit {COMMIT}; `git fetch --unshallow` brings it")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=_REPOSITORY, capture_output=True, check=False)


def _extracted(place: Path) -> Path:
    """The files of that commit."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", COMMIT).stdout)) as archive:
        archive.extractall(place, filter="data")
    return place


def _installed(source: Path) -> Path:
    """The interpreter of an environment in the tests' cache with kunicorn as of that commit, and what it locked."""
    name = f"kunicorn-{COMMIT}-py{sys.version_info[0]}.{sys.version_info[1]}"
    prefix = cache_directory() / name
    with locked(name):
        if not (prefix / "complete").exists():
            shutil.rmtree(prefix, ignore_errors=True)
            venv.create(prefix, with_pip=True)
            command = [source / "deploy/image/build.sh", source, prefix]
            # A job on Spark in this process has put our packages there, and pip would take them for installed.
            clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            done = fetched(command, env=clean, timeout=600)
            assert done.returncode == 0, done.stderr
            (prefix / "complete").touch()
    return prefix / "bin" / "python"
