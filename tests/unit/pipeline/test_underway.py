"""A job is watched while Spark works on it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from kunicorn.pipeline.report import Bar, Tasks, watched
from kunicorn.pipeline.state import RunState
from kunicorn.positions import OffsetRange


def test_tasks_are_shown_while_they_run_and_none_behind_it() -> None:
    seen, twice = list[Tasks](), threading.Event()

    def show(tasks: Tasks) -> None:
        seen.append(tasks)
        if len(seen) == 2:
            twice.set()

    with watched(lambda: Tasks(8, done=3), show, every=0.001):
        assert twice.wait(60)
    assert set(seen[:-1]) == {Tasks(8, done=3)}
    assert seen[-1] == Tasks()


def test_a_spark_that_does_not_answer_any_more_ends_the_watch_and_not_the_job() -> None:
    asked = threading.Event()

    def ask() -> Tasks:
        asked.set()
        raise ConnectionError

    seen: list[Tasks] = []
    with watched(ask, seen.append, every=0.001):
        assert asked.wait(60)
    assert seen == [Tasks()]


def test_a_long_range_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.pipeline.report._SELDOM", 0.0)
    said: list[str] = []
    bar = Bar(RunState([OffsetRange("orders", 0, 0, 9)]), said.append)
    bar.underway(Tasks())
    bar.underway(Tasks(8, done=3, failed=1, offsets=4))
    assert said == ["underway: 4 offsets, 3 of 8 tasks done, 1 failed tries"]


def test_what_is_counted_without_an_offset_says_nothing_of_the_time_that_is_left() -> None:
    said: list[str] = []
    before = RunState([OffsetRange("orders", 0, 0, 9)])
    bar = Bar(before, said.append)
    bar.moved(replace(before, last_seconds=0.5))
    bar.moved(replace(before, last_offsets=3, last_seconds=0.5))
    assert said == ["0 offsets in 0.5 s (0/s), 9 left", "3 offsets in 0.5 s (6/s), 9 left, about 1.5 s"]
