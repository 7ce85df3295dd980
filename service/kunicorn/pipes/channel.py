"""The supervisor's end of a worker's pipe, on the event loop. Sending never waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from kunicorn.pipes.framing import FrameError, FrameSplitter, pack
from kunicorn.pipes.messages import FromWorker, ToWorker


class Channel(asyncio.Protocol):
    """Messages to and from one worker. Its end says nothing about the worker's: only the pidfd does."""

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
        """Queue one message; into a closed channel it vanishes, as the worker's death is told by its pidfd."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def close(self) -> None:
        """The worker reads EOF and exits."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Caller: the loop."""
        # uvloop's transports are not asyncio's classes, only shaped like them.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Caller: the loop."""
        try:
            messages = self._splitter.feed(data)
        except FrameError as error:
            self.close()
            self._on_nonsense(str(error))
            return
        for message in messages:
            self._on_message(message)
