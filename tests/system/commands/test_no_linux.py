"""Commands where there is no Linux: real processes on a platform that is made to lack what macOS lacks
(`tests/fakes/no_linux/sitecustomize.py`), beside a real broker.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import group_settings, merged, toml
from tests.system.producing import produce

ROOT = Path(__file__).parents[3]
HANDLER = """
def handle(record):
    print("handled", record.offset)
"""
OWN_TESTS = """
from kunicorn.testing import HandlerTest, record

def test_a_worker_that_is_killed_repeats_what_it_had_in_hand():
    seen = HandlerTest("shop:handle")
    killed = seen.run(record("a"), record("b"), record("c"), kill_at=1)
    assert killed.outcomes == ["done", "unhandled", "unhandled"]
    assert seen.run(*killed.left).outcomes == ["done", "done"]

def test_a_partition_is_handed_over():
    assert HandlerTest("shop:handle").run(record("a"), record("b"), revoke_at=0).outcomes == ["done", "unhandled"]

def test_a_call_that_takes_too_long_is_interrupted():
    slow = HandlerTest("shop:sleep", handler_timeout_ms=50, max_attempts=1, on_failure="skip")
    assert slow.run(record("a")).outcomes == ["skipped"]
"""


@pytest.fixture
def desk(tmp_path: Path, kafka: KafkaCluster, topic: str) -> Path:
    """A directory with a handler, settings, and records of 2 partitions to be handled."""
    kafka.create_topic(topic, 2)
    kafka.create_topic(f"{topic}.dlq", 1)
    produce(kafka.bootstrap, topic, 20, value=b"x")
    (tmp_path / "shop.py").write_text(f"import time\n\ndef sleep(record):\n    time.sleep(5)\n{HANDLER}")
    own = group_settings(kafka.bootstrap, [topic], topic, "shop:handle")
    settings = merged(own, {"dead_letters": {"topic": f"{topic}.dlq"}}, {"http": {"port": 0}})
    (tmp_path / "config.toml").write_text(toml(settings))
    return tmp_path


def there(desk: Path, *arguments: str, code: int = 0) -> str:
    """What Python says with these arguments where there is no Linux, on both streams."""
    importable = [str(ROOT / "tests/fakes/no_linux"), str(ROOT / "service"), str(desk)]
    told = subprocess.run(
        [sys.executable, *arguments],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(importable)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == code, told.stdout + told.stderr
    return told.stdout + told.stderr


def test_the_platform_is_one_that_lacks_what_the_service_needs(desk: Path) -> None:
    lacks = (
        "import os, sys, time, select, signal, socket, ctypes\n"
        "assert sys.platform == 'darwin'\n"
        "for module, name in ((os, 'memfd_create'), (os, 'pidfd_open'), (os, 'sched_setaffinity'),\n"
        "                     (ctypes.CDLL(None), 'prctl'), (time, 'CLOCK_BOOTTIME'), (select, 'epoll')):\n"
        "    assert not hasattr(module, name), name\n"
        "for what in (lambda: open('/proc/self/statm'), lambda: os.listdir('/proc/self/fd'),\n"
        "             lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)):\n"
        "    try:\n        what()\n    except OSError:\n        continue\n    raise AssertionError(what)\n"
    )
    there(desk, "-c", lacks)


def test_the_service_says_in_one_sentence_that_it_needs_linux(desk: Path) -> None:
    said = there(desk, "-m", "kunicorn", "run", code=2)
    assert said.startswith("kunicorn: the service needs Linux, and this is darwin: run it in a container;")
    assert said.count("\n") == 1


def test_a_check_lets_the_handler_handle_the_latest_records_and_warns_that_the_service_needs_linux(desk: Path) -> None:
    said = there(desk, "-m", "kunicorn", "check", "--try", "5")
    assert "5 records handled" in said
    assert "the service needs Linux" in said


def test_lag_offsets_and_dead_letters_are_told_and_moved(desk: Path) -> None:
    assert "2 offsets are committed" in there(desk, "-m", "kunicorn", "offsets", "reset", "--to-earliest", "--execute")
    assert re.search(r" 2 +20 ", there(desk, "-m", "kunicorn", "lag"))
    assert len(there(desk, "-m", "kunicorn", "offsets", "show", "--csv").splitlines()) == 2
    there(desk, "-m", "kunicorn", "dlq", "list")


def test_one_record_is_replayed(desk: Path, topic: str) -> None:
    said = there(desk, "-m", "kunicorn", "replay-one", topic, "0", "0")
    assert "handled 0" in said
    assert "outcome   done" in said


def test_handlers_are_tested_with_kills_rebalances_and_time_outs(desk: Path) -> None:
    (desk / "test_shop.py").write_text(OWN_TESTS)
    assert "3 passed" in there(desk, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(desk / "test_shop.py"))


def test_the_demo_has_one_worker_which_is_killed_and_every_record_is_accounted_for(desk: Path) -> None:
    said = there(desk, "-m", "kunicorn", "demo", "--seconds", "5")
    assert "this is not Linux: one worker" in said
    assert "SIGKILL to the worker" in said
    assert "every promise kept" in said
