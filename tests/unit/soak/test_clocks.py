"""A clock that is stepped moves what goes by the wall, in readings and in waits, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import clocks

pytestmark = pytest.mark.skipif(bool(clocks.unavailable()), reason=clocks.unavailable())

PROGRAM = """
import ctypes, os, sys, threading, time

class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

libc = ctypes.CDLL(None)
condition, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)

def wait(seconds, until):
    "What a wait until that wall time says that many times: 0, or 110 for ETIMEDOUT."
    return libc.pthread_cond_timedwait(condition, mutex, ctypes.byref(Timespec(int(until), int(until % 1 * 1e9))))

for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "read":
        clocks = (time.time(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME), float(libc.time(None)))
        print(*clocks, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    elif word == "wait":
        print(wait(1, float(number)), flush=True)
    elif word == "lock":
        began = time.monotonic()
        threading.Event().wait(0.2)
        print(time.monotonic() - began, flush=True)
"""


class Stepped:
    """A program that goes by a clock of the test."""

    def __init__(self, directory: Path) -> None:
        environment = {**os.environ, **clocks.environment(directory), "KUNICORN_AUDIT_MEMBER": "a"}
        self.clock = directory / "a"
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, words: str) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()
        return [float(each) for each in self._process.stdout.readline().split()]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Stepped]:
    program = Stepped(tmp_path / "clocks")
    assert program.ask("read"), "it runs, so that its clock is there"
    yield program
    program.close()


HOUR = 3600


def test_every_reading_of_the_wall_clock_is_ahead_and_none_of_the_others(stepped: Stepped) -> None:
    before = stepped.ask("read")
    assert clocks.reads(stepped.clock) == 0
    clocks.step(stepped.clock, HOUR)
    ahead = stepped.ask("read")
    assert [round((b - a) / HOUR) for a, b in zip(before, ahead, strict=True)] == [1, 1, 1, 1, 0, 0]
    assert clocks.reads(stepped.clock) >= 4
    clocks.step(stepped.clock, 0)
    back = stepped.ask("read")
    assert [round((b - a) / HOUR) for a, b in zip(before, back, strict=True)] == [0] * 6


def test_a_wait_until_a_wall_time_ends_when_that_clock_is_there(stepped: Stepped) -> None:
    """With the kernel's own clock it would end an hour late, or at once."""
    timed_out, spurious = 110, 0
    clocks.step(stepped.clock, HOUR)
    now = stepped.ask("read")[0]
    assert stepped.ask(f"wait {now - 1}") == [timed_out]
    assert stepped.ask(f"wait {now + HOUR / 2}") == [spurious], "not yet"
    clocks.step(stepped.clock, 2 * HOUR)
    assert stepped.ask(f"wait {now + HOUR / 2}") == [timed_out], "it has stepped past it"
    clocks.step(stepped.clock, -HOUR)
    assert stepped.ask(f"wait {now - 1}") == [spurious], "it has stepped back before it"


def test_python_waits_by_another_clock(stepped: Stepped) -> None:
    clocks.step(stepped.clock, -HOUR)
    (lasted,) = stepped.ask("lock")
    assert 0.2 <= lasted < HOUR / 2
