"""Keeps one ready template at hand; replaces a dead one while the workers it forked go on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence

from kunicorn.allocator import is_loaded
from kunicorn.errors import HandlerLoadError
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes.template_messages import Preload, TemplateReady
from kunicorn.supervisor.spawning import Spawned, spawn
from kunicorn.supervisor.template import Template, TemplateDied
from kunicorn.wire.backoff import Backoff

log = logs.get("kunicorn.template")

_BACKOFF, _BACKOFF_MAX = 0.2, 5.0
_TRIES_AT_START = 3


class Templates:
    """The template to fork from, now or as soon as there is one."""

    def __init__(self, first: Spawned, preload: Preload, metrics: Metrics, fatal: Callable[[Exception], None]) -> None:
        """`first` was told `preload`. `fatal` is told if the handler cannot be loaded at the start; later failures
        leave the workers alone."""
        self._first = first
        self._preload = preload
        self._metrics = metrics
        self._fatal = fatal
        self._template: Template | None = None
        self._living: list[Template] = []
        self._ready = asyncio.Event()
        self.state = "starting"
        self.keepers: frozenset[str] = frozenset()
        """Entry points of handlers that keep their offsets themselves, by the code in force."""

    def owns(self, pid: int) -> bool:
        """Whether that process is a template."""
        return any(template.pid == pid for template in self._living)

    async def current(self) -> Template:
        """A template that has imported the handler; waits for it."""
        await self._ready.wait()
        assert self._template is not None
        return self._template

    async def prepare(self, preload: Preload) -> Template:
        """A second template, of the code as it is on the disk now. The first one stays. Raises
        `HandlerLoadError`, and `OSError` where none can be started."""
        template = self._own(spawn(preload))
        try:
            answer = await template.ready()
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
        before, self._template, self._preload = self._template, template, preload
        self._in_use()
        if before is not None:
            await before.retire()

    async def keep(self) -> None:
        """Have one, for ever."""
        failures, loaded_before = 0, False
        backoff = _backoff()
        self._template = template = self._own(self._first)
        while True:
            try:
                answer = await template.ready()
            except HandlerLoadError as error:
                if not loaded_before:
                    self._fatal(error)
                    return
                log.error(f"the handler cannot be imported any more, living workers stay: {error}")
                failures += 1
            except TemplateDied:
                await template.dead.wait()
                failures += 1
                log.warning(f"the template died while importing the handler: {template.how_it_ended}")
                if not loaded_before and failures >= _TRIES_AT_START:
                    self._fatal(HandlerLoadError(_ends_the_process(self._preload.entrypoints, template)))
                    return
            else:
                failures, loaded_before = 0, True
                backoff.reset()
                if template is self._template:
                    _tell(template, answer, self._preload)
                    self._in_use()
            if self._ready.is_set():
                await self._until_dead()
            # The one in use may be another by now, adopted after a reload.
            template.close()
            self._template.close()
            self.state = "backing-off" if failures else "starting"
            if failures:
                await asyncio.sleep(backoff.next())
            self._template = template = await self._another()

    async def _another(self) -> Template:
        """A template in place of a dead one; tried again where none can be started, as the workers go on."""
        backoff = _backoff()
        while True:
            try:
                return self._own(spawn(self._preload))
            except OSError as error:
                wait = backoff.next()
                log.warning(f"no template can be started, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)

    async def _until_dead(self) -> None:
        """Until the template in use has died: the one that `keep` started, or that was adopted since."""
        while True:
            template = self._template
            assert template is not None
            await template.dead.wait()
            if template is self._template:
                break
        self._ready.clear()
        self._metrics.template_restarts.inc()
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
        self.keepers = self._template.keepers
        self.state = "ready"
        self._ready.set()


def _backoff() -> Backoff:
    return Backoff(_BACKOFF, _BACKOFF_MAX, random.Random())


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


def _ends_the_process(entrypoints: Sequence[str], template: Template) -> str:
    named = ", ".join(map(repr, entrypoints))
    return f"importing the handler {named} ends the process ({template.how_it_ended}): import it by hand to see why"
