"""The service: puts the supervisor's parts together, runs them, and ends them in order.

`Works` is what runs for as long as the service does, and what ends it before its time. `LoopLag` is how late the event
loop is: whoever blocks it shows there, before heartbeats are missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvloop

from kunicorn.errors import ExitCode, ServiceError
from kunicorn.ipc.messages import Password, Token
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.port import Port
from kunicorn.observe.status import Status
from kunicorn.settings import Settings
from kunicorn.settings.workers import memory_limit, overcommitted
from kunicorn.supervisor.actions import Actions
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.limits import Until
from kunicorn.supervisor.membership.driver import GroupAssignment
from kunicorn.supervisor.membership.manual import FixedAssignment
from kunicorn.supervisor.membership.source import Resolver, Source
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions import lag
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.run_until import Ending
from kunicorn.supervisor.snapshot import Snapshot
from kunicorn.supervisor.stop import Stopping, Watchdog
from kunicorn.supervisor.workers import rolling
from kunicorn.supervisor.workers.process import become_subreaper, keep_reaping
from kunicorn.supervisor.workers.spawn import Spawned, release_signals
from kunicorn.supervisor.workforce import Workforce

if TYPE_CHECKING:
    from kunicorn.observe.http import Server


_AGAIN = 0.25
"""Seconds until a task that still goes on is cancelled again: code that it calls may have taken the cancellation for
something of its own."""


class Works:
    """The service's tasks. One that fails ends the service with its error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []
        self._failed = asyncio.Event()
        self._over = asyncio.Event()
        self.error: Exception | None = None
        """What ends the service, once there is something; it is logged."""

    def start(self, *works: Awaitable[None]) -> None:
        """Have these run until `cancel`."""
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._done)
            self._tasks.append(task)

    def fatal(self, error: Exception) -> None:
        """End the service with this error, which is logged now; the first one counts, and none once the end was
        called."""
        if self.error is None and not self._over.is_set():
            self.error = error
            tell(error)
            self._failed.set()

    def end(self) -> None:
        """End the service now, whatever is still under way."""
        self._over.set()

    async def until_over(self, serving: Awaitable[None], wind_up: Callable[[Exception], None]) -> None:
        """Wait for what comes first: `serving` is through, or the end was called.

        Something fatal is raised. If it comes while `serving` goes on, `wind_up` is called: it brings `serving` to its
        end, or calls ours.
        """
        over, failed = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self._failed.wait())
        task = asyncio.ensure_future(serving)
        task.add_done_callback(self._done)
        self._tasks.append(task)
        try:
            await asyncio.wait({task, over, failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None and not task.done():
                wind_up(self.error)
                await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            failed.cancel()
        if self.error is not None:
            raise self.error
        if task.done():
            task.result()

    async def cancel(self, within: float) -> list[str]:
        """Cancel everything, again and again, until it has ended; the names of what has not within so many seconds."""
        deadline = asyncio.get_running_loop().time() + within
        while left := [task for task in self._tasks if not task.done()]:
            if asyncio.get_running_loop().time() >= deadline:
                return [_named(task) for task in left]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_AGAIN)
        return []

    def _done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def tell(error: Exception) -> None:
    """Log what ends the service: an expected failure by its message, a bug with its traceback."""
    if isinstance(error, ServiceError):
        log.error(str(error))
    else:
        text = "".join(traceback.format_exception(error))
        log.error(f"a bug ends the service: {type(error).__name__}: {error}", exception=text)


def _named(task: asyncio.Future[None]) -> str:
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    return getattr(coroutine, "__qualname__", repr(task))


_BEAT = 0.1
_FADING = 0.95
"""Of a delay, at each beat without a longer one: a scrape that comes half a minute later still sees some of it."""


class LoopLag:
    """`seconds`: the worst delay of late."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_BEAT)
            late = loop.time() - began - _BEAT
            self.seconds = max(late, self.seconds * _FADING)


log = logs.get("kunicorn")

_SHOWN_WITHIN = 0.4
"""Seconds without a join, which may be long in coming: no broker answers, or the handler takes its time to import."""
_CANCEL_SECONDS = 2.0
_LAST_LINES_SECONDS = 1.0


def run(
    settings: Settings, template: Spawned, reread: Callable[[], Settings], watched: Sequence[Path], until: Until
) -> NoReturn:
    """Run the service until it is told to stop, and end the process with its exit code (`ExitCode`).

    `template` was told of these settings. `reread` loads them again, for a reload; it raises `ConfigError`. A change of
    the files in `watched` is a reload, too. `until`: what ends the service by itself.
    """
    writer = logs.configure(level=settings.log.level, format=settings.log.format, process="supervisor")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(Service(settings, template, reread, watched, until).run())
            writer.close(timeout=2.0)
            # The loop's and the interpreter's ends wait for threads: one may be importing, planning or reading a file.
            os._exit(code)
    finally:
        writer.close(timeout=2.0)


class Service:
    """One supervisor. `run` is its whole life."""

    def __init__(
        self,
        settings: Settings,
        template: Spawned,
        reread: Callable[[], Settings],
        watched: Sequence[Path],
        until: Until,
    ) -> None:
        """Only puts the parts together; nothing starts before `run`."""
        self._settings = settings
        self._watched = watched
        self._metrics = Metrics()
        self._works = Works()
        self._loop_lag = LoopLag()
        self._connections = Connections(settings, self._tell_workers)
        self._workforce = Workforce(settings, template, reread, self._connections, self._metrics, self._works.fatal)
        brokers, fetchers, group = self._connections.brokers, self._workforce.fetchers, settings.group
        self._source = self._source_of_partitions()
        self._workforce.balancer.steady = lambda: self._source.steady and not self._stopping.begun
        self._resolver = Resolver(
            self._source, brokers, fetchers, group.auto_offset_reset, settings.retry_topics, self._works.fatal
        )
        handled, patience = lambda: self._metrics.totals["records"], group.session_timeout_ms / 1000
        self._ending = Ending(until, self._source, fetchers, brokers, handled, patience)
        self._ending.resolve = self._resolver.resolve
        fetchers.resolve = self._learn_ends if until.end else self._resolver.resolve
        self._watchdog = Watchdog(_say_last, self._kill_workers)
        self._stopping = Stopping(self._source, group, self._works.end, self._watchdog)
        self._snapshot = Snapshot(self._source, self._workforce, self._metrics.totals)
        self._http: Server | None = None

    def _source_of_partitions(self) -> Source:
        settings, brokers, topics = self._settings, self._connections.brokers, self._connections.topics
        fetchers, lease = self._workforce.fetchers, self._workforce.pool.extend_lease
        if settings.assigned:
            return FixedAssignment(settings, brokers, topics, fetchers, self._metrics, lease)
        coordinator = self._connections.coordinator
        return GroupAssignment(
            settings, coordinator, brokers, topics, fetchers, self._metrics, lease, self._works.fatal
        )

    def status(self) -> Status:
        """The snapshot of this instant."""
        unreached, refusal = self._connections.unreached, self._connections.refusal
        return self._snapshot.take(unreached, refusal, self._stopping.begun, self._loop_lag.seconds)

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> ExitCode:
        """Start, serve, stop. What ends the service by itself is logged when it happens, before anything is stopped."""
        become_subreaper()
        self._on_signals()
        for warning in (*self._settings.kafka.warnings(), overcommitted(self._settings.workers, memory_limit())):
            if warning is not None:
                log.warning(warning)
        self._works.start(
            self._workforce.templates.keep(),
            keep_reaping(lambda pid: self._workforce.pool.owns(pid) or self._connections.owns(pid)),
            self._loop_lag.watch(),
            *self._connections.logins(),
        )
        try:
            if self._settings.http.enabled:
                port = Port(self._settings.http)
                await port.bind()
                self._works.start(self._serve_http(port))
            await self._works.until_over(self._serve(), self._wind_up)
        except Exception as error:
            if error is not self._works.error:
                tell(error)
            self._watchdog.exit_code = error.exit_code if isinstance(error, ServiceError) else ExitCode.BUG
        finally:
            await self._shut_down()
        if self._watchdog.exit_code is None:
            self._watchdog.exit_code = self._how_it_ended()
        return self._watchdog.exit_code

    async def _serve_http(self, port: Port) -> None:
        """Answer there, from the join on, or soon if there is none yet: what answers is loaded while the coordinator
        waits for other members, and keeps no record waiting before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_WITHIN):
                await self._source.asked.wait()
        http = await asyncio.to_thread(importlib.import_module, "kunicorn.observe.http")
        self._http = http.Server(self._settings.http, self.status, self._metrics, self._actions(), port)
        await self._http.start()

    def _actions(self) -> Actions:
        fetchers, brokers = self._workforce.fetchers, self._connections.brokers
        seeker = Seeker(self._settings, fetchers, self._source.commits, brokers)
        # A second drain would not wait for what is in hand: that takes a signal.
        return Actions(
            fetchers,
            self._workforce.pool,
            self._workforce.replacer,
            seeker,
            lambda: self._stopping.ask_once("asked for over HTTP"),
        )

    async def _serve(self) -> None:
        await self._connections.reach()
        brokers, fetchers = self._connections.brokers, self._workforce.fetchers
        self._workforce.pool.want(1)
        await self._workforce.templates.current()
        self._works.start(
            *self._workforce.watches(),
            lag.watch(brokers, fetchers),
            self._end_by_itself(),
            lag.watch_ages(brokers, fetchers),
            *self._source.works(),
            *([rolling.watch(self._watched, self._workforce.reloader.ask)] if self._watched else []),
        )
        self._stopping.serving = True
        await self._source.run()

    def _wind_up(self, error: Exception) -> None:
        # Whoever dies from now on is not replaced: its successor would say the same again.
        self._workforce.pool.stopping = True
        self._stopping.wind_up(error, in_hand=self._workforce.fetchers.table.anything_to_settle())

    async def _shut_down(self) -> None:
        grace = self._stopping.shut_down()
        self._resolver.stop()
        await self._workforce.stop(grace)
        if clinging := await self._works.cancel(_CANCEL_SECONDS):
            log.error(f"tasks that do not let themselves be cancelled are left behind: {', '.join(clinging)}")
        if self._http is not None:
            await self._http.stop()
        self._workforce.close()
        await self._connections.close()

    def _how_it_ended(self) -> ExitCode:
        if self._source.unfinished:
            log.error(f"stopped, but {self._source.words.unclean}")
            return ExitCode.NOT_ALL_COMMITTED
        if self._ending.unfinished:
            log.error("stopped, but not everything is handled up to its end; what is handled is committed")
            return ExitCode.NOT_ALL_COMMITTED
        log.info(f"stopped; {self._source.words.clean}")
        return ExitCode.CLEAN

    # -- what parts want of one another ------------------------------------------------------------------------------

    def _tell_workers(self, login: Token | Password) -> None:
        self._workforce.tell(login)

    def _learn_ends(self, partitions: Collection[Partition]) -> None:
        self._works.start(self._ending.learn(list(partitions)))

    def _kill_workers(self) -> None:
        for process in self._workforce.pool.processes():
            process.kill()

    async def _end_by_itself(self) -> None:
        self._stopping.ask_once(await self._ending.wait())

    # -- signals -----------------------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.ask, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)
        release_signals()

    def _told_to_reload(self) -> None:
        if self._stopping.begun or not self._stopping.serving:
            why = "stops" if self._stopping.begun else "has not begun yet"
            log.warning(f"SIGHUP is ignored: the service {why}")
        else:
            self._workforce.reloader.ask()


def _say_last(line: str) -> None:
    log.error(line)
    logs.close(_LAST_LINES_SECONDS)
