"""The supervisor's side of the template process: the preloaded handler that workers are forked from.

One template per code version. It is exec'ed, so that nothing of the supervisor's event loop, threads or sockets is in
it; a dead template is replaced while the workers it forked live on (the supervisor is their parent).
"""

from __future__ import annotations

import array
import asyncio
import os
import signal
import socket

from kunicorn.errors import HandlerLoadError, PeerError
from kunicorn.observe import logs
from kunicorn.pipes.framing import decode, encode
from kunicorn.pipes.template_messages import Fork, Forked, FromTemplate, TemplateFailed, TemplateReady
from kunicorn.supervisor.processes import send_signal, watch_exit
from kunicorn.supervisor.spawning import Spawned

log = logs.get("kunicorn.template")

_MAX_PACKET = 1 << 20
_FORK_SECONDS = 10.0
"""A fork takes milliseconds."""


class TemplateDied(PeerError):
    """The template is gone; a new one may do."""


class Template:
    """One template process. `ready()` before the first `fork()`; `dead` says when to start another."""

    def __init__(self, spawned: Spawned) -> None:
        self._sock, self.pid, self._pidfd = spawned
        self.dead = asyncio.Event()
        self.how_it_ended: str | None = None
        self.keepers: frozenset[str] = frozenset()
        """Entry points of handlers that keep their offsets themselves; known once it is ready."""
        self._one_at_a_time = asyncio.Lock()
        watch_exit(os.dup(self._pidfd), self._on_exit)

    async def ready(self) -> TemplateReady:
        """Wait for the import, as long as it takes. Raises `HandlerLoadError` if it fails, `TemplateDied`."""
        answer, _ = await self._receive()
        if isinstance(answer, TemplateFailed):
            raise HandlerLoadError(answer.error)
        if not isinstance(answer, TemplateReady):
            raise TemplateDied(f"the template spoke of {type(answer).__name__} before it was ready")
        self.keepers = frozenset(answer.keepers)
        return answer

    async def fork(self, worker: int, channel: socket.socket, ledger_fd: int) -> tuple[int, int]:
        """Fork one worker that owns the descriptors; return its pid and pidfd. Raises `TemplateDied`.

        A template that does not answer is killed: another one is started for it, and a worker that it forked after
        all reads the end of its pipe and exits. Waited for without end, its partitions would be nobody's.
        """
        async with self._one_at_a_time:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [channel.fileno(), ledger_fd]))
            try:
                self._sock.sendmsg([encode(Fork(worker))], [rights])
            except OSError as error:
                raise TemplateDied(f"the template is gone: {error}") from error
            try:
                async with asyncio.timeout(_FORK_SECONDS):
                    answer, fds = await self._receive()
            except TimeoutError:
                self.kill()
                raise TemplateDied(f"the template (pid {self.pid}) did not fork within {_FORK_SECONDS:g} s") from None
        if not isinstance(answer, Forked) or len(fds) != 1:
            for fd in fds:
                os.close(fd)
            raise TemplateDied(f"the template answered {type(answer).__name__} to a fork")
        return answer.pid, fds[0]

    def close(self) -> None:
        """Let it go: it reads EOF and exits; its workers stay."""
        self._sock.close()

    async def retire(self) -> None:
        """Let it go when the fork that it is busy with is done."""
        async with self._one_at_a_time:
            self.close()

    def kill(self) -> None:
        """For a template that does not answer."""
        if not self.dead.is_set():
            send_signal(self._pidfd, signal.SIGKILL)

    async def _receive(self) -> tuple[FromTemplate, list[int]]:
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._sock, _wake, readable)
        try:
            await readable
        finally:
            loop.remove_reader(self._sock)
        try:
            body, fds, _, _ = socket.recv_fds(self._sock, _MAX_PACKET, 4)
        except OSError as error:
            raise TemplateDied(f"the template is gone: {error}") from error
        if not body:
            raise TemplateDied("the template is gone")
        message: FromTemplate = decode(body, FromTemplate)
        return message, fds

    def _on_exit(self, how: str) -> None:
        self.how_it_ended = how
        os.close(self._pidfd)
        self.dead.set()


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
