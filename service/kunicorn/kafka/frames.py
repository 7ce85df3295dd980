"""Frames of one connection as they arrive: an `asyncio` protocol that has the transport read each into place.

A stream would collect what arrives in a buffer of its own and copy every frame out of it. Answers to Fetch have
megabytes, so each is received into one buffer that the next one reuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kunicorn.kafka import codec
from kunicorn.kafka.errors import ProtocolError

_KEPT_BYTES = 64 * 1024
"""A larger buffer is kept for the next frame only where frames are read in place."""


class Frames(asyncio.BufferedProtocol):
    """Receiver of one connection's frames, and its writer's flow control. Belongs to the loop that it was made in."""

    def __init__(
        self, deliver: Callable[[memoryview], bool], end: Callable[[ProtocolError | Exception | None], None]
    ) -> None:
        """`deliver` gets each frame, without its length, in memory that the next frame overwrites; it says whether
        somebody still reads there. It raises `ProtocolError` for a frame that is none of ours. `end` is told once that
        nothing comes any more, and why: what is no frame, the transport's error, or None where the broker hung up.
        """
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the transport is."""
        self.heard_at = loop.time()
        """When bytes have arrived last, by the loop's clock."""
        self.most_bytes = codec.MAX_FRAME_BYTES
        """A longer frame is none."""
        self._now = loop.time
        self.transport: asyncio.Transport
        self._deliver, self._end = deliver, end
        self._prefix = bytearray(codec.LENGTH_BYTES)
        self._frame = bytearray()
        self._length = 0
        """Of the frame that is arriving; 0: its length is still to come."""
        self._at = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False

    async def drain(self) -> None:
        """Wait until the transport takes more. Raises `ConnectionResetError` where it never will."""
        await self._writable.wait()
        if self._ended:
            raise ConnectionResetError("the connection is closed")

    # -- the transport's calls -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._length:
            return memoryview(self._frame)[self._at : self._length]
        return memoryview(self._prefix)[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        self._at += nbytes
        self.heard_at = self._now()
        try:
            if self._length:
                if self._at == self._length:
                    self._complete()
            elif self._at == codec.LENGTH_BYTES:
                self._begin(codec.frame_length(bytes(self._prefix), self.most_bytes))
        except ProtocolError as error:
            self._finish(error)

    def eof_received(self) -> bool:
        self._finish(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(exc)
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- frames --------------------------------------------------------------------------------------------------------

    def _begin(self, length: int) -> None:
        if len(self._frame) < length:
            self._frame = bytearray(length)
        self._length, self._at = length, 0

    def _complete(self) -> None:
        length, self._length, self._at = self._length, 0, 0
        is_read = self._deliver(memoryview(self._frame)[:length])
        if not is_read and len(self._frame) > _KEPT_BYTES:
            self._frame = bytearray()

    def _finish(self, why: ProtocolError | Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._end(why)
