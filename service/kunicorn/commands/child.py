"""Child processes of commands, which the kernel kills when the command is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kunicorn.linux import IS_LINUX

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

#: The kernel sends the death signal when the *thread* that forked ends, not the process. All children are started
#: by this one thread, which lives until the interpreter exits; started from a pool's worker they would die with it.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to the calling process when its parent dies, by whatever cause.

    Called in the child, between fork and exec; survives exec. Off Linux nothing happens: a parent that is killed leaves
    its children behind, but for the mock cluster, which ends with its standard input.
    """
    if not IS_LINUX:
        return
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def python_module(name: str, *arguments: str) -> list[str]:
    """Command line that runs a module under this same interpreter."""
    return [sys.executable, "-m", name, *arguments]


def python_path() -> dict[str, str]:
    """Environment in which a child imports what this process can import, installed or not."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start_child(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    pipes: bool = False,
) -> subprocess.Popen[str]:
    """Start `command` as a child that is killed when this process dies.

    `env` is added to our environment. With `log`, standard output and error are appended to that file;
    with `pipes`, standard input and output are text pipes instead. Any thread may call it.
    """
    with open(log if log is not None else os.devnull, "ab") as output:
        return _starter.submit(
            subprocess.Popen[str],
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=None if pipes and log is None else output,
            text=True,
            # Of its own group: Ctrl-C in the terminal is for us, and we stop the children in order.
            process_group=0,
            preexec_fn=die_with_parent,
        ).result()
