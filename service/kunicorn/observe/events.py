"""The status as a stream for the page: server-sent events (WHATWG HTML, 9.2), one snapshot for all who listen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus

import orjson
from aiohttp import web

from kunicorn.observe.status import Status

INTERVAL = 1.0
"""Seconds between two events."""
_PARTITIONS_A_SECOND = 1000
"""With more partitions events come less often: a snapshot looks at each of them, on the event loop."""
MOST_LISTENERS = 32
_STALLED_SECONDS = 20.0
"""A listener that reads nothing for so long is let go."""
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events:
    """Renders while somebody listens, and for nobody else. Caller: the HTTP server, on the loop."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._listeners = 0
        self._latest = b""
        self._changed = asyncio.Event()
        self._rendering: asyncio.Task[None] | None = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Stream until the client goes, or reads nothing."""
        if self._listeners >= MOST_LISTENERS:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{MOST_LISTENERS} pages listen already\n")
        stream = web.StreamResponse(headers=_HEADERS)
        await stream.prepare(request)
        if request.method == "HEAD":
            return stream
        self._listeners += 1
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.ensure_future(self._render())
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._send(stream)
        finally:
            self._listeners -= 1
        return stream

    def stop(self) -> None:
        """Nothing is rendered any more; the server closes the connections."""
        if self._rendering is not None:
            self._rendering.cancel()

    async def _send(self, stream: web.StreamResponse) -> None:
        """Every event that it has time for: what it was too slow to read is left out, not kept for it."""
        seen = None
        while True:
            if self._latest and self._latest is not seen:
                seen = self._latest
                async with asyncio.timeout(_STALLED_SECONDS):
                    await stream.write(seen)
            else:
                await self._changed.wait()

    async def _render(self) -> None:
        """While there are listeners."""
        while self._listeners:
            status = self._status()
            self._latest = await asyncio.to_thread(_event, status)
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(max(INTERVAL, len(status.partitions) / _PARTITIONS_A_SECOND))
        self._latest = b""


def _event(status: Status) -> bytes:
    return b"data: " + orjson.dumps(status, default=str) + b"\n\n"
