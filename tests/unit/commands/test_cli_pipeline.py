"""SIGTERM to `kunicorn pipeline` where no range is underway: real processes, one of them PID 1 as in the image."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.pipeline.range_job import stopping
from tests.unit.settings.files import LEAST
from tests.waiting import wait_until

AS_PID_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
START_SECONDS = 240.0
"""A JVM, on a machine that has other things to do."""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server


def configure(directory: Path, broker: socket.socket) -> None:
    """Settings and a handler in the directory; `broker` is their cluster."""
    own = LEAST.replace("127.0.0.1:9092", f"127.0.0.1:{broker.getsockname()[1]}")
    (directory / "config.toml").write_text(own.replace("shop.handlers:handle_order", "passing:handle"))
    (directory / "passing.py").write_text("def handle(record): ...\n")


def met(server: socket.socket, process: subprocess.Popen[str]) -> None:
    """Wait until the process has connected to the server."""

    def connected() -> bool:
        assert process.poll() is None, process.communicate()[0]
        try:
            server.accept()
        except TimeoutError:
            return False
        return True

    wait_until(connected, "its first connection", START_SECONDS)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(command, arguments…, under=…)`: `kunicorn pipeline` as a process in a session of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*under, sys.executable, "-m", "kunicorn", "pipeline", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None or in_session(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=240)


def in_session(session: int) -> list[str]:
    """Commands of the processes that are left in a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == session and state != "Z":
                found.append((stat.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def child_of(pid: int) -> int:
    """The only one."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int(wait_until(lambda: children.read_text().split(), "its child")[0])


@pytest.mark.parametrize("under", [(), pytest.param(AS_PID_1, marks=as_root)], ids=["below others", "as PID 1"])
def test_a_job_that_is_told_to_end_before_it_has_begun_ends_at_once_with_6(
    tmp_path: Path, silent: socket.socket, start: Start, under: Sequence[str]
) -> None:
    configure(tmp_path, silent)
    process = start("catch-up", "--wait", "600", "--config", "config.toml", under=under)
    met(silent, process)
    os.kill(child_of(process.pid) if under else process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == ExitCode.NOT_ALL_COMMITTED, said
    assert "ended by SIGTERM" in said
    assert "Traceback" not in said


def test_a_command_that_waits_for_its_cluster_ends_with_its_jvm(
    tmp_path: Path, silent: socket.socket, start: Start
) -> None:
    configure(tmp_path, silent)
    (table := tmp_path / "table").mkdir()
    pq.write_table(pa.table({"topic": ["orders"], "partition": [0], "offset": [0]}), table / "part.parquet")
    master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
    process = start("reconcile", str(table), "--config", "config.toml", "--master", master)
    met(silent, process)
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == ExitCode.NOT_ALL_COMMITTED, said
    wait_until(lambda: not in_session(process.pid), "its JVM to be gone")


@pytest.fixture
def sigterm() -> Iterator[Callable[[], object]]:
    """What SIGTERM does now; as it was again afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda: signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_sigterm_does_what_it_did_once_a_command_within_another_program_is_over(
    tmp_path: Path, sigterm: Callable[[], object]
) -> None:
    def of_the_program(number: int, frame: FrameType | None) -> None: ...

    for handler in (signal.SIG_DFL, of_the_program):
        signal.signal(signal.SIGTERM, handler)
        CliRunner().invoke(app, ["pipeline", "compact", str(tmp_path)])
        assert sigterm() is handler


def test_a_command_and_a_job_run_in_another_thread_than_the_main_one(tmp_path: Path) -> None:
    raised: list[object] = []

    def run() -> None:
        with stopping():
            raised.append(type(CliRunner().invoke(app, ["pipeline", "compact", str(tmp_path)]).exception))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert raised == [ConfigError], "there are no files"
