"""The end of a process that a debugger is attached to: it has the exit status before the parent has, and keeps it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunicorn.supervisor.workers import process as module
from kunicorn.supervisor.workers.process import Child, has_ended, reap_strangers, send_signal, watch_exit
from tests.fakes.driver import until
from tests.waiting import runs, wait_until

CHILD = """
import sys, threading, time
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("begun", flush=True)
time.sleep(600)
"""
DEBUGGER = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
PTRACE_SEIZE = 0x4206
refused = [libc.ptrace(PTRACE_SEIZE, int(thread), None, None) for thread in os.listdir(f"/proc/{sys.argv[1]}/task")]
print(os.strerror(ctypes.get_errno()) if any(refused) else "attached", flush=True)
select.select([sys.stdin], [], [], 60)  # At its prompt, where it asks for nobody's exit status.
"""


@pytest.fixture(name="held", params=[1, 3], ids=["one thread", "several threads"])
def _held(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """A child that leads its process group, and the debugger that holds each thread of it."""
    with (
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(request.param)], stdout=subprocess.PIPE, text=True, process_group=0
        ) as child,
        subprocess.Popen(
            [sys.executable, "-c", DEBUGGER, _begun(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as debugger,
    ):
        try:
            if (said := _line(debugger)) != "attached":
                pytest.skip(f"this machine lets no process trace another one: {said}")
            yield child, debugger
        finally:
            debugger.kill()
            child.kill()


def _begun(child: subprocess.Popen[str]) -> str:
    assert _line(child) == "begun"
    return str(child.pid)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def watched(child: subprocess.Popen[str]) -> tuple[Child, asyncio.Future[str]]:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    found = Child(child.pid, os.pidfd_open(child.pid))
    watch_exit(found, ended.set_result, with_group=True)
    return found, ended


def let_go(debugger: subprocess.Popen[str]) -> None:
    debugger.kill()
    debugger.wait()


def is_reaped(pid: int) -> bool:
    """Whether this call has reaped that process. What earlier tests have left is reaped on the way."""
    return reap_strangers(lambda _: False) > 0 and not Path(f"/proc/{pid}").exists()


def grandchild(group: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, "1"], stdout=subprocess.DEVNULL, text=True, process_group=group
    )


async def test_a_process_that_is_killed_in_a_debugger_has_ended_although_the_debugger_keeps_its_status(
    held: tuple[subprocess.Popen[str], subprocess.Popen[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    child, debugger = held
    kept, ended = watched(child)
    send_signal(kept.pidfd, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await ended == "exited, status unknown"
    assert debugger.poll() is None
    assert f"process {child.pid} has ended, and a debugger keeps its exit status" in capfd.readouterr().err
    let_go(debugger)
    wait_until(lambda: is_reaped(child.pid), "what the debugger has left to be reaped")


async def test_the_status_that_a_debugger_hands_on_is_told(
    held: tuple[subprocess.Popen[str], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TRACER_SECONDS", 600.0)
    child, debugger = held
    kept, ended = watched(child)
    send_signal(kept.pidfd, signal.SIGKILL)
    await until(lambda: has_ended(child.pid))
    assert not ended.done()
    let_go(debugger)
    async with asyncio.timeout(60):
        assert await ended == "SIGKILL"


async def test_what_a_process_has_started_is_killed_while_the_debugger_keeps_its_status(
    held: tuple[subprocess.Popen[str], subprocess.Popen[str]],
) -> None:
    child, _ = held
    kept, ended = watched(child)
    with grandchild(child.pid) as started:
        send_signal(kept.pidfd, signal.SIGKILL)
        async with asyncio.timeout(60):
            await ended
        wait_until(lambda: not runs(started.pid), "what it has started to be killed")
