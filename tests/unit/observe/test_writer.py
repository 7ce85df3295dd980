"""An output that nobody reads must hold up nobody: neither a log call, nor the end of the process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kunicorn.observe import logs
from kunicorn.observe.logs import LogWriter
from tests.waiting import wait_until

PIPE_BYTES = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Read and write end of the smallest pipe there is.

    The write end stays open: a writer's thread may still wait to write, and would write into the next test's pipe once
    its number is given out again. With the read end closed it is told so, and ends.
    """
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    yield read_end, write_end
    os.close(read_end)


def lost(count: int) -> str:
    return f"{count} lost"


def read_lines(read_end: int, until: str) -> list[str]:
    """Every line up to and including the one that is waited for."""
    os.set_blocking(read_end, False)
    read = bytearray()

    def arrived() -> bool:
        try:
            read.extend(os.read(read_end, 65536))
        except BlockingIOError:
            return False
        return f"{until}\n".encode() in read

    wait_until(arrived, f"the line {until!r}")
    return read.decode().splitlines()


def read_until_told(read_end: int, writer: LogWriter) -> list[str]:
    """Every line, until all that was lost is told, in one line or in several."""
    os.set_blocking(read_end, False)
    read = bytearray()

    def told() -> bool:
        with suppress(BlockingIOError):
            read.extend(os.read(read_end, 65536))
        lines = read.decode().splitlines() if read.endswith(b"\n") else []
        return sum(int(line.split()[0]) for line in lines if line.endswith(" lost")) == writer.dropped

    wait_until(told, "all that was lost to be told")
    return read.decode().splitlines()


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost)
    for number in range(100):
        writer.put(f"line {number}")
    assert read_lines(pipe[0], "line 99") == [f"line {number}" for number in range(100)]
    assert writer.dropped == 0


def test_an_output_that_nobody_reads_blocks_nobody_and_the_loss_is_told(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost, capacity=50)
    began = time.monotonic()
    for _ in range(2000):
        writer.put("x" * 100)
    assert time.monotonic() - began < 60.0
    assert 1000 < writer.dropped < 2000

    dropped = writer.dropped
    lines = read_until_told(pipe[0], writer)
    assert lines.count("x" * 100) == 2000 - dropped


def test_long_lines_that_nobody_reads_take_no_more_memory_than_short_ones(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost, capacity=50)
    for _ in range(2000):
        writer.put("x" * 10_000)
    taken = 2000 - writer.dropped
    assert 0 < taken * 10_000 < 500_000

    assert read_until_told(pipe[0], writer).count("x" * 10_000) == taken


def test_closing_writes_what_is_queued(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost)
    for _ in range(20):
        writer.put("last words")
    writer.close(timeout=60.0)
    assert os.read(pipe[0], 65536) == b"last words\n" * 20


def test_closing_gives_up_on_an_output_that_nobody_reads(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost)
    for _ in range(100):
        writer.put("x" * 100)
    began = time.monotonic()
    writer.close(timeout=0.2)
    assert time.monotonic() - began < 30.0


def test_lines_after_closing_are_counted_as_dropped(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], lost)
    writer.close(timeout=5.0)
    writer.put("too late")
    assert writer.dropped == 1


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    writer = LogWriter(pipe[1], lost)
    for number in range(1000):
        writer.put(f"{number} " + "x" * 50)
    writer.put("end")
    assert len(read_lines(pipe[0], "end")) == 1001
    assert writer.dropped == 0


def test_a_reader_that_is_gone_ends_nothing() -> None:
    read_end, write_end = os.pipe()
    writer = LogWriter(write_end, lost)
    os.close(read_end)
    writer.put("nobody there")
    wait_until(lambda: writer.dropped == 1, "the line to be counted as dropped")
    writer.put("still nobody there")
    wait_until(lambda: writer.dropped > 1, "the next line to be counted, too")


def test_text_that_is_not_unicode_is_written_escaped(pipe: tuple[int, int]) -> None:
    LogWriter(pipe[1], lost).put("a\udcffb")
    assert read_lines(pipe[0], "a\\udcffb") == ["a\\udcffb"]


def test_the_interpreter_ends_although_nobody_reads_its_logs() -> None:
    program = (
        "from kunicorn.observe import logs\n"
        "logs.configure('info', 'json', 'test')\n"
        "log = logs.get('test')\n"
        "[log.info('x' * 1000) for _ in range(2000)]\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=_environment()) as child:
        assert child.wait(timeout=60) == 0


LINES_EACH = 400
CROWD = f"""
import sys
from kunicorn.observe import logs
logs._PATIENCE = 600.0  # Wholeness is what is tried here.
name, length = sys.argv[1], int(sys.argv[2])
writer = logs.LogWriter(1, str, {LINES_EACH} * 10)
sys.stdin.read()
for number in range({LINES_EACH}):
    writer.put(f"{{name}} {{number}} ".ljust(length, name) + ".")
writer.close(60)
"""


def test_lines_of_several_processes_are_whole_where_their_pipe_is_always_full(pipe: tuple[int, int]) -> None:
    lengths = dict(zip("abcdef", (200, 3_500, 9_000) * 2, strict=True))
    gate, opened = os.pipe()
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", CROWD, name, str(length)], stdin=gate, stdout=pipe[1], env=_environment()
        )
        for name, length in lengths.items()
    ]
    for fd in (pipe[1], gate, opened):
        os.close(fd)
    with open(pipe[0], "rb", buffering=512, closefd=False) as reader:
        found = reader.read().decode().splitlines()
    assert [each.wait() for each in crowd] == [0] * len(crowd)
    expected = [
        f"{name} {number} ".ljust(length, name) + "."
        for name, length in lengths.items()
        for number in range(LINES_EACH)
    ]
    assert sorted(found) == sorted(expected)


def test_a_process_that_is_frozen_amid_a_line_does_not_keep_the_others_from_the_log(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE", 0.05)
    program = (
        "import fcntl, sys\nfcntl.lockf(1, fcntl.LOCK_EX)\nprint('half a', end='', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=pipe[1]) as frozen:
        assert os.read(pipe[0], 100) == b"half a"
        LogWriter(pipe[1], lost).put("another")
        assert read_lines(pipe[0], "another") == ["another"]
        assert frozen.stdin is not None
        frozen.stdin.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
