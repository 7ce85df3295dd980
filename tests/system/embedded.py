"""The embedded broker and the commands beside it, for tests of what the documentation says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.markdown import ROOT
from tests.waiting import PATIENCE, wait_until

SERVICE = ROOT / "service"
LOOK_SECONDS = 1.0
"""Between two looks by a command: each is a process of its own."""
COMMITS_SOON = {"KUNICORN_GROUP__COMMIT_INTERVAL_MS": "500"}
"""For desks at which somebody waits for lag to be gone: how long a commit waits is not what their pages are about."""


@dataclass(frozen=True)
class Desk:
    """A directory in which somebody types commands."""

    directory: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def everything(self) -> dict[str, str]:
        """Environment of the commands."""
        path = os.pathsep.join(filter(None, [str(SERVICE), os.environ.get("PYTHONPATH")]))
        # The log is what somebody sees on a terminal, where prints are lines of their own.
        own = {"KUNICORN_HTTP__PORT": "0", "KUNICORN_LOG__FORMAT": "text", "PYTHONUNBUFFERED": "1"}
        return {**os.environ, "PYTHONPATH": path, **own, **self.environ}

    def type(self, command: str, *more: str, timeout: float = 2 * PATIENCE) -> subprocess.CompletedProcess[str]:
        """The command's end: `kunicorn …`, or `python …`."""
        return subprocess.run(
            [*_program(command), *more],
            cwd=self.directory,
            env=self.everything,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @contextmanager
    def running(self, command: str, exit_code: int = 0) -> Iterator[Path]:
        """The command runs while the block lasts; gives its output as a file. SIGINT then ends it with that code."""
        log = self.directory / f"{command.split()[1]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                _program(command), cwd=self.directory, env=self.everything, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield log
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == exit_code, log.read_text()[-3000:]
        finally:
            process.kill()
            process.wait(60)

    @contextmanager
    def broker(self, command: str = "kunicorn broker --seed 1000") -> Iterator[None]:
        """The embedded broker serves while the block lasts."""
        with self.running(command) as log:
            wait_until(lambda: "serves at" in log.read_text(), "the embedded broker")
            yield


def _program(command: str) -> list[str]:
    name, *arguments = command.split()
    assert name in ("kunicorn", "python"), command
    return [sys.executable, *(["-m", "kunicorn"] if name == "kunicorn" else []), *arguments]
