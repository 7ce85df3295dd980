"""How a process ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from kunicorn.errors import how_it_ended


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("raise SystemExit(3)", "exit 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 6)", f"signal {signal.SIGRTMIN + 6}"),
    ],
)
def test_an_end_is_told_by_its_exit_code_or_its_signal(ends: str, said: str) -> None:
    assert how_it_ended(subprocess.run([sys.executable, "-c", ends], check=False).returncode) == said
