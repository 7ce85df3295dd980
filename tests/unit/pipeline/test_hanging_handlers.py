"""A handler that no time-out can interrupt; real processes end here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kunicorn.errors import ExitCode
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.in_hand_file import take_up
from kunicorn.pipeline.tasks.in_hand_notes import Hand
from kunicorn.positions import OffsetRange
from tests.unit.pipeline.task_settings import task_settings

WHOLE = OffsetRange("orders", 0, 0, 5)
JOB = """
import logging, signal, sys, threading, time
if sys.argv[3] == "in a system call":
    # Before anything is imported that has threads: in all of them, so that an alarm waits until the end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
from pathlib import Path
from confluent_kafka import Message
from pyspark import TaskContext
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import watchdog
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import OffsetRange
from kunicorn.settings import load

def hang(record):
    if record.offset != 2:
        return
    if how == "in a system call":
        time.sleep(hangs)
        return
    end = time.monotonic() + hangs
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            pass

class Reader:
    def read(self, *ranges, aside):
        yield [Message(topic="orders", partition=0, offset=each, value=b"v") for each in range(5)]

if __name__ == "__main__":
    logging.basicConfig()
    config, outcomes, how, spark = sys.argv[1:5]
    hangs, watchdog.LEAST_SECONDS = map(float, sys.argv[5:])
    sys.modules["hanging"] = sys.modules["__main__"]
    if spark == "spark":
        TaskContext()._attemptNumber = 0
    SettingsFile.records = lambda *_: Reader()
    file = settings_file(Path(config), load(Path(config), {}))
    print(*HandleRanges(file, Directory(outcomes))([OffsetRange("orders", 0, 0, 5)]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
"""
LINES = "handler_timeout_ms = 100", "max_attempts = 1", 'on_failure = "skip"'


def job(
    place: Path, how: str, concurrency: int, *, hangs: float = 600, least: float = 2.0, spark: str = "spark"
) -> subprocess.CompletedProcess[str]:
    config = place / "config.toml"
    config.write_text(task_settings("hanging:hang", f"concurrency = {concurrency}", *LINES))
    command = [sys.executable, "-c", JOB, str(config), str(place / "outcomes"), how, spark, str(hangs), str(least)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("how", ["in a system call", "swallows what is raised"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_call_that_no_interruption_ends_ends_its_process_and_the_next_try_knows_the_record(
    tmp_path: Path, how: str, concurrency: int
) -> None:
    ended = job(tmp_path, how, concurrency)
    assert ended.returncode == ExitCode.BUG, ended.stderr
    assert "orders-0@2 is in hand for longer than handler_timeout_ms = 100" in ended.stderr
    assert "in hang" in ended.stderr
    hand = take_up(WHOLE, Directory(str(tmp_path / "outcomes")), attempt=1)
    assert hand.died_with == [Hand(2, 3)]
    hand.over()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_process_that_spark_did_not_start_goes_on_and_says_so(tmp_path: Path, concurrency: int) -> None:
    ended = job(tmp_path, "in a system call", concurrency, hangs=5, spark="none")
    assert ended.returncode == 0, f"an alarm that had waited ends it: {ended.stderr}"
    assert "orders-0@2 is in hand" in ended.stderr
    assert "goes on, as Spark did not start it" in ended.stderr
    assert "records=" in ended.stdout


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_call_that_an_interruption_ends_leaves_its_process_alone(tmp_path: Path, concurrency: int) -> None:
    ended = job(tmp_path, "swallows what is raised", concurrency, hangs=0.5, least=120)
    assert ended.returncode == 0, ended.stderr
    assert "is in hand for longer" not in ended.stderr
