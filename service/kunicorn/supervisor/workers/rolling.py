"""Rolling replacement of workers: on a reload, by age, and when files change.

`Reloader`, at SIGHUP: the settings file read again, the handler imported anew, one worker after the other replaced.

All or nothing up to the first worker: settings that are refused, code that does not import and a setup that raises
change nothing, and the workers go on with what they have. From the first worker that is ready on, the new revision is
in force: whoever dies is replaced by one of it, and what of the others cannot be replaced is tried again, then told.
Another reload that is asked for meanwhile is not kept waiting by those: it may bring what they lack.

- `Replacer`: a worker hands over to its successor inside the pod: no rebalance, nothing handled twice (invariant 6).
- `Recycler`: workers that have worked for long enough are replaced, one at a time: handlers leak, and caches grow.
- `places_of` and `signature`, for `kunicorn run --reload`: the handler's source and the settings' file are looked at,
  and a change is a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Protocol

from kunicorn.errors import ConfigError, HandlerLoadError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Drain
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import ReloadStatus
from kunicorn.settings import Settings, WorkerSettings
from kunicorn.settings.load import Reloaded
from kunicorn.settings.workers import memory_limit, overcommitted
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.workers.pool import PING_INTERVAL, Arbiter, Blueprint, WorkerSlot
from kunicorn.supervisor.workers.process import WorkerProcess, WorkerState
from kunicorn.supervisor.workers.spawn import preload
from kunicorn.supervisor.workers.template import Template, TemplateDied, Templates

pool_log = logs.get("kunicorn.pool")

_REAPING = 2.0
_WITHOUT_TEMPLATE = 5.0
"""Seconds that everybody who comes next may be held up by a template that died a moment ago."""


class ReplacementFailed(Exception):
    """The successor did not get ready; the worker that was to be replaced goes on."""


class Replacer:
    """Replaces workers in order, one at a time."""

    def __init__(self, arbiter: Arbiter, metrics: Metrics, drain_seconds: float) -> None:
        """`drain_seconds`: how long a worker that is replaced may finish what it has in hand."""
        self.arbiter = arbiter
        self._listener = arbiter.listener
        self._pool = arbiter.pool
        self._metrics = metrics
        self._drain_seconds = drain_seconds
        self._one_at_a_time = asyncio.Lock()

    async def replace(
        self,
        slot: WorkerSlot,
        why: str,
        reason: str,
        blueprint: Blueprint | None = None,
        only: WorkerProcess | None = None,
    ) -> bool:
        """Start a successor; once it is ready, let the slot's worker hand over to it and exit. Raises
        `ReplacementFailed`. False: nothing was started, as the pool stops or the slot has no process, or none that is
        to be replaced.

        With a `blueprint`, a slot without a process gets one of that, too: a reload is to try the code that it puts in
        force, also while the slot's workers die and come back. Whoever is of that code already is left alone. `only`:
        so is whoever has the slot in place of that worker.

        The successor comes first, although it needs memory for two: its handler is set up and its client connected
        when it gets the partitions, so that each pauses for no longer than its record in hand. Were they given to the
        other workers meanwhile, each would move twice. One at a time: whoever comes second waits here. `reason` is
        the metric's label.
        """
        with contextlib.suppress(TemplateDied):
            # Before the lock: where the handler's import hangs or fails there is none for as long as that lasts, and
            # the reload that mends it must not wait for it.
            await (blueprint or self.arbiter.blueprint).template()
        async with self._one_at_a_time:
            if self._pool.stopping or not _is_to_be_replaced(slot.process, blueprint, only):
                return False
            if slot.predecessor is not None:
                # It would be lost sight of, and what comes with its death would be put down to another process.
                raise ReplacementFailed(
                    f"{slot.predecessor}, which it has taken over from, was killed and has not ended yet: see what "
                    f"that process waits for, as a disk or a network file system that does not answer"
                )
            successor = await self._start_successor(slot, blueprint or self.arbiter.blueprint)
            predecessor = None
            if slot.successor is successor and (predecessor := slot.promote()) is None:
                # The dead ones before it had the other id.
                self.arbiter.end_transactions(slot, slot.turn - 1)
            self._listener.worker_ready(successor)
            if predecessor is not None:
                self._metrics.count(catalogue.WORKER_RECYCLES, reason=reason)
                await self._retire(predecessor, why)
            return True

    async def _start_successor(self, slot: WorkerSlot, blueprint: Blueprint) -> WorkerProcess:
        try:
            async with asyncio.timeout(_WITHOUT_TEMPLATE):
                await blueprint.template()
            successor = await self.arbiter.spawn(slot, blueprint, on_trial=True)
        except TimeoutError as error:
            raise ReplacementFailed("there is no template to fork its successor from") from error
        except (TemplateDied, OSError, ConfigError) as error:
            raise ReplacementFailed(f"its successor could not be started: {error}") from error
        await self._pool.changed.wait(lambda: successor.has_started_or_died, clock.now() + blueprint.start_seconds)
        if not successor.has_started_or_died:
            successor.condemn(f"was not ready within {blueprint.start_seconds:.0f} s")
            successor.kill()
            raise ReplacementFailed(f"{successor} {successor.killed_by_us}")
        # Who is forked for an empty slot at this moment would take the slot from it.
        await self._pool.changed.wait(lambda: not slot.forking)
        if successor.is_dead():
            raise ReplacementFailed(successor.refusal or f"{successor} died before it was ready")
        return successor

    async def _retire(self, process: WorkerProcess, why: str) -> None:
        pool_log.info(f"{process} hands over to its successor, {why}", worker=process.number, worker_pid=process.pid)
        process.begin_draining(retired=why)
        self._listener.worker_retires(process)
        deadline = clock.now() + self._drain_seconds
        process.send(Drain(deadline))
        await self._pool.changed.wait(process.is_dead, deadline)
        await self._pool.escalate(process, "did not drain within drain_timeout_ms to be replaced", process.is_dead)
        await self._pool.changed.wait(process.is_dead, clock.now() + _REAPING)


def _is_to_be_replaced(process: WorkerProcess | None, blueprint: Blueprint | None, only: WorkerProcess | None) -> bool:
    """Asked in turn: a reload and a recycling that were both asked for would otherwise replace a worker twice."""
    if process is None:
        return blueprint is not None
    return (blueprint is None or process.revision != blueprint.revision) and only in (None, process)


log = logs.get("kunicorn.reload")

_ROUNDS = 3
_BETWEEN_ROUNDS = 5.0
_COMPLETED, _FAILED, _INCOMPLETE = "completed", "failed", "incomplete"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a reload."""

    result: str
    message: str
    kept: tuple[str, ...]
    at: float

    @property
    def completed(self) -> bool:
        """Whether all workers run the new revision."""
        return self.result == _COMPLETED


class Revisions(Protocol):
    """What a revision's workers are started from, and need of the cluster."""

    def of(self, revision: int, settings: Settings, template: Callable[[], Awaitable[Template]]) -> Blueprint:
        """The blueprint of that number, with its settings and where to fork from."""

    async def look_for(self, topics: Mapping[str, str]) -> None:
        """Raises `ConfigError` where one of these topics, with the setting that names it, cannot be written to."""


class Reloader:
    """Reloads when asked to, one at a time; asked again meanwhile, once more afterwards."""

    def __init__(
        self,
        in_force: SettingsInForce,
        templates: Templates,
        revisions: Revisions,
        replacer: Replacer,
        metrics: Metrics,
    ) -> None:
        self._in_force = in_force
        self._templates = templates
        self._revisions = revisions
        self._arbiter = replacer.arbiter
        self._replacer = replacer
        self._metrics = metrics
        self._asked = asyncio.Event()
        self._running = False
        self._last: Outcome | None = None
        self._waiting: list[asyncio.Future[Outcome]] = []
        """Those who wait for the next reload that begins."""

    def request(self) -> None:
        """Ask for a reload. Caller: the handler of SIGHUP, and the watch over files."""
        self._asked.set()

    async def outcome(self) -> Outcome:
        """Ask for a reload that begins after this call, and wait for what comes of it. Caller: a person's request."""
        waiting: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self.request()
        return await waiting

    def status(self, now: float) -> ReloadStatus | None:
        """The last reload, or the one that runs; None before the first."""
        last, revision = self._last, self._arbiter.blueprint.revision
        if self._running:
            return ReloadStatus("running", revision, "", (), 0.0)
        return None if last is None else ReloadStatus(last.result, revision, last.message, last.kept, now - last.at)

    async def watch(self) -> None:
        """Carry out reloads, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            waiting, self._waiting = self._waiting, []
            self._running = True
            try:
                self._last = await self._reload()
            finally:
                self._running = False
            self._metrics.count(catalogue.RELOADS, result=self._last.result)
            for each in waiting:
                # Whoever has hung up waits no more.
                if not each.done():
                    each.set_result(self._last)

    async def _reload(self) -> Outcome:
        log.info("reload: reading the settings again, importing the handler anew")
        try:
            found = await self._in_force.read_again()
            self._revisions.of(0, found.settings, self._templates.current).configure(0, 0, False)
            await self._revisions.look_for(self._brought(found.settings))
            within = found.settings.workers.start_timeout_ms / 1000
            template = await self._templates.prepare(preload(found.settings), within)
        except (ConfigError, HandlerLoadError) as error:
            return _failed(str(error))
        except (OSError, RuntimeError) as error:
            # No process, thread or descriptor is to be had: a limit of the container's, which the workers do not need.
            return _failed(f"a template for the new code cannot be started: {error}")
        for name in found.kept:
            log.warning(f"{name} has another value now, which takes effect with the next start only", setting=name)
        if warning := overcommitted(found.settings.workers, memory_limit()):
            log.warning(warning)
        return await self._roll(found, template)

    def _brought(self, settings: Settings) -> Mapping[str, str]:
        """Topics that these settings have beside those in force: the start has looked for the others. Without them the
        first dead letter would hold up its partition."""
        known = self._in_force.settings.other_topics
        return {topic: setting for topic, setting in settings.other_topics.items() if topic not in known}

    async def _roll(self, found: Reloaded, template: Template) -> Outcome:
        """Replace all workers. What the first one cannot start with is dropped."""
        revision = self._arbiter.blueprint.revision + 1
        trial = self._trial(revision, found.settings, template)
        why, in_force, problem = f"reloaded: revision {revision}", False, ""
        # Where nobody works at the moment, the first slot: untried code is not put in force.
        untried = self._arbiter.pool.slots[:1]
        for attempt in range(_ROUNDS):
            if attempt:
                await asyncio.sleep(_BETWEEN_ROUNDS)
            for slot in self._left(revision, problem) or untried:
                # A worker that has died meanwhile is back with the new code.
                if in_force and slot.process is not None and slot not in self._left(revision, problem):
                    continue
                try:
                    replaced = await self._replacer.replace(slot, why, "reload", trial)
                except ReplacementFailed as error:
                    if not in_force:
                        await template.retire()
                        return _failed(str(error), found.kept)
                    problem = str(error)
                    log.error(f"worker {slot.number} still runs revision {revision - 1}: {error}")
                    continue
                if replaced and not in_force:
                    await self._put_in_force(trial, found, template)
                    in_force, untried = True, []
            if not self._left(revision, problem):
                break
        if not in_force:
            await template.retire()
            return _failed("the service stops", found.kept)
        return self._rolled(found, revision, problem)

    def _trial(self, revision: int, settings: Settings, template: Template) -> Blueprint:
        async def prepared() -> Template:
            if not template.dead.is_set():
                return template
            # Before it was adopted, the one in use has imported the code that is to be replaced.
            if self._arbiter.blueprint.revision != revision:
                raise TemplateDied(f"the template that has imported the new code died: {template.how_it_ended}")
            return await self._current(settings.workers.start_timeout_ms / 1000)

        return self._revisions.of(revision, settings, prepared)

    async def _current(self, within: float) -> Template:
        """The template in use. Raises `TemplateDied` where there is none for so many seconds, or until another reload
        is asked for: its code may be what mends an import that hangs."""
        current, asked = asyncio.ensure_future(self._templates.current()), asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((current, asked), timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if current.done():
                return current.result()
        finally:
            current.cancel()
            asked.cancel()
        why = "another reload is asked for" if self._asked.is_set() else f"waited {within:g} s for it"
        raise TemplateDied(f"there is no template that has imported the handler, and {why}")

    def _left(self, revision: int, problem: str) -> list[WorkerSlot]:
        """Slots that this reload is still to replace: none of them where one could not be, and another reload is asked
        for, which may bring what this one lacks."""
        return [] if problem and self._asked.is_set() else self._outdated(revision)

    def _outdated(self, revision: int) -> list[WorkerSlot]:
        slots = self._arbiter.pool.slots
        return [slot for slot in slots if slot.process is not None and slot.process.revision != revision]

    async def _put_in_force(self, trial: Blueprint, found: Reloaded, template: Template) -> None:
        self._arbiter.adopt(replace(trial, template=self._templates.current))
        self._in_force.replace(found.settings)
        await self._templates.adopt(template, preload(found.settings))

    def _rolled(self, found: Reloaded, revision: int, problem: str) -> Outcome:
        changed = f", changed: {', '.join(found.changed)}" if found.changed else ""
        if old := self._outdated(revision):
            numbers = ", ".join(str(slot.number) for slot in old)
            message = f"revision {revision} is in force{changed}, but workers {numbers} run the one before: {problem}"
            log.error(message)
            return Outcome(_INCOMPLETE, message, found.kept, clock.now())
        # Now that nobody runs the code that halted them any more.
        again = self._arbiter.listener.code_replaced(f"tried again with revision {revision}")
        tried = f"; {again} halted partitions are tried again with revision {revision}" if again else ""
        message = f"all workers run revision {revision}{changed}{tried}"
        log.info(f"reload completed: {message}")
        return Outcome(_COMPLETED, message, found.kept, clock.now())


def _failed(why: str, kept: tuple[str, ...] = ()) -> Outcome:
    log.error(f"reload failed, nothing is changed and the workers go on as they are: {why}")
    return Outcome(_FAILED, why, kept, clock.now())


recycling_log = logs.get("kunicorn.recycling")

_JITTER = 0.1
"""Workers that were started together do not reach their age together: each a little before, up to this share."""
_YOUNG = 5.0
"""Seconds without recycling by memory: where a fresh worker is above max_rss_mb already, the next one will be, too."""
_AFTER_FAILURE = 10.0
_BYTES_PER_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Due:
    """Why a worker is to be replaced: the metric's label, and words."""

    reason: str
    words: str


def due(limits: WorkerSettings, *, handled: int, age: float, rss_bytes: int, jitter: float) -> Due | None:
    """Whether a worker has worked for long enough. Pure.

    `age`: seconds since its start. `jitter`: from [0, 1), drawn once for each worker.
    """
    if limits.max_records is not None and handled >= limits.max_records:
        return Due("records", f"{handled} records (max_records = {limits.max_records})")
    if limits.max_age_s is not None and age >= limits.max_age_s * (1 - _JITTER * jitter):
        return Due("age", f"{age:.0f} s old (max_age_s = {limits.max_age_s})")
    if limits.max_rss_mb is not None and age >= _YOUNG and rss_bytes > limits.max_rss_mb * _BYTES_PER_MB:
        return Due("rss", f"{rss_bytes // _BYTES_PER_MB} MB resident (max_rss_mb = {limits.max_rss_mb})")
    return None


class Recycler:
    """Replaces workers that others ask it for, and those that have reached one of their limits."""

    def __init__(self, replacer: Replacer, in_force: SettingsInForce) -> None:
        self._in_force = in_force
        self._slots = replacer.arbiter.pool.slots
        self._replacer = replacer

    async def watch(self) -> None:
        """Replace whoever is due, one at a time, for ever. Where no successor starts, the worker goes on."""
        while True:
            await asyncio.sleep(PING_INTERVAL)
            for slot in self._slots:
                if slot.process is None or (found := self._due(slot.process)) is None:
                    continue
                if not await self.recycle(slot, found.words, found.reason, slot.process):
                    await asyncio.sleep(_AFTER_FAILURE)

    async def recycle(self, slot: WorkerSlot, why: str, reason: str, only: WorkerProcess | None = None) -> bool:
        """As `Replacer.replace`; but where no successor starts, the log tells it, and the worker goes on. Whether that
        is not so."""
        try:
            await self._replacer.replace(slot, f"recycled: {why}", reason, only=only)
        except ReplacementFailed as error:
            recycling_log.error(f"{slot.process} goes on although it was to be recycled ({why}): {error}")
            return False
        return True

    def _due(self, process: WorkerProcess) -> Due | None:
        if process.state is not WorkerState.READY or process.pong is None:
            return None
        return due(
            self._in_force.workers,
            handled=process.handled,
            age=clock.now() - process.started_at,
            rss_bytes=process.pong.rss_bytes,
            jitter=process.jitter,
        )


_INTERVAL = 0.5
_MOST_FILES = 10_000

Signature = dict[Path, tuple[int, int]]
"""Modification time and size of each file."""


async def watch(places: Sequence[Path], reload: Callable[[], None]) -> None:
    """Call `reload` whenever a file there was changed, added or removed, once it has been still for a moment: editors
    write in several steps. For ever."""
    known = await asyncio.to_thread(signature, places)
    log.info(f"watching {len(known)} files for changes: {', '.join(map(str, places))}")
    while True:
        await asyncio.sleep(_INTERVAL)
        now = await asyncio.to_thread(signature, places)
        if now == known:
            continue
        await asyncio.sleep(_INTERVAL)
        settled = await asyncio.to_thread(signature, places)
        if settled == now:
            log.info(f"changed: {', '.join(str(path) for path in _different(known, now))}; reloading")
            known = now
            reload()


def places_of(entrypoints: Iterable[str], config: Path) -> list[Path]:
    """The settings' file, and the handlers' top packages or modules. Imports nothing."""
    names = dict.fromkeys(entrypoint.partition(":")[0].partition(".")[0] for entrypoint in entrypoints)
    return [config, *(place for name in names for place in _places_of(name))]


def _places_of(name: str) -> list[Path]:
    # The current directory first, as the template has it.
    spec = PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])
    if spec is None:
        return []
    directories = list(spec.submodule_search_locations or ())
    files = [spec.origin] if spec.origin is not None and not directories else []
    return [*map(Path, (*directories, *files))]


def signature(places: Iterable[Path]) -> Signature:
    """What the files are like now. Blocks on the disk."""
    found: Signature = {}
    for place in places:
        for path in _python_files(place) if place.is_dir() else [place]:
            try:
                stat = path.stat()
            except OSError:
                continue  # Removed while we looked, or an editor is about to rename its new file here.
            found[path] = (stat.st_mtime_ns, stat.st_size)
            if len(found) >= _MOST_FILES:
                return found
    return found


def _python_files(directory: Path) -> Iterator[Path]:
    # `Path.rglob` raises where a directory vanishes while it is looked through, as by git or a cleaner of caches.
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names if name.endswith(".py"))


def _different(before: Signature, now: Signature) -> list[Path]:
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))[:5]
