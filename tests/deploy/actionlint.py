"""actionlint, the linter of the workflows of a public forge, built once into the tests' cache. Small, as it takes a Go,
which nothing else of `make test` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.kafka.artifacts import cache_directory, locked

MODULE = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


class ActionlintUnavailable(Exception):
    """It cannot be had on this machine; the message says why and what to do."""


def actionlint() -> str:
    """The command: the machine's own, else one that Go builds. Raises `ActionlintUnavailable`."""
    if found := shutil.which("actionlint"):
        return found
    home = cache_directory() / MODULE.rpartition("/")[2]
    command = home / "actionlint"
    with locked(home.name):
        if not command.exists():
            if (go := shutil.which("go")) is None:
                raise ActionlintUnavailable(
                    "There is neither actionlint nor a Go to build it with: install one of them."
                )
            home.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, "GOBIN": str(home)}
            done = subprocess.run([go, "install", MODULE], env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ActionlintUnavailable(f"Go could not build {MODULE}: {done.stderr.strip()[-500:]}")
    return str(command)
