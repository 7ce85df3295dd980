"""Keeps one ready template at hand; replaces a dead one while the workers it forked go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kunicorn.errors import HandlerLoadError
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes.messages import Preload
from kunicorn.supervisor.template import Template, TemplateDied

log = logs.get("kunicorn.template")

_BACKOFF, _BACKOFF_MAX = 0.1, 5.0
_TRIES_AT_START = 3


class Templates:
    """The template to fork from, now or as soon as there is one."""

    def __init__(self, preload: Preload, metrics: Metrics, fatal: Callable[[Exception], None]) -> None:
        """`fatal` is told if the handler cannot be loaded at the start; later failures leave the workers alone."""
        self._preload = preload
        self._metrics = metrics
        self._fatal = fatal
        self._template: Template | None = None
        self._ready = asyncio.Event()
        self.state = "starting"

    def owns(self, pid: int) -> bool:
        """Whether that process is the template."""
        return self._template is not None and self._template.pid == pid

    async def current(self) -> Template:
        """A template that has imported the handler; waits for it."""
        await self._ready.wait()
        assert self._template is not None
        return self._template

    async def keep(self) -> None:
        """Have one, for ever."""
        failures, loaded_before = 0, False
        while True:
            self._template = template = Template.start(self._preload)
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
                    handler = self._preload.entrypoint
                    self._fatal(HandlerLoadError(
                        f"importing the handler {handler!r} ends the process ({template.how_it_ended}, {failures} "
                        f"times): import it by hand to see why"))  # fmt: skip
                    return
            else:
                failures, loaded_before = 0, True
                self._announce(template, answer.preloaded, answer.note, answer.seconds)
                await template.dead.wait()
                self._ready.clear()
                self._metrics.template_restarts.inc()
                log.warning(
                    f"the template (pid {template.pid}) died: {template.how_it_ended}; workers go on, a new one starts"
                )
            template.close()
            self.state = "backing-off" if failures else "starting"
            if failures:
                await asyncio.sleep(min(_BACKOFF * 2.0**failures, _BACKOFF_MAX))

    def stop(self) -> None:
        """Let the template exit."""
        if self._template is not None:
            self._template.close()

    def _announce(self, template: Template, preloaded: bool, note: str, seconds: float) -> None:
        self.state = "ready"
        log.info(f"template ready after {seconds:.2f} s", template_pid=template.pid, preloaded=preloaded)
        if note:
            log.warning(note)
        self._ready.set()
