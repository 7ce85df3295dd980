"""Programs that log, in processes of their own: loggers and standard streams are a process's global state."""

from __future__ import annotations

import os
import subprocess
import sys

PREAMBLE = """
import logging, os, sys, threading, warnings
from kunicorn.observe import logs
log = logs.get("kunicorn.test")
logs._FLUSH_AT_EXIT = 60.0
"""


def ran(program: str) -> tuple[str, str]:
    """Standard output and error of a process of its own: loggers are a process's global state.

    From Python 3.12 on a fork beside the writer's thread warns, which is no line of these tests'.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", PREAMBLE + program],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout, done.stderr
