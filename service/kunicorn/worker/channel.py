"""The worker's end of its pipe to the supervisor. Blocking; one thread reads, any thread sends."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque

from kunicorn.errors import PeerError
from kunicorn.pipes.framing import FrameSplitter, pack
from kunicorn.pipes.messages import FromWorker, ToWorker

_CHUNK = 1 << 18


class SupervisorGone(PeerError):
    """The pipe is no more, at its other end or here: nobody commits what this worker would handle from here on."""


class Channel:
    """Messages from and to the supervisor."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._splitter = FrameSplitter(ToWorker)
        self._received: deque[ToWorker] = deque()
        self._sending = threading.Lock()
        self._inode = os.fstat(fd).st_ino
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        """The next message; None after `timeout` seconds without one.

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
        """Send one message whole. Blocks while the pipe is full. Raises `SupervisorGone`."""
        frame = pack(message)
        with self._sending:
            try:
                self._socket.sendall(frame)
            except OSError as error:
                raise SupervisorGone(f"writing to the supervisor: {error}") from error
