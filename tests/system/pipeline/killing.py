"""Jobs as processes that are killed, and ended in order."""

from __future__ import annotations

import os
import signal
import subprocess

from tests.system.pipeline.desk import Desk

START_SECONDS = 480.0
"""A JVM, its executors and their Python processes, on a machine that has other things to do: on two processors shared
with other suites the first round has taken more than four minutes to come."""


def kill(process: subprocess.Popen[str]) -> None:
    """The driver, its JVM and the executors' JVMs, as when the machine goes."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def finish(desk: Desk, *arguments: str, master: str = "local[2]") -> None:
    """Another run, to its end."""
    process = desk.start(*arguments, "--master", master)
    out, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, out
