"""The template as the supervisor sees it: one process, and always a ready one.

`Templates` keeps one ready template at hand, and replaces a dead one while the workers it forked go on. `Template` is
the supervisor's side of the process: the preloaded handler that workers are forked from. One template per code version.
It is exec'ed, so that nothing of the supervisor's event loop, threads or sockets is in it; a dead template is replaced
while the workers it forked live on (the supervisor is their parent).
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Mapping, Sequence

from kunicorn.allocator import is_loaded
from kunicorn.backoff import Backoff, Retries
from kunicorn.errors import HandlerLoadError, PeerError
from kunicorn.ipc.messages import (
    Fork,
    Forked,
    ForkFailed,
    FromTemplate,
    Preload,
    TemplateFailed,
    TemplateReady,
    decode,
    encode,
)
from kunicorn.linux import receive_descriptors
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.workers.process import Child, send_signal, watch_exit
from kunicorn.supervisor.workers.spawn import Spawned, spawn

_MAX_PACKET = 1 << 20
_FORK_SECONDS = 10.0
"""A fork takes milliseconds."""
_ABORT_SECONDS = 2.0
"""To write stacks, and a core where the system wants one."""
_REMEDIES: Mapping[int, str] = {
    errno.EAGAIN: "raise the limit of processes (the container's pids limit, ulimit -u), or have fewer workers",
    errno.ENOMEM: "raise the memory limit, or have fewer workers",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
"""By errno of a fork that failed."""


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
        watch_exit(Child(self.pid, os.dup(self._pidfd)), self._on_exit)

    async def ready(self) -> TemplateReady:
        """Wait for the import, as long as it takes; a reload's has a limit (`Templates.prepare`). Raises
        `HandlerLoadError` if it fails, `TemplateDied`."""
        answer, _ = await self._receive()
        if isinstance(answer, TemplateFailed):
            raise HandlerLoadError(answer.error)
        if not isinstance(answer, TemplateReady):
            raise TemplateDied(f"the template spoke of {type(answer).__name__} before it was ready")
        self.keepers = frozenset(answer.keepers)
        return answer

    async def fork(self, worker: int, channel: socket.socket, ledger_fd: int) -> Child:
        """Fork one worker that owns the descriptors. Raises `TemplateDied`, and `OSError` where the system has none to
        give: the template goes on.

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
        if isinstance(answer, ForkFailed):
            raise OSError(answer.errno, _refused(answer))
        if not isinstance(answer, Forked) or len(fds) != 1:
            for fd in fds:
                os.close(fd)
            raise TemplateDied(f"the template answered {type(answer).__name__} to a fork")
        return Child(answer.pid, fds[0])

    def close(self) -> None:
        """Close its socket: it reads EOF and exits; its workers stay."""
        self._sock.close()

    async def retire(self) -> None:
        """Close its socket when the fork that it is busy with is done."""
        async with self._one_at_a_time:
            self.close()

    async def abort(self) -> None:
        """End a template that does not answer: its stacks go to standard error first. Waits for its end, for some
        seconds at most."""
        if not self.dead.is_set():
            send_signal(self._pidfd, signal.SIGABRT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await self.dead.wait()
        self.kill()

    def kill(self) -> None:
        """Kill a template that does not answer."""
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
            body, fds, _ = receive_descriptors(self._sock, _MAX_PACKET, 4)
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


def _refused(answer: ForkFailed) -> str:
    name = errno.errorcode.get(answer.errno, "no errno")
    remedy = _REMEDIES.get(answer.errno, "see the limits of the container and of the machine")
    return f"the fork failed with {name} ({answer.error}): {remedy}"


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


log = logs.get("kunicorn.template")

_BACKOFF = Backoff(first_seconds=0.2, longest_seconds=5.0)
_TRIES_AT_START = 3


class Templates:
    """The template to fork from, now or as soon as there is one."""

    def __init__(self, first: Spawned, preload: Preload, in_force: SettingsInForce, metrics: Metrics) -> None:
        """`first` was told `preload`."""
        self._first = first
        self._preload = preload
        self._in_force = in_force
        self._metrics = metrics
        self._template: Template | None = None
        self._living: list[Template] = []
        self._ready = asyncio.Event()
        self._adopted = asyncio.Event()
        self.state = "starting"

    def owns(self, pid: int) -> bool:
        """Whether that process is a template that lives: the pid of one that has ended may be a stranger's."""
        return any(template.pid == pid and not template.dead.is_set() for template in self._living)

    async def current(self) -> Template:
        """A template that has imported the handler; waits for it."""
        await self._ready.wait()
        assert self._template is not None
        return self._template

    async def prepare(self, preload: Preload, within: float) -> Template:
        """A second template, of the code as it is on the disk now. The first one stays. Raises
        `HandlerLoadError`, also where the import takes longer than `within` seconds, and `OSError` where none can be
        started.

        Waited for without end, an import that hangs would keep the next reload, with the code mended, from beginning.
        """
        template = self._own(spawn(preload))
        try:
            async with asyncio.timeout(within):
                answer = await template.ready()
        except TimeoutError:
            await template.abort()
            template.close()
            raise HandlerLoadError(_hangs(preload.entrypoints, template, within)) from None
        except HandlerLoadError:
            template.close()
            raise
        except TemplateDied:
            await template.dead.wait()
            template.close()
            raise HandlerLoadError(_ends_the_process(preload.entrypoints, template)) from None
        _tell(template, answer, preload)
        return template

    async def adopt(self, template: Template, preload: Preload) -> None:
        """Fork from that one, made by `prepare`, from now on; the one before exits when its last fork is done."""
        before, importing = self._template, not self._ready.is_set()
        self._template, self._preload = template, preload
        self._adopted.set()
        self._in_use()
        if before is None:
            return
        if importing:
            # `keep` waits for its answer, and would never hear that its socket is closed here.
            before.kill()
        else:
            await before.retire()

    async def keep(self) -> None:
        """Keep a template ready, for ever. Raises `HandlerLoadError` if the handler cannot be loaded at the start;
        later failures leave the workers alone."""
        failures, loaded_before = 0, False
        retries = Retries(_BACKOFF)
        self._template = template = self._own(self._first)
        while True:
            try:
                answer = await template.ready()
            except HandlerLoadError as error:
                if not loaded_before and not self._ready.is_set():
                    raise
                log.error(f"the handler cannot be imported any more, living workers stay: {error}")
                failures += 1
            except TemplateDied:
                await template.dead.wait()
                if not self._ready.is_set():  # Else `adopt` has ended it.
                    failures += 1
                    self._died_importing(template, in_vain=not loaded_before and failures >= _TRIES_AT_START)
            else:
                if template is self._template:
                    _tell(template, answer, self._preload)
                    self._in_use()
            if template is not self._template:
                # Another was adopted while it imported the handler.
                template.close()
            if self._ready.is_set():
                failures, loaded_before = 0, True
            self._template = template = await self._next(retries, failed=failures > 0)

    def _died_importing(self, template: Template, *, in_vain: bool) -> None:
        """`in_vain`: it was tried often enough; raises `HandlerLoadError`."""
        log.warning(f"the template died while importing the handler: {template.how_it_ended}")
        if in_vain:
            raise HandlerLoadError(_ends_the_process(self._preload.entrypoints, template)) from None

    async def _next(self, retries: Retries, *, failed: bool) -> Template:
        """A template that takes the place of the one in use once that has died. `failed`: there is none in use, and not
        at once."""
        another = None
        while another is None:
            if self._ready.is_set():
                failed = False
                retries.succeeded()
                await self._until_dead()
            # Of the one that `adopt` has replaced the socket is closed there, when its last fork is done.
            assert self._template is not None
            self._template.close()
            self.state = "backing-off" if failed else "starting"
            if failed:
                await asyncio.sleep(retries.failed())
            another = await self._another()
        return another

    async def _another(self) -> Template | None:
        """A template in place of a dead one; tried again where none can be started, as the workers go on. None: one
        was adopted meanwhile, whose place it is not to take."""
        retries = Retries(_BACKOFF)
        while not self._ready.is_set():
            try:
                return self._own(spawn(self._preload))
            except OSError as error:
                wait = retries.failed()
                log.warning(f"no template can be started, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)
        return None

    async def _until_dead(self) -> None:
        """Until the template in use has died: the one that `keep` started, or that was adopted since. Not until the one
        before has ended, too: it may be stopped, or wait in what the handler has registered with `atexit`."""
        template = None
        while template is None or template is not self._template:
            template = self._template
            assert template is not None
            self._adopted.clear()
            died, adopted = asyncio.ensure_future(template.dead.wait()), asyncio.ensure_future(self._adopted.wait())
            try:
                await asyncio.wait((died, adopted), return_when=asyncio.FIRST_COMPLETED)
            finally:
                died.cancel()
                adopted.cancel()
        self._ready.clear()
        self._metrics.count(catalogue.TEMPLATE_RESTARTS)
        log.warning(f"the template (pid {template.pid}) died: {template.how_it_ended}; workers go on, a new one starts")

    def _own(self, spawned: Spawned) -> Template:
        try:
            template = Template(spawned)
        except OSError:
            spawned.sock.close()
            os.close(spawned.pidfd)
            raise
        self._living = [*(other for other in self._living if not other.dead.is_set()), template]
        return template

    def stop(self) -> None:
        """Let the template exit."""
        if self._template is not None:
            self._template.close()

    def _in_use(self) -> None:
        assert self._template is not None
        self._in_force.code_in_use(self._template.keepers)
        self.state = "ready"
        self._ready.set()


def _tell(template: Template, answer: TemplateReady, preload: Preload) -> None:
    log.info(
        f"template ready after {answer.seconds:.2f} s",
        template_pid=template.pid,
        preloaded=answer.preloaded,
        allocator=preload.allocator or "system",
    )
    if answer.note:
        log.warning(answer.note)
    if preload.allocator and not is_loaded(preload.allocator, template.pid):
        log.warning(
            f"workers go on with the C library's memory allocator: {preload.allocator} could not be preloaded; "
            f"standard error says why (ld.so); correct workers.allocator"
        )


def _hangs(entrypoints: Sequence[str], template: Template, within: float) -> str:
    named = ", ".join(map(repr, entrypoints))
    return (
        f"importing the handler {named} takes longer than {within:g} s (workers.start_timeout_ms): the process "
        f"{template.pid} is ended, and its stacks on standard error say where it waits"
    )


def _ends_the_process(entrypoints: Sequence[str], template: Template) -> str:
    named = ", ".join(map(repr, entrypoints))
    return f"importing the handler {named} ends the process ({template.how_it_ended}): import it by hand to see why"
