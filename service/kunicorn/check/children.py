"""Processes that run the user's code for a check, and can neither hang us nor take us along."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from kunicorn.exits import how_it_ended
from kunicorn.settings.security import without_secrets


@dataclass(frozen=True, slots=True)
class Ended:
    """How the child ended, and what it said."""

    code: int | None
    """Exit code, negative for a signal; None if it had to be killed for taking too long."""
    said: str

    @property
    def how(self) -> str:
        """For people."""
        return "killed: it took too long" if self.code is None else how_it_ended(self.code)


def run(program: Sequence[str], arguments: Sequence[str], told: bytes, timeout: float) -> Ended:
    """Run Python with `program` in a process group of its own, until it ends or `timeout` seconds are over. Blocks.

    Its first arguments are our `sys.path` as JSON and the descriptor that it answers on; `told` is what it reads on
    standard input (arguments can be read by every user of the machine). Its output goes nowhere.
    """
    read_end, write_end = os.pipe()
    importable_here = json.dumps(list(dict.fromkeys([os.getcwd(), *sys.path])))
    with contextlib.closing(_Input(told)) as given:
        child = subprocess.Popen(
            [sys.executable, *program, importable_here, str(write_end), *arguments],
            pass_fds=[write_end],
            env=without_secrets(os.environ),
            stdin=given.fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        code = _ended(child, timeout)
        # The group is dead, so this meets the pipe's end: nothing that the module started still holds the other one.
        return Ended(code, answer.read().decode(errors="replace"))


class _Input:
    """What the child reads, in memory: a pipe would fill up where the child does not read."""

    def __init__(self, content: bytes) -> None:
        self.fd = os.memfd_create("told")
        os.write(self.fd, content)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def close(self) -> None:
        """The child has its own."""
        os.close(self.fd)


def _ended(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The child's exit code, None if it had to be killed; whatever it started goes with it."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
