"""A process that does not end is ended, whatever its threads are at."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kunicorn.errors import ExitCode

PROGRAM = """
import sys, threading, time
from kunicorn.errors import ExitCode
from kunicorn.supervisor.stop import Watchdog

begun = threading.Semaphore(0)

def stuck():
    begun.release()
    while True:
        time.sleep(1)

def all_stuck(threads):
    for _ in range(threads):
        begun.acquire()

dog = Watchdog(lambda line: print(line, flush=True), lambda: print("workers are killed", flush=True))
dog.start()
threading.Thread(target=stuck, daemon=True).start()
{then}
"""


def ended(then: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)


def test_a_process_that_has_not_ended_in_time_is_ended_and_says_what_every_thread_is_at() -> None:
    armed = "all_stuck(2); dog.arm(60); dog.arm(0.2); dog.arm(60)"
    done = ended(f"threading.Thread(target=lambda: exec({armed!r}), daemon=True).start(); stuck()")
    assert done.returncode == ExitCode.BUG
    assert "has not stopped in time" in done.stdout
    assert "workers are killed" in done.stdout
    assert done.stderr.count("in stuck") == 2, "of both threads"


def test_its_exit_code_is_that_of_what_ends_the_service_once_that_is_known() -> None:
    assert ended("dog.end_with(ExitCode.HANDLER); dog.arm(0); stuck()").returncode == ExitCode.HANDLER
    assert ended("dog.bite('why', ExitCode.NOT_ALL_COMMITTED)").returncode == ExitCode.NOT_ALL_COMMITTED


def test_it_ends_the_process_although_the_workers_cannot_be_killed() -> None:
    program = "dog._kill_workers = lambda: 1 / 0; dog.bite('why')"
    assert ended(program).returncode == ExitCode.BUG


UNREAD = """
import os, pty, socket, sys, termios, tty
from pathlib import Path
from kunicorn.observe import logs
from kunicorn.supervisor.service import _say_last

def filled(fd):
    os.set_blocking(fd, False)
    for length in (4096, 1):
        try:
            while True:
                os.write(fd, b"." * length)
        except BlockingIOError:
            pass
    os.set_blocking(fd, True)

ends = [os.pipe, pty.openpty, lambda: [each.detach() for each in socket.socketpair()]][{kind}]()
if {kind} == 1:
    tty.setraw(ends[1])
filled(ends[1])
os.dup2(ends[1], 1)
os.dup2(ends[1], 2)
logs.configure("info", "text", "supervisor")
dog._last_words = _say_last
dog._kill_workers = Path(sys.argv[1]).touch
"""


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["pipe", "terminal", "socket"])
@pytest.mark.parametrize("then", ["dog.arm(0); stuck()", "dog.bite('SIGTERM once more', ExitCode.NOT_ALL_COMMITTED)"])
def test_it_kills_the_workers_and_ends_a_process_whose_output_nobody_reads(
    tmp_path: Path, kind: int, then: str
) -> None:
    killed = tmp_path / "killed"
    program = PROGRAM.format(then=UNREAD.format(kind=kind) + then)
    done = subprocess.run([sys.executable, "-c", program, killed], check=False, timeout=240)
    assert done.returncode == (ExitCode.BUG if "arm" in then else ExitCode.NOT_ALL_COMMITTED)
    assert killed.exists()


def test_a_reader_that_is_slow_gets_all_stacks_and_a_pipe_that_blocks_as_before() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    deep = "def deep(n):\n    deep(n - 1) if n else dog.bite('why')\n"
    many = "for _ in range(60): threading.Thread(target=stuck, daemon=True).start()\n"
    patient = "from kunicorn.supervisor import stop\nstop._STACKS = 60.0\n"
    program = PROGRAM.format(then=patient + many + "all_stuck(61)\n" + deep + "deep(50)")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=writer) as process:
        said = b""
        while process.poll() is None or select.select([reader], [], [], 0)[0]:
            if select.select([reader], [], [], 0.1)[0]:
                said += os.read(reader, 1024)
        assert os.get_blocking(writer)
    for end in (reader, writer):
        os.close(end)
    assert said.count(b"in stuck") > 60
    assert said.rstrip().endswith(b"in <module>")


def test_it_is_there_where_no_further_thread_is_to_be_had() -> None:
    limit = """
from kunicorn.supervisor.service import threads_begun

def refuse(thread):
    raise RuntimeError("can't start new thread")

dog = Watchdog(lambda line: print(line, flush=True), lambda: print("workers are killed", flush=True))
threads_begun(2, dog)
threading.Thread.start = refuse
dog.arm(0.2)
stuck()
"""
    assert "workers are killed" in ended(limit).stdout


def test_the_time_that_the_machine_is_suspended_is_not_the_stops() -> None:
    suspended = """
from kunicorn.ipc import clock
dog.arm(60)
clock.now = lambda: 1e12
dog.arm(60)
while dog._moved.is_set():
    time.sleep(0.01)
threading.Event().wait(0.5)
print("it goes on", flush=True)
os._exit(0)
"""
    assert ended("import os" + suspended).stdout == "it goes on\n"
