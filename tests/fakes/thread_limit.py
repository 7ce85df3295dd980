"""A limit of threads, as a container's pids limit is one."""

from __future__ import annotations

import threading

import pytest


class ThreadLimit:
    """From now on so many more threads can be started; the test may raise it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        self.refused = 0
        begin = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if not self.left:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            self.left -= 1
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
