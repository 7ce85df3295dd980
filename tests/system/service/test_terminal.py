"""Ctrl-C on a real terminal: a drain like any other, whoever else the terminal tells."""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system import procfs
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import wait_until

CTRL_C = b"\x03"
LOG_IN = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for fd in range(3):
    os.dup2(terminal, fd)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The first terminal that a session's leader opens becomes the session's own (`tty_ioctl(4)`)."""
SceneMaker = Callable[..., Scene]


class Screen:
    """The user's side of a pseudo-terminal; `paper` keeps what was printed."""

    def __init__(self, keyboard: int, paper: Path) -> None:
        self._keyboard = keyboard
        self._paper = paper
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def press(self, keys: bytes) -> None:
        """Type; the terminal itself turns Ctrl-C into SIGINT for its foreground process group."""
        os.write(self._keyboard, keys)

    def foreground(self) -> int:
        """The process group that Ctrl-C reaches."""
        return os.tcgetpgrp(self._keyboard)

    def _read(self) -> None:
        with self._paper.open("ab", buffering=0) as paper:
            while True:
                try:
                    paper.write(os.read(self._keyboard, 65536))
                except OSError:  # EIO: nobody has the terminal open any more.
                    return


@contextmanager
def terminal(paper: Path) -> Iterator[tuple[Screen, int]]:
    """A screen, and the descriptor of the line to it, the terminal proper."""
    keyboard, line = pty.openpty()
    try:
        yield Screen(keyboard, paper), line
    finally:
        os.close(line)
        os.close(keyboard)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.long)])
def test_ctrl_c_drains_commits_and_exits_with_zero(scene: SceneMaker, strategy: str) -> None:
    settings = {"group": {"partition_assignment_strategy": [strategy], "commit_interval_ms": 60_000}}
    stage = scene(4, settings=settings, env={"KUNICORN_HANDLER_MS": "20"})
    paper = stage.members.directory / "member-1.log"
    with terminal(paper) as (screen, line), Flow(stage.kafka.bootstrap, stage.topic, 200):
        member = stage.members.start(name="member-1", within=(sys.executable, "-c", LOG_IN, os.ttyname(line)))
        member.wait_running(4)
        member.wait(lambda: len(stage.handled(0)) > 20, "some load")
        assert screen.foreground() == os.getpgid(member.pid) == member.pid
        screen.press(CTRL_C)
        assert member.exit_code() == 0, member.output()
        wait_until(lambda: "everything handled is committed" in member.output(), "the last word on the screen")
    assert "SIGINT: draining" in member.output()
    assert "Traceback" not in member.output()
    wait_until(lambda: not procfs.living_in_session(member.pid), "the template to follow its supervisor")
    # Invariants 1 and 8: what is committed is exactly what was handled, although no timer ever committed.
    handled = {partition: len(set(stage.handled(partition))) for partition in range(4)}
    assert stage.committed() == handled
    assert not stage.judge().faults().keys() - {"lost"}, "what was not handled yet is nobody's fault"
