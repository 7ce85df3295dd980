"""A server that answers each byte 5 ms later, in a process of its own, and handlers that ask it: as they would wait for
a database, without one.

    python -m bench.answering PATH

`asyncio.sleep(0.005)` measures itself: timers of uvloop have a resolution of 1 ms, so that it takes 5.4 ms. Here time
is taken elsewhere, by `select`, whose time-outs are in microseconds.
"""

from __future__ import annotations

import asyncio
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.quick_handlers import WAIT_SECONDS
from kunicorn import Record

ROOT = Path(__file__).parents[1]
_BACKLOG = 512


@contextmanager
def answering(path: str) -> Iterator[None]:
    """The server, at the Unix socket `path`, for as long as the block lasts."""
    server = subprocess.Popen([sys.executable, "-m", "bench.answering", path], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        yield
    finally:
        server.kill()
        server.communicate()


def serve(path: str) -> None:
    """Answer for ever."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(_BACKLOG)
    print("ready", flush=True)
    everyone: list[socket.socket] = [listener]
    due: deque[tuple[float, socket.socket]] = deque()
    while True:
        patience = max(0.0, due[0][0] - time.monotonic()) if due else None
        readable, _, _ = select.select(everyone, [], [], patience)
        now = time.monotonic()
        for each in readable:
            if each is listener:
                everyone.append(listener.accept()[0])
            elif asked := each.recv(64):
                due.extend([(now + WAIT_SECONDS, each)] * len(asked))
            else:
                everyone.remove(each)
        while due and due[0][0] <= now:
            due.popleft()[1].send(b".")


class Ask:
    """A plain handler; each thread has a connection of its own."""

    def setup(self, options: dict[str, str]) -> None:
        """`path`: where the server is."""
        self.path = options["path"]
        self.own = threading.local()

    def __call__(self, record: Record | None = None) -> None:
        if (connection := getattr(self.own, "connection", None)) is None:
            connection = self.own.connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.path)
        connection.send(b".")
        connection.recv(1)


class _Answers(asyncio.Protocol):
    """One connection, with one question at a time."""

    answer: asyncio.Future[None]

    def data_received(self, data: bytes) -> None:
        """The answer is there."""
        self.answer.set_result(None)


class AskAsync:
    """An async handler; connections come from a pool."""

    def setup(self, options: dict[str, str]) -> None:
        """`path`: where the server is."""
        self.path = options["path"]
        self.idle: list[tuple[asyncio.WriteTransport, _Answers]] = []

    async def __call__(self, record: Record | None = None) -> None:
        loop = asyncio.get_running_loop()
        connection = self.idle.pop() if self.idle else await loop.create_unix_connection(_Answers, self.path)
        transport, answers = connection
        answers.answer = loop.create_future()
        transport.write(b".")
        await answers.answer
        self.idle.append(connection)


ask = Ask()
ask_async = AskAsync()

if __name__ == "__main__":
    serve(sys.argv[1])
