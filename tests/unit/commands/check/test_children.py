"""The processes in which `kunicorn check` runs what is the user's: how long they may take, and what they may answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.commands.check import trial
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.session import _findings_here
from kunicorn.errors import ExitCode
from kunicorn.settings import Settings, workers
from tests.fakes.complete_settings import settings_of
from tests.fakes.handler_module import importable
from tests.waiting import runs, wait_until

WAITING = "from threading import Event\n"
SLOW_IMPORT = f"{WAITING}Event().wait()\ndef handle(record): ...\n"
SLOW_SETUP = f"{WAITING}def setup(options): Event().wait()\ndef handle(record): ...\nhandle.setup = setup\n"


NAMED_SETUP = """
class handle:
    def setup(self, worker, options): assert worker.client_id.startswith("kunicorn"), worker
    def handle(self, record): ...
"""
FAILING_SETUP = """
class handle:
    def setup(self, options): raise ConnectionError("the database is away")
    def handle(self, record): ...
"""
KEEPS_OFFSETS = """
class handle:
    def __init__(self): {kept}
    def setup(self, options): open("setup-was-called", "w").close()
    def store_offsets(self, offsets): ...
    def handle(self, record): ...
    {method}
"""


def settings(**of_workers: Any) -> Settings:
    return settings_of(handler={"entrypoint": "slow_shop:handle"}, workers=of_workers)


@pytest.mark.parametrize(
    ("module", "look"),
    [
        (SLOW_IMPORT, lambda own: next(each for each in _findings_here(own) if each.what == "handler")),
        (SLOW_SETUP, trial.set_up),
    ],
    ids=["import", "setup"],
)
def test_a_handler_has_as_long_to_start_as_a_worker_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, look: Callable[[Settings], Finding]
) -> None:
    importable(tmp_path, monkeypatch, "slow_shop", module)
    finding = look(settings(start_timeout_ms=1000))
    assert finding.failure is ExitCode.HANDLER
    assert "took more than 1 s (workers.start_timeout_ms)" in finding.text


@pytest.mark.parametrize(
    ("kept", "method"),
    [("...", "def load_offsets(self, partitions): ..."), ("self.load_offsets = lambda partitions: {}", "")],
    ids=["method", "attribute"],
)
def test_a_handler_that_keeps_its_offsets_is_not_tried_as_it_would_move_them_past_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    importable(tmp_path, monkeypatch, "slow_shop", KEEPS_OFFSETS.format(kept=kept, method=method))
    own = settings()
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": "127.0.0.1:9", "group.id": "g"}
    order = trial.Order("g", handler_configs(own), client, None, [("orders", 0, 4, 5)], 1)
    monkeypatch.setattr(trial, "_order", lambda settings, records: order)
    finding = trial.tried(own, 1)
    assert finding.failure is ExitCode.CONFIGURATION
    assert "slow_shop:handle keeps its offsets itself (load_offsets)" in finding.text
    assert "kunicorn.testing.HandlerTest" in finding.text
    assert not (tmp_path / "setup-was-called").exists()
    assert trial.set_up(own).failure is None, "it is only not tried"


def test_setup_is_told_the_clients_name_as_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "slow_shop", NAMED_SETUP)
    assert trial.set_up(settings()) == Finding("setup", "setup and teardown return")


def test_setup_is_called_also_where_the_topics_have_no_record_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "slow_shop", FAILING_SETUP)
    own = settings()
    monkeypatch.setattr(
        trial, "_order", lambda settings, records: trial.Order("g", handler_configs(own), {}, None, [], 1)
    )
    finding = trial.tried(own, 1)
    assert finding.failure is ExitCode.HANDLER
    assert "the database is away" in finding.text


def test_a_trial_that_takes_too_long_says_how_long_it_had_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "slow_shop", SLOW_SETUP)
    own = settings(start_timeout_ms=1000)
    order = trial.Order("g", handler_configs(own), {}, None, [("orders", 0, 0, 5)], 5)
    monkeypatch.setattr(trial, "_order", lambda settings, records: order)
    monkeypatch.setattr(trial, "_TRIAL_TIMEOUT", 0.0)
    finding = trial.tried(own, 5)
    assert finding.failure is ExitCode.HANDLER
    assert finding.text == "trying the handler on 5 records ended early: it took more than 1 s; try fewer records"


def test_workers_that_do_not_fit_in_the_containers_memory_are_warned_of_as_by_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "slow_shop", "def handle(record): ...\n")
    monkeypatch.setattr(workers, "memory_limit", lambda proc, cgroups: 512 * 1024 * 1024)
    (told,) = (each for each in _findings_here(settings(count=4)) if each.what == "memory")
    assert told.warning
    assert (
        "4 workers of memory_per_worker_mb = 256 may take 1024 MB, but this container's memory limit is 512"
        in told.text
    )


def test_what_takes_too_long_is_killed_with_its_children() -> None:
    program = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
os.write(int(sys.argv[2]), f"{os.getpid()} {child.pid}".encode())
child.wait()
"""
    seconds = 0.5
    while not (ended := trial.run(program, "text", b"", seconds)).said:
        seconds *= 2  # A busy machine takes longer to get so far.
    assert ended.code is None
    pids = [int(pid) for pid in ended.said.split()]
    wait_until(lambda: not any(map(runs, pids)), "both to be gone")


def test_a_check_that_is_killed_leaves_no_handler_at_work(tmp_path: Path) -> None:
    """As by a deploying job's time limit: what the handler does is real, and would go on for as long as it likes."""
    told = tmp_path / "pid"
    handling = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(600)"
    program = f"from kunicorn.commands.check import trial; trial.run({handling!r}, 'text', b'', 600.0)"
    check = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        wait_until(lambda: told.exists() and bool(told.read_text()), "the handler's call")
    finally:
        check.terminate()
        check.wait(60)
    pid = int(told.read_text())
    try:
        wait_until(lambda: not runs(pid), "its end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_an_answer_that_no_pipe_holds_is_read_while_it_is_written() -> None:
    ended = trial.run("import os, sys; os.write(int(sys.argv[2]), b'x' * 1_000_000)", "text", b"", 120.0)
    assert (ended.code, len(ended.said)) == (0, 1_000_000)


def test_what_a_child_leaves_behind_with_the_answers_pipe_holds_nobody_up() -> None:
    program = """
import os, sys
child = os.fork()
if not child:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import select; select.select([], [], [], 600)"])
os.write(int(sys.argv[2]), str(child).encode())
"""
    ended = trial.run(program, "text", b"", 120.0)
    left = int(ended.said)
    try:
        assert ended.code == 0
        assert runs(left), "it was not waited for"
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_child_whose_output_nobody_reads_any_more_is_not_held_up_by_it() -> None:
    """`kunicorn check --try 1000 2>&1 | head`: a handler that prints would be told to take too long."""

    def gone(_: str) -> None:
        raise BrokenPipeError

    assert trial.run("for _ in range(30_000): print('a record is handled')", "text", b"", 60.0, gone).code == 0
