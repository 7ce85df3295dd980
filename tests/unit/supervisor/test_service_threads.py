"""Threads of the supervisor where the container has no more of them to give."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kunicorn.errors import ServiceError
from kunicorn.supervisor.service import threads_begun


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_what_needs_a_thread_has_one_also_when_no_more_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.get_running_loop().set_default_executor(threads_begun(2))
    together = threading.Barrier(2)
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refuse)
        assert sorted(await asyncio.gather(*(asyncio.to_thread(together.wait, 60) for _ in range(4)))) == [0, 0, 1, 1]


def test_a_start_for_which_there_are_too_few_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()

    def one(thread: threading.Thread) -> None:
        if begun:
            refuse(thread)
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one)
    with pytest.raises(ServiceError, match=r"own 4 threads cannot be started: .*; see that limits of processes"):
        threads_begun(4)
