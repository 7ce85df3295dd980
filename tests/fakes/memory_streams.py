"""Connections within one event loop, in memory: what is written on one side is received on the other at the loop's next
turn. For tests of so many connections that sockets would be most of their work."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

_HERE = "127.0.0.1"
_FIRST_PORT = 40_000
AnyProtocol = asyncio.Protocol | asyncio.BufferedProtocol
Protocols = Callable[[], AnyProtocol]


class MemoryTransport(asyncio.Transport):
    """One end. Whatever was written before `close` or `abort` still arrives, as on a socket that is shut down."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: AnyProtocol) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._closing = False
        self.peer: MemoryTransport

    def write(self, data: Any) -> None:
        if not self._closing:
            self._loop.call_soon(self.peer._receive, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._loop.call_soon(self.peer._end)

    def _receive(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.Protocol):
            if not self._closing:
                self._protocol.data_received(data)
            return
        while data and not self._closing:
            room = memoryview(self._protocol.get_buffer(len(data)))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def _end(self) -> None:
        if not self._closing:
            self._protocol.eof_received()
            self.abort()


class MemoryServer:
    """What `asyncio.start_server` gets; as much of `asyncio.Server` as is used."""

    def __init__(self, ports: dict[int, Protocols], port: int) -> None:
        self._ports, self._port = ports, port

    @property
    def sockets(self) -> tuple[MemoryServer, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return _HERE, self._port

    def close(self) -> None:
        self._ports.pop(self._port, None)


class MemoryNetwork:
    """Who listens in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ports: dict[int, Protocols] = {}
        self._free: Iterator[int] = count(_FIRST_PORT)

    def listen(self, protocols: Protocols) -> MemoryServer:
        """In place of `create_server`, on a port of its choice."""
        port = next(self._free)
        self._ports[port] = protocols
        return MemoryServer(self._ports, port)

    def connect(self, protocols: Protocols, host: str, port: int) -> tuple[MemoryTransport, AnyProtocol]:
        """In place of `create_connection`."""
        if host != _HERE or port not in self._ports:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
        here = MemoryTransport(self._loop, protocols())
        there = MemoryTransport(self._loop, self._ports[port]())
        here.peer, there.peer = there, here
        for end in (here, there):
            end._protocol.connection_made(end)
        return here, here._protocol
