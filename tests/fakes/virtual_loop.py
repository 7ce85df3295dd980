"""An event loop whose time the test does not wait for: where only a timer could go on, the clock is turned to it.

While bytes are under way or a thread is at work, the clock stands still; the loopback delivers at once what is written.
So drivers, connections and a broker in the same loop play hours in milliseconds, over real sockets.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import selectors
import socket
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from unittest import mock

from kunicorn.ipc import clock
from tests.fakes.memory_streams import MemoryNetwork

T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
P = ParamSpec("P")

_THREAD_PAUSE = 0.002
_LOOK = 1e-6
"""Every look takes a moment, as on any machine: two times that differ by a rounding would otherwise never meet."""
_START = 10_000.0
_HERE = "127.0.0.1"


class _TurningSelector(selectors.DefaultSelector):
    """Polls, and asks for the clock to be turned where nothing is ready."""

    turn: Callable[[float], None]
    threads_at_work: Callable[[], bool]
    sockets = True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turn(_LOOK)
        if not self.sockets and timeout is not None and timeout <= 0 and not self.threads_at_work():
            return []
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self.threads_at_work():
            return super().select(_THREAD_PAUSE)
        self.turn(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    sockets = True

    def __init__(self) -> None:
        self._now = _START
        self._threads: set[asyncio.Future[Any]] = set()
        self._served: set[int] = set()
        selector = _TurningSelector()
        selector.sockets = self.sockets
        selector.turn = self._turn
        selector.threads_at_work = lambda: bool(self._threads)
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    async def create_server(self, *args: Any, **more: Any) -> asyncio.Server:
        server = await super().create_server(*args, **more)
        self._served.update(sock.getsockname()[1] for sock in server.sockets)
        return server

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        if host != _HERE:
            raise socket.gaierror(socket.EAI_NONAME, f"the name {host!r} is not known")
        # At once, where another loop asks a thread of its own.
        return socket.getaddrinfo(host, port, **more)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Nobody is reached but who listens in this loop: a spoilt address may be anybody's."""
        if address[0] != _HERE or address[1] not in self._served:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address}")
        await super().sock_connect(sock, address)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        return future

    def _turn(self, seconds: float) -> None:
        self._now += seconds


class MemoryLoop(VirtualLoop):
    """The same without sockets: see `tests.fakes.memory_streams`."""

    sockets = False

    def __init__(self) -> None:
        super().__init__()
        self._network = MemoryNetwork(self)

    async def create_server(self, protocol_factory: Any, *_: Any, **more: Any) -> Any:
        return self._network.listen(protocol_factory)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        if more:
            raise NotImplementedError(f"in memory there is no {', '.join(more)}")
        return self._network.connect(protocol_factory, host, port)


def in_virtual_time(story: Callable[[], Coroutine[Any, Any, T]], *, sockets: bool = True) -> T:
    """Run a test's coroutine to its end; `kunicorn.ipc.clock` tells the loop's time meanwhile."""
    with asyncio.Runner(loop_factory=VirtualLoop if sockets else MemoryLoop) as runner:
        now = runner.get_loop().time
        with (
            mock.patch.object(clock, "now", now),
            mock.patch.object(clock, "now_ns", side_effect=lambda: int(now() * clock.NANOSECONDS)),
        ):
            return runner.run(story())


def virtual_time(*, sockets: bool = True) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """A plain test of a coroutine that is run `in_virtual_time`."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(test)
        def plain(*args: P.args, **kwargs: P.kwargs) -> None:
            in_virtual_time(lambda: test(*args, **kwargs), sockets=sockets)

        return plain

    return decorate


class Teller(Protocol[S_co]):
    """Makes a plain test of a coroutine whose first parameter is a scene; of the others pytest knows."""

    def __call__(self, test: Callable[Concatenate[S_co, P], Coroutine[Any, Any, None]], /) -> Callable[P, None]: ...


def with_scene(play: Callable[[Callable[[S], Coroutine[Any, Any, None]], Mapping[str, Any]], None]) -> Teller[S]:
    """`play` makes the scene, for a test with these arguments, and runs the coroutine with it."""

    def decorate(test: Callable[Concatenate[S, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(test)
        def plain(*args: P.args, **kwargs: P.kwargs) -> None:
            play(lambda scene: test(scene, *args, **kwargs), kwargs)

        signature = inspect.signature(test)
        own = [*signature.parameters.values()][1:]
        plain.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return plain

    return decorate
