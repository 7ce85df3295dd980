"""Processes that run the user's code for a check, and can neither hang us nor take us along."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from kunicorn.exits import how_it_ended
from kunicorn.settings.security import without_secrets

_LAST_LINES_SECONDS = 1.0


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


def run(
    program: Sequence[str],
    arguments: Sequence[str],
    told: bytes,
    timeout: float,
    printed: Callable[[str], None] | None = None,
) -> Ended:
    """Run Python with `program` in a process group of its own, until it ends or `timeout` seconds are over. Blocks.

    Its first arguments are our `sys.path` as JSON and the descriptor that it answers on; `told` is what it reads on
    standard input (arguments can be read by every user of the machine). `printed` gets each line of its output, on a
    thread, as it comes; without it the output goes nowhere.
    """
    read_end, write_end = os.pipe()
    importable_here = json.dumps(list(dict.fromkeys([os.getcwd(), *sys.path])))
    with contextlib.closing(_Input(told)) as given:
        child = subprocess.Popen(
            [sys.executable, *program, importable_here, str(write_end), *arguments],
            pass_fds=[write_end],
            env=without_secrets(os.environ),
            stdin=given.fd,
            stdout=subprocess.DEVNULL if printed is None else subprocess.PIPE,
            stderr=subprocess.DEVNULL if printed is None else subprocess.STDOUT,
            start_new_session=True,
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer, _passing_on(child, printed):
        code = _ended(child, timeout)
        # The group is dead, so this meets the pipe's end: nothing that the module started still holds the other one.
        return Ended(code, answer.read().decode(errors="replace"))


@contextlib.contextmanager
def _passing_on(child: subprocess.Popen[bytes], printed: Callable[[str], None] | None) -> Iterator[None]:
    """Read what the child prints from now on: it would wait for a reader once the pipe is full."""
    if printed is None or child.stdout is None:
        yield
        return

    def read(output: IO[bytes]) -> None:
        for line in output:
            printed(line.decode(errors="backslashreplace").rstrip("\n"))

    reader = threading.Thread(target=read, args=(child.stdout,), daemon=True)
    reader.start()
    yield
    # A process that it started and that left its group may hold the other end, for as long as it likes.
    reader.join(_LAST_LINES_SECONDS)


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
