"""A process that does not end is ended, whatever its threads are at."""

from __future__ import annotations

import subprocess
import sys

from kunicorn.errors import ExitCode

PROGRAM = """
import sys, threading, time
from kunicorn.errors import ExitCode
from kunicorn.supervisor.stop import Watchdog

def stuck():
    while True:
        time.sleep(1)

dog = Watchdog(lambda line: print(line, flush=True), lambda: print("workers are killed", flush=True))
threading.Thread(target=stuck).start()
{then}
"""


def ended(then: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)


def test_a_process_that_has_not_ended_in_time_is_ended_and_says_what_every_thread_is_at() -> None:
    done = ended("dog.arm(60); dog.arm(0.2); dog.arm(60); stuck()")
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
