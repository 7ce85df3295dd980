"""Threads of the supervisor where the container has no more of them to give."""

from __future__ import annotations

import asyncio
import threading
from unittest import mock

import pytest

from kunicorn.errors import ServiceError, WorkersDyingError
from kunicorn.settings import GroupSettings
from kunicorn.supervisor.membership.source import AssignmentSource, StopMessages
from kunicorn.supervisor.service import threads_begun
from kunicorn.supervisor.stop import Stopping, Watchdog
from kunicorn.supervisor.tasks import ServiceTasks


def say_nothing(line: str) -> None: ...


def kill_nobody() -> None: ...


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_what_needs_a_thread_has_one_also_when_no_more_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(threads_begun(2, mock.Mock(spec=Watchdog)))
    together = threading.Barrier(2)
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refuse)
        assert sorted(await asyncio.gather(*(asyncio.to_thread(together.wait, 60) for _ in range(4)))) == [0, 0, 1, 1]


def test_a_start_for_which_there_are_too_few_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[threading.Thread] = []

    def one(thread: threading.Thread) -> None:
        """The watchdog's, which would never end, is only said to be begun."""
        if begun:
            refuse(thread)
        begun.append(thread)

    monkeypatch.setattr(threading.Thread, "start", one)
    with pytest.raises(ServiceError, match=r"own 4 threads cannot be started: .*; see that limits of processes"):
        threads_begun(3, Watchdog(say_nothing, kill_nobody))


async def test_an_error_that_ends_the_service_there_drains_and_commits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    left = asyncio.Event()

    async def serving() -> None:
        await left.wait()
        done.append("drained and committed")

    async def dying() -> None:
        raise WorkersDyingError("worker 3 died 10 times in a row")

    source = mock.Mock(
        spec=AssignmentSource, over=False, stop_messages=StopMessages("leaving", "clean", "unclean", "overdue")
    )
    source.leave.side_effect = lambda _: left.set()
    tasks = ServiceTasks()
    stopping = Stopping(
        source, GroupSettings(id="g", topics=("orders",)), tasks.end, Watchdog(say_nothing, kill_nobody)
    )
    stopping.begin_serving()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    tasks.start(dying())
    with pytest.raises(WorkersDyingError):
        await tasks.until_over(serving(), lambda error: stopping.wind_up(error, in_hand=True))
    assert done == ["drained and committed"]
    stopping.shut_down()
