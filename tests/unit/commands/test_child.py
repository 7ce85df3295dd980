"""Children that never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kunicorn.commands.child import python_module, python_path, start_child
from tests.waiting import runs, wait_until


def test_a_child_dies_with_a_parent_that_is_killed() -> None:
    script = """
from kunicorn.commands.child import start_child
import os, signal
print(start_child(["sleep", "600"]).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **python_path()}, stdout=subprocess.PIPE, check=False
    )
    assert parent.returncode == -signal.SIGKILL
    wait_until(lambda: not runs(int(parent.stdout)), "the child's end")


def test_a_child_outlives_the_thread_that_asked_for_it() -> None:
    children = []
    thread = threading.Thread(target=lambda: children.append(start_child(["cat"], pipes=True)))
    thread.start()
    thread.join()
    (child,) = children
    output, _ = child.communicate("still here")
    assert output == "still here"


def test_the_log_is_appended_to(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    for word in ("one", "two"):
        assert start_child(["sh", "-c", f"echo {word}; echo {word} >&2"], log=log).wait(10) == 0
    assert log.read_text() == "one\none\ntwo\ntwo\n"


def test_a_child_imports_what_this_process_can_import() -> None:
    child = start_child(python_module("json.tool"), env=python_path(), pipes=True)
    assert child.communicate("{}")[0].strip() == "{}"


def test_ctrl_c_in_the_terminal_is_not_the_childs() -> None:
    child = start_child(["sh", "-c", "ps -o pgid= -p $$; cat"], pipes=True)
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    child.communicate()
    assert child.returncode != -signal.SIGINT
