"""The service: the supervisor's parts put together, run, and ended in order.

`LoopLag` is the delay of the event loop: code that blocks it shows there, before heartbeats are missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvloop

from kunicorn.clients.config import token_request
from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.otlp_extra import otlp_module
from kunicorn.observe.port import Port
from kunicorn.observe.status import Status
from kunicorn.settings import Settings
from kunicorn.settings.workers import memory_warnings
from kunicorn.supervisor.actions import Actions
from kunicorn.supervisor.connections import Connections, cluster_of
from kunicorn.supervisor.credentials import Tokens, watch_certificate
from kunicorn.supervisor.facts import MemberState, SettingsInForce
from kunicorn.supervisor.limits import Until
from kunicorn.supervisor.membership.driver import GroupAssignment
from kunicorn.supervisor.membership.manual import ManualAssignment
from kunicorn.supervisor.membership.source import AssignmentSource, StartLookup
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions import lag, silence
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.balancer import Balancer
from kunicorn.supervisor.partitions.table import PartitionTable
from kunicorn.supervisor.partitions.watchdog import Timeouts
from kunicorn.supervisor.rates import RateShares
from kunicorn.supervisor.run_until import RunUntil
from kunicorn.supervisor.snapshot import Snapshot
from kunicorn.supervisor.stop import Stopping, Watchdog
from kunicorn.supervisor.tasks import ServiceTasks, log_failure
from kunicorn.supervisor.topics import forget_departed
from kunicorn.supervisor.workers import rolling
from kunicorn.supervisor.workers.pool import Arbiter, Pool
from kunicorn.supervisor.workers.process import become_subreaper, keep_reaping
from kunicorn.supervisor.workers.spawn import Spawned, preload, release_signals
from kunicorn.supervisor.workers.template import Templates
from kunicorn.supervisor.workers.transactions import OpenTransactions
from kunicorn.supervisor.workforce import Blueprints, Workforce

if TYPE_CHECKING:
    from kunicorn.observe.http import Server
    from kunicorn.observe.otlp import OtlpExport


_BEAT = 0.1
_FADING = 0.95
"""Of a delay, at each beat without a longer one: a scrape that comes half a minute later still sees some of it."""


class LoopLag:
    """The event loop's delay. `seconds`: the worst one lately."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """Measure the delay ten times a second, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_BEAT)
            late = loop.time() - began - _BEAT
            self.seconds = max(late, self.seconds * _FADING)


log = logs.get("kunicorn")

_THREADS = 6
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


def threads_begun(count: int, watchdog: Watchdog) -> ThreadPoolExecutor:
    """So many threads for what would hold up the loop (plans, logins, files), all of them begun, and the watchdog's:
    later, where a container is at its limit, none may be had, and a plan without one would end the service amid a
    rebalance, a stop without one amid its drain.

    Raises `ServiceError` where they are not to be had now.
    """
    threads, all_begun = ThreadPoolExecutor(count, thread_name_prefix="beside-the-loop"), threading.Barrier(count)
    try:
        watchdog.start()
        for _ in range(count):
            threads.submit(all_begun.wait)
    except RuntimeError as error:
        all_begun.abort()
        raise ServiceError(
            f"the service's own {count + 1} threads cannot be started: {error}; see that limits of processes and "
            f"memory leave room"
        ) from error
    return threads


class Service:
    """One supervisor process; `run` is its whole life."""

    def __init__(
        self,
        settings: Settings,
        template: Spawned,
        reread: Callable[[], Settings],
        watched: Sequence[Path],
        until: Until,
    ) -> None:
        """Puts the parts together; nothing starts before `run`."""
        self._settings = settings
        self._watched = watched
        self._until = until
        self._metrics = metrics = Metrics()
        self._tasks = tasks = ServiceTasks()
        self._loop_lag = LoopLag()
        self._in_force = in_force = SettingsInForce(settings, reread)
        self._connections = connections = _connections(settings)
        self._assignment = assignment = self._partitions()
        templates = Templates(template, preload(settings), in_force, metrics)
        blueprints = Blueprints(settings, connections, RateShares(in_force, connections, assignment.pool))
        arbiter = Arbiter(assignment.pool, blueprints.of(1, settings, templates.current), assignment, tasks, metrics)
        self._workforce = Workforce(in_force, templates, blueprints, arbiter, metrics)
        self._source = source = self._source_of_partitions()
        self._start_lookup = StartLookup(settings, source, connections.brokers, assignment, tasks)
        self._run_until = RunUntil(until, connections.member, assignment, connections.brokers, metrics.totals)
        self._watchdog = Watchdog(_say_last, self._kill_workers)
        self._stopping = Stopping(source, settings.group, tasks.end, self._watchdog)
        self._snapshot = Snapshot(in_force, source, assignment, self._workforce, metrics.totals)
        self._has_ended_by_itself = False
        self._http: Server | None = None
        self._otlp: asyncio.Task[OtlpExport] | None = None

    def _partitions(self) -> Assignment:
        settings, connections = self._settings, self._connections
        by_workers = settings.producing.in_transactions
        transactions = OpenTransactions(connections.member, self._tasks) if by_workers else None
        table = PartitionTable(connections.topics, self._in_force, workers_commit=by_workers)
        return Assignment(table, Pool(settings.workers.count), self._in_force, self._metrics, transactions)

    def _source_of_partitions(self) -> AssignmentSource:
        settings, connections, assignment = self._settings, self._connections, self._assignment
        if settings.assigned:
            return ManualAssignment(settings, connections, assignment, self._metrics)
        return GroupAssignment(settings, connections, assignment, self._tasks, self._metrics)

    def status(self) -> Status:
        """The snapshot of this instant."""
        return self._snapshot.take(self._connections, self._stopping.begun, self._loop_lag.seconds)

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> ExitCode:
        """Start, serve, stop. An error that ends the service is logged when it happens, before anything is stopped."""
        become_subreaper()
        self._on_signals()
        for warning in (*self._settings.kafka.warnings(), *memory_warnings(self._settings.workers)):
            if warning is not None:
                log.warning(warning)
        for work in (
            *self._workforce.keeps(),
            keep_reaping(lambda pid: self._workforce.owns(pid) or self._connections.owns(pid)),
            self._loop_lag.watch(),
            self._end_by_itself(),
            *self._connections.logins(self._workforce.tell),
        ):
            self._tasks.start(work)
        failed: ExitCode | None = None
        try:
            asyncio.get_running_loop().set_default_executor(threads_begun(_THREADS, self._watchdog))
            if self._settings.http.enabled:
                port = Port(self._settings.http)
                await port.bind()
                self._tasks.start(self._serve_http(port))
            if self._settings.otlp.enabled:
                self._tasks.start(self._export_metrics())
            await self._tasks.until_over(self._serve(), self._wind_up)
        except Exception as error:
            if error is not self._tasks.error:
                log_failure(error)
            failed = error.exit_code if isinstance(error, ServiceError) else ExitCode.BUG
            self._watchdog.end_with(failed)
        finally:
            await self._shut_down()
        exit_code = self._how_it_ended() if failed is None else failed
        self._watchdog.end_with(exit_code)
        return exit_code

    async def _serve_http(self, port: Port) -> None:
        """Serve HTTP at that port, from the join on, or soon if there is none yet: the server is loaded while the
        coordinator waits for other members, and so delays no record."""
        await self._joining()
        http = await asyncio.to_thread(importlib.import_module, "kunicorn.observe.http")
        self._http = http.Server(self._settings.http, self.status, self._metrics, self._actions(), port)
        await self._http.start()
        if port.certificate is not None:
            await watch_certificate(port.certificate, partial(self._metrics.certificate_ends, "http"))

    async def _export_metrics(self) -> None:
        """Export metrics by OTLP from the join on, for ever. Raises `ConfigError` without the extra."""
        await self._joining()
        # A task of its own: a service that is over before it is loaded has its counts to export, too.
        self._otlp = asyncio.create_task(asyncio.to_thread(_otlp_export, self._settings, self._metrics, self.status))
        export = await asyncio.shield(self._otlp)
        await export.export_every()

    async def _joining(self) -> None:
        """Wait for the join, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_WITHIN):
                await self._source.requested.wait()

    def _actions(self) -> Actions:
        seeker = Seeker(self._settings, self._assignment, self._source.commits, self._connections.brokers)
        return Actions(self._assignment, self._workforce, seeker, self._tasks, self._stopping)

    async def _serve(self) -> None:
        await self._connections.reach()
        brokers, assignment = self._connections.brokers, self._assignment
        assignment.pool.want(1)
        await self._workforce.templates.current()
        for work in (
            *self._workforce.watches(),
            Timeouts(assignment.pool, assignment, self._in_force, self._metrics).watch(),
            Balancer(assignment, brokers, self._in_force, self._is_steady).watch(),
            lag.watch_ends(brokers, assignment),
            lag.watch_ages(brokers, assignment),
            forget_departed(self._connections.topics, assignment.table, self._metrics, self._in_force.forget),
            silence.watch(assignment, self._in_force, self._metrics, self._is_steady, self._workforce.replace_silent),
            *self._start_lookups(),
            *self._source.works(),
            *([rolling.watch(self._watched, self._workforce.reloader.request)] if self._watched else []),
        ):
            self._tasks.start(work)
        self._stopping.begin_serving()
        await self._source.run()

    def _start_lookups(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks that look start offsets up; with `--until-end`, the logs' ends first."""
        if self._until.end:
            return [self._run_until.find_ends(), self._start_lookup.run(self._run_until.with_end)]
        return [self._start_lookup.run(self._assignment.table.without_start)]

    def _is_steady(self) -> bool:
        return self._source.steady and not self._stopping.begun

    def _wind_up(self, error: Exception) -> None:
        # A successor of whoever dies from now on would say the same again.
        self._assignment.pool.replace_no_more()
        self._stopping.wind_up(error, in_hand=self._assignment.table.anything_unfinished())

    async def _shut_down(self) -> None:
        grace = self._stopping.shut_down()
        self._start_lookup.stop()
        await self._workforce.stop(grace)
        if clinging := await self._tasks.cancel(_CANCEL_SECONDS):
            log.error(f"tasks that do not let themselves be cancelled are left behind: {', '.join(clinging)}")
        if self._otlp is not None:
            await _last_export(self._otlp, self._stopping.export_within)
        if self._http is not None:
            await self._http.stop()
        self._workforce.close()
        await self._connections.close()

    def _how_it_ended(self) -> ExitCode:
        if self._source.unfinished:
            log.error(f"stopped, but {self._source.stop_messages.unclean}")
            return ExitCode.NOT_ALL_COMMITTED
        if self._run_until.unfinished:
            log.error("stopped, but not everything is handled up to its end; what is handled is committed")
            return ExitCode.NOT_ALL_COMMITTED
        if self._is_cut_short():
            log.error("stopped before the end: not everything that was to be handled is")
            return ExitCode.NOT_ALL_COMMITTED
        log.info(f"stopped; {self._source.stop_messages.clean}")
        return ExitCode.CLEAN

    def _is_cut_short(self) -> bool:
        """Whether it is a job whose end is the logs', and something else has stopped it before. A limit of the command
        line has not: whoever set it has what was asked for."""
        if self._has_ended_by_itself:
            return False
        to_the_end = self._until.end or (self._settings.assigned and self._settings.assign.stop == "end")
        return to_the_end and not self._source.through

    def _kill_workers(self) -> None:
        for process in self._assignment.pool.processes():
            process.kill()

    async def _end_by_itself(self) -> None:
        self._has_ended_by_itself = self._stopping.finish(await self._run_until.wait())

    # -- signals -----------------------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.request, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)
        release_signals()

    def _told_to_reload(self) -> None:
        if why := self._stopping.why_no_reload():
            log.warning(f"SIGHUP is ignored: the service {why}")
        else:
            self._workforce.reloader.request()


def _connections(settings: Settings) -> Connections:
    tokens = Tokens(partial(token_request, settings.kafka)) if settings.kafka.uses_tokens else None
    member = MemberState(instance_id=settings.group.group_instance_id)
    return Connections(settings, cluster_of(settings.kafka, tokens), member, tokens)


def _otlp_export(settings: Settings, metrics: Metrics, status: Callable[[], Status]) -> OtlpExport:
    """The export of metrics. Blocks for the imports. Raises `ConfigError` without the extra."""
    otlp = otlp_module()
    endpoint = otlp.Endpoint(settings.otlp)
    export: OtlpExport = otlp.OtlpExport(settings.otlp, endpoint, metrics, status, settings.http.partition_metrics_max)
    return export


async def _last_export(loading: asyncio.Task[OtlpExport], within: float) -> None:
    """Export metrics for the last time, within so many seconds."""
    due = clock.now() + within
    try:
        async with asyncio.timeout(within):
            export = await asyncio.shield(loading)
    except ConfigError:
        return  # The extra is missing, which has ended the service.
    except TimeoutError:
        log.warning(f"no metrics are exported: OpenTelemetry was not loaded {within:g} s after the end")
        return
    await export.last(due - clock.now())


def _say_last(line: str) -> None:
    log.error(line)
    logs.close(_LAST_LINES_SECONDS)
