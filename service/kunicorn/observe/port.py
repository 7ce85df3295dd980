"""The port of [http], bound before anything else, so that one that is taken ends the start with no group joined. Small,
for that start order: the server that answers there (`observe.http`) takes as long to load as all of the rest, and is
loaded after JoinGroup is sent.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

from kunicorn.errors import ConfigError
from kunicorn.settings import HttpSettings


class Port:
    """One listening address; bound once, served once."""

    def __init__(self, settings: HttpSettings) -> None:
        self.host = settings.host
        self.number = settings.port
        """Once it is bound a real one where 0 was asked for."""
        self._bound: asyncio.Server | None = None
        self._connection: Callable[[], asyncio.BaseProtocol] | None = None

    async def bind(self) -> None:
        """Bind the port; clients are refused until `serve`. Nothing if it is bound. Raises `ConfigError`."""
        if self._bound is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            self._bound = await loop.create_server(self._connect, self.host, self.number, start_serving=False)
        except OSError as error:
            raise ConfigError(_cannot_listen(self.host, self.number, error)) from error
        self.number = self._bound.sockets[0].getsockname()[1]

    async def serve(self, connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept clients, a `connection` for each. Raises `ConfigError`. Caller: after `bind`."""
        assert self._bound is not None
        self._connection = connection
        try:
            await self._bound.start_serving()
        except OSError as error:
            raise ConfigError(_cannot_listen(self.host, self.number, error)) from error

    def close(self) -> None:
        """Close the port; connections stay."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def _connect(self) -> asyncio.BaseProtocol:
        assert self._connection is not None
        return self._connection()


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        what = "another process listens there; stop it, or choose another port (0 takes a free one)"
    elif error.errno in {errno.EACCES, errno.EPERM}:
        what = "not permitted; ports below 1024 need a privilege, choose a higher one"
    else:
        what = f"{os.strerror(error.errno) if error.errno and error.errno > 0 else error}; correct http.host"
    return f"http.port = {port} on {host}: {what}"
