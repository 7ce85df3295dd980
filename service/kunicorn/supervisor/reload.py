"""SIGHUP: the settings file read again, the handler imported anew, one worker after the other replaced.

All or nothing up to the first worker: settings that are refused, code that does not import and a setup that raises
change nothing, and the workers go on with what they have. From the first worker that is ready on, the new revision is
in force: whoever dies is replaced by one of it, and what of the others cannot be replaced is tried again, then told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import ReloadStatus
from kunicorn.pipes import clock
from kunicorn.pipes.messages import Configure
from kunicorn.settings import Settings
from kunicorn.settings.reloading import Reloaded, reloaded
from kunicorn.supervisor.place import Place
from kunicorn.supervisor.pool import Blueprint
from kunicorn.supervisor.replacing import ReplacementFailed, Replacer
from kunicorn.supervisor.spawning import preload
from kunicorn.supervisor.template import Template
from kunicorn.supervisor.templates import Templates

log = logs.get("kunicorn.reload")

_ROUNDS = 3
_BETWEEN_ROUNDS = 5.0
_COMPLETED, _FAILED, _INCOMPLETE = "completed", "failed", "incomplete"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a reload ended."""

    result: str
    message: str
    kept: tuple[str, ...]
    at: float


class Reloader:
    """Reloads when asked to, one at a time; asked again meanwhile, once more afterwards."""

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        configure: Callable[[Settings, int, int], Configure],
        apply: Callable[[Settings], None],
        templates: Templates,
        replacer: Replacer,
        try_again: Callable[[str], int],
        metrics: Metrics,
    ) -> None:
        """`reread` may block and raises `ConfigError`; `apply` puts settings in force in the supervisor; `try_again` is
        that of `Fetchers`."""
        self._settings = settings
        self._reread = reread
        self._configure = configure
        self._apply = apply
        self._templates = templates
        self._pool = replacer.pool
        self._replacer = replacer
        self._try_again = try_again
        self._metrics = metrics
        self._asked = asyncio.Event()
        self._running = False
        self._last: Outcome | None = None

    def ask(self) -> None:
        """Caller: the signal's handler; whoever watches the files."""
        self._asked.set()

    def status(self, now: float) -> ReloadStatus | None:
        """The last reload, or the one that runs; None before the first."""
        last, revision = self._last, self._pool.blueprint.revision
        if self._running:
            return ReloadStatus("running", revision, "", (), 0.0)
        return None if last is None else ReloadStatus(last.result, revision, last.message, last.kept, now - last.at)

    async def watch(self) -> None:
        """Serve, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._running = True
            try:
                self._last = await self._reload()
            finally:
                self._running = False
            self._metrics.reloads.labels(result=self._last.result).inc()

    async def _reload(self) -> Outcome:
        log.info("reload: reading the settings again, importing the handler anew")
        try:
            found = reloaded(self._settings, await asyncio.to_thread(self._reread))
            self._configure(found.settings, 0, 0)
            template = await self._templates.prepare(preload(found.settings))
        except (ConfigError, HandlerLoadError) as error:
            return _failed(str(error))
        except (OSError, RuntimeError) as error:
            # No process, thread or descriptor is to be had: a limit of the container's, which the workers do not need.
            return _failed(f"a template for the new code cannot be started: {error}")
        for name in found.kept:
            log.warning(f"{name} has another value now, which takes effect with the next start only", setting=name)
        return await self._roll(found, template)

    async def _roll(self, found: Reloaded, template: Template) -> Outcome:
        """Replace all workers. What the first one cannot start with is dropped."""
        revision = self._pool.blueprint.revision + 1
        trial = self._blueprint(revision, found.settings, template)
        why, in_force, problem = f"reloaded: revision {revision}", False, ""
        for attempt in range(_ROUNDS):
            if attempt:
                await asyncio.sleep(_BETWEEN_ROUNDS)
            for place in self._outdated(revision):
                try:
                    await self._replacer.replace(place, why, "reload", trial)
                except ReplacementFailed as error:
                    if not in_force:
                        await template.retire()
                        return _failed(str(error), found.kept)
                    problem = str(error)
                    log.error(f"worker {place.number} still runs revision {revision - 1}: {error}")
                else:
                    await self._put_in_force(trial, found, template, already=in_force)
                    in_force = True
            if not self._outdated(revision):
                break
        await self._put_in_force(trial, found, template, already=in_force)
        return self._rolled(found, revision, problem)

    def _blueprint(self, revision: int, settings: Settings, template: Template) -> Blueprint:
        async def prepared() -> Template:
            # Its successor, where it died meanwhile, has imported the same code if it was adopted.
            return template if not template.dead.is_set() else await self._templates.current()

        start_seconds = settings.workers.start_timeout_ms / 1000
        return Blueprint(
            revision, prepared, lambda worker, turn: self._configure(settings, worker, turn), start_seconds
        )

    def _outdated(self, revision: int) -> list[Place]:
        return [p for p in self._pool.places if p.process is not None and p.process.revision != revision]

    async def _put_in_force(self, trial: Blueprint, found: Reloaded, template: Template, *, already: bool) -> None:
        if already:
            return
        self._pool.blueprint = replace(trial, template=self._templates.current)
        self._settings = found.settings
        self._apply(found.settings)
        await self._templates.adopt(template, preload(found.settings))

    def _rolled(self, found: Reloaded, revision: int, problem: str) -> Outcome:
        changed = f", changed: {', '.join(found.changed)}" if found.changed else ""
        if old := self._outdated(revision):
            numbers = ", ".join(str(place.number) for place in old)
            message = f"revision {revision} is in force{changed}, but workers {numbers} run the one before: {problem}"
            log.error(message)
            return Outcome(_INCOMPLETE, message, found.kept, clock.now())
        # Now that nobody runs the code that halted them any more.
        again = self._try_again(f"tried again with revision {revision}")
        tried = f"; {again} halted partitions are tried again with revision {revision}" if again else ""
        message = f"all workers run revision {revision}{changed}{tried}"
        log.info(f"reload completed: {message}")
        return Outcome(_COMPLETED, message, found.kept, clock.now())


def _failed(why: str, kept: tuple[str, ...] = ()) -> Outcome:
    log.error(f"reload failed, nothing is changed and the workers go on as they are: {why}")
    return Outcome(_FAILED, why, kept, clock.now())
