"""The pipe between supervisor and worker, a socket pair: `Channel` is the supervisor's end, on its event loop, where
sending never waits; `BlockingChannel` is the worker's, of which one thread reads and any thread sends.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import cast

from kunicorn.errors import PeerError
from kunicorn.ipc.messages import FrameError, FrameSplitter, FromWorker, ToWorker, pack


class Channel(asyncio.Protocol):
    """Messages to and from one worker. Its end is no proof of the worker's death: only the pidfd is."""

    def __init__(self, on_message: Callable[[FromWorker], None], on_nonsense: Callable[[str], None]) -> None:
        self._on_message = on_message
        self._on_nonsense = on_nonsense
        self._splitter = FrameSplitter(FromWorker)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, sock: socket.socket, on_message: Callable[[FromWorker], None], on_nonsense: Callable[[str], None]
    ) -> Channel:
        """Take over `sock`, one end of a socket pair. The callbacks run on the loop; `on_nonsense` at most once."""
        channel = cls(on_message, on_nonsense)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
        return channel

    def send(self, message: ToWorker) -> None:
        """Queue one message. Dropped if the channel is closed: the worker's death is told by its pidfd."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def close(self) -> None:
        """Close the pipe: the worker reads EOF and exits."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's classes, only shaped like them.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._splitter.feed(data)
        except FrameError as error:
            self.close()
            self._on_nonsense(str(error))
            return
        for message in messages:
            self._on_message(message)


_CHUNK = 1 << 18


class SupervisorGone(PeerError):
    """The pipe is closed, at the other end or at this one: nobody commits what this worker handles from here on."""


class BlockingChannel:
    """Messages from and to the supervisor, in a worker."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._splitter = FrameSplitter(ToWorker)
        self._received: deque[ToWorker] = deque()
        self._sending = threading.Lock()
        self._inode = os.fstat(fd).st_ino
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        """Next message; None after `timeout` seconds without one.

        Caller: one thread at a time. Raises `SupervisorGone` at the pipe's end and `FrameError` for nonsense.
        """
        while not self._received:
            if not self._poll.poll(None if timeout is None else max(0.0, timeout * 1000)):
                self._check_descriptor()
                return None
            self._received.extend(self._splitter.feed(self._read()))
        return self._received.popleft()

    def _check_descriptor(self) -> None:
        # A handler that closes all descriptors closes this one, and the next socket of the client's gets its number:
        # whoever polls that one hears nothing for ever.
        try:
            same = os.fstat(self._socket.fileno()).st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise SupervisorGone("the pipe to the supervisor was closed by other code in this process")

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise SupervisorGone(f"reading from the supervisor: {error}") from error
        if not data:
            raise SupervisorGone("the supervisor has closed its end of the pipe")
        return data

    def send(self, message: FromWorker) -> None:
        """Send one whole message. Blocks while the pipe is full. Raises `SupervisorGone`."""
        frame = pack(message)
        with self._sending:
            try:
                self._socket.sendall(frame)
            except OSError as error:
                raise SupervisorGone(f"writing to the supervisor: {error}") from error
