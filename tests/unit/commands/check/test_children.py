"""The processes in which `kunicorn check` runs what is the user's: how long they may take, and what they may answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunicorn.commands.check import trial
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.session import _findings_here
from kunicorn.errors import ExitCode
from kunicorn.ipc import clock
from kunicorn.settings import Settings
from tests.fakes.handler_module import importable

WAITING = "from threading import Event\n"
SLOW_IMPORT = f"{WAITING}Event().wait()\ndef handle(record): ...\n"
SLOW_SETUP = f"{WAITING}def setup(options): Event().wait()\ndef handle(record): ...\nhandle.setup = setup\n"


def settings(**workers: Any) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": ["127.0.0.1:9"]},
            "group": {"id": "g", "topics": ["orders"]},
            "handler": {"entrypoint": "slow_shop:handle"},
            "workers": workers,
        }
    )


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
    finding = look(settings(start_timeout_ms=4000))
    assert finding.failure is ExitCode.HANDLER
    assert "took more than 4 s (workers.start_timeout_ms)" in finding.text


def test_an_answer_that_no_pipe_holds_is_read_while_it_is_written() -> None:
    ended = trial.run(["-c", "import os, sys; os.write(int(sys.argv[2]), b'x' * 1_000_000)"], [], b"", 30.0)
    assert (ended.code, len(ended.said)) == (0, 1_000_000)


def test_what_a_child_leaves_behind_with_the_answers_pipe_holds_nobody_up() -> None:
    program = """
import os, sys
os.write(int(sys.argv[2]), b"done")
if not os.fork():
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import select; select.select([], [], [], 120)"])
"""
    began = clock.now()
    assert trial.run(["-c", program], [], b"", 30.0) == trial.Ended(0, "done")
    assert clock.now() - began < 60
