"""The service: puts the supervisor's parts together, runs them, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from kunicorn.clients import security_of, token_request
from kunicorn.errors import ConfigError, ExitCode, PeerError, ServiceError
from kunicorn.group.error_codes import ErrorCode
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import Status
from kunicorn.pipes import clock
from kunicorn.pipes.messages import Configure, Password, Token
from kunicorn.settings import Settings
from kunicorn.settings.memory import memory_limit, overcommitted
from kunicorn.supervisor import ages, lag, watching
from kunicorn.supervisor.actions import Actions
from kunicorn.supervisor.balancing import Balancer
from kunicorn.supervisor.brokers import Brokers
from kunicorn.supervisor.deaths import TopicHandling
from kunicorn.supervisor.ending import Ending, Until
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.fixed import FixedAssignment
from kunicorn.supervisor.grouped import GroupAssignment
from kunicorn.supervisor.outfitting import configure, preload
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.passwords import watch_password
from kunicorn.supervisor.pool import Blueprint, Pool
from kunicorn.supervisor.processes import become_subreaper, reap_strangers
from kunicorn.supervisor.recycling import Recycler
from kunicorn.supervisor.reload import Reloader
from kunicorn.supervisor.replacing import Replacer
from kunicorn.supervisor.resolver import Resolver
from kunicorn.supervisor.seeking import Seeker
from kunicorn.supervisor.snapshot import Snapshot
from kunicorn.supervisor.source import Source
from kunicorn.supervisor.templates import Templates
from kunicorn.supervisor.timeouts import Timeouts
from kunicorn.supervisor.tokens import Tokens
from kunicorn.supervisor.topics import Topics
from kunicorn.supervisor.transactional import TransactionalIds
from kunicorn.wire.backoff import Backoff
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import describe
from kunicorn.wire.errors import AuthenticationFailed

if TYPE_CHECKING:
    from kunicorn.observe.http import Server

log = logs.get("kunicorn")

_SWEEP_INTERVAL = 1.0
_BEAT = 0.1
_EXIT_GRACE = 5.0
_CONNECT_TIMEOUT = 5.0


def run(
    settings: Settings, reread: Callable[[], Settings], watched: Sequence[Path] = (), until: Until | None = None
) -> int:
    """Run the service until it is told to stop; return its exit code (`ExitCode`). Blocks; owns the process.

    `reread` loads the settings again, for a reload; it raises `ConfigError`. A change of the files in `watched` is a
    reload, too. `until`: what ends the service by itself.
    """
    writer = logs.configure(level=settings.log.level, format=settings.log.format, process="supervisor")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return int(runner.run(Service(settings, reread, watched, until or Until()).run()))
    except ServiceError as error:
        log.error(str(error))
        return int(error.exit_code)
    finally:
        writer.close(timeout=2.0)


class Service:
    """One supervisor. `run` is its whole life."""

    def __init__(
        self, settings: Settings, reread: Callable[[], Settings], watched: Sequence[Path], until: Until
    ) -> None:
        """Only puts the parts together; nothing starts before `run`."""
        self._settings = settings
        self._watched = watched
        kafka, group = settings.kafka, settings.group
        rng = random.Random()
        self._ended: asyncio.Future[None] | None = None
        self._stopping = self._hurried = False
        self._problem: str | None = "starting"
        self._serving = False
        """Partitions are being had: from now on a stop means to drain."""
        self._loop_lag = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics = Metrics()
        self._tokens = Tokens(token_request(kafka), self._tell_workers) if kafka.uses_tokens else None
        self._cluster = Cluster(
            kafka.bootstrap_servers,
            client_id=kafka.client_id,
            security=security_of(kafka, self._tokens.bearer if self._tokens is not None else None),
            request_timeout=kafka.request_timeout_ms / 1000,
            connect_timeout=_CONNECT_TIMEOUT,
            rng=rng,
        )
        self._backoff = Backoff(kafka.retry_backoff_ms / 1000, max(kafka.retry_backoff_max_ms / 1000, 5.0), rng)
        topics = settings.assign.wanted.topics or group.topics
        self._topics = Topics(topics, self._cluster, brokers_match=group.group_protocol == "consumer")
        coordinator = Coordinator(self._cluster, group.id)
        self._brokers = Brokers(settings, self._cluster, coordinator, self._topics)
        self._templates = Templates(preload(settings), self._metrics, self._fatal)
        self._fetchers = Fetchers(settings.workers.max_crashes, self._metrics, self._handling)
        self._transactional_ids = TransactionalIds(settings)
        self._pool = Pool(
            settings.workers.count,
            self._templates,
            Blueprint(1, self._templates.current, partial(self._configure, settings)),
            self._fetchers,
            self._metrics,
            self._fatal,
        )
        self._replacer = Replacer(self._pool, self._fetchers, self._metrics, group.drain_timeout_ms / 1000)
        self._timeouts = Timeouts(
            self._pool, self._fetchers, self._metrics, lambda topic: self._handling(topic).timeout_ms
        )
        self._balancer = Balancer(self._fetchers, self._pool, self._brokers, self._is_steady, settings.workers)
        self._recycler = Recycler(self._pool, self._replacer, settings.workers)
        self._reloader = Reloader(
            settings,
            reread,
            self._configure,
            self._put_in_force,
            self._templates,
            self._pool,
            self._replacer,
            self._metrics,
        )
        self._fetchers.pool, self._fetchers.table.topic_id = self._pool, self._topics.topic_id
        self._fetchers.table.kept_elsewhere = self._kept_elsewhere
        self._source = self._source_of_partitions(coordinator)
        self._resolver = Resolver(self._source, self._brokers, self._fetchers, group.auto_offset_reset, self._fatal)
        self._ending = Ending(
            until,
            self._source,
            self._fetchers,
            self._brokers,
            lambda: self._metrics.totals["records"],
            group.session_timeout_ms / 1000,
        )
        self._ending.resolve = self._resolver.resolve
        self._fetchers.resolve = self._learn_ends if until.end else self._resolver.resolve
        self._snapshot = Snapshot(
            settings, self._source, self._fetchers, self._pool, self._templates, self._reloader, self._metrics.totals
        )
        seeker = Seeker(settings, self._fetchers, self._source.commits, self._brokers)
        self._actions = Actions(self._fetchers, self._pool, self._replacer, seeker, self._asked_to_drain)
        self._http: Server | None = None

    def _source_of_partitions(self, coordinator: Coordinator) -> Source:
        settings, topics, lease = self._settings, self._topics, self._pool.extend_lease
        if settings.assigned:
            return FixedAssignment(settings, self._brokers, topics, self._fetchers, self._metrics, lease)
        return GroupAssignment(
            settings, coordinator, self._brokers, topics, self._fetchers, self._metrics, lease, self._fatal
        )

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, serve, stop. Raises `ServiceError` for what ends the service by itself."""
        self._ended = asyncio.get_running_loop().create_future()
        become_subreaper()
        self._on_signals()
        for warning in (*self._settings.kafka.warnings(), overcommitted(self._settings.workers, memory_limit())):
            if warning is not None:
                log.warning(warning)
        self._start(self._templates.keep(), self._sweep(), self._feel_the_loop())
        if self._tokens is not None:
            self._start(self._tokens.keep())
        if self._settings.kafka.sasl_password_file is not None:
            self._start(watch_password(self._settings.kafka, self._tell_workers))
        try:
            if self._settings.http.enabled:
                await self._serve_http()
            await self._until_ended(self._serve())
        finally:
            await self._shut_down()
        if self._source.unfinished:
            log.error(f"stopped, but {self._source.words.unclean}")
            return ExitCode.NOT_ALL_COMMITTED
        if self._ending.unfinished:
            log.error("stopped, but not everything is handled up to its end; what is handled is committed")
            return ExitCode.NOT_ALL_COMMITTED
        log.info(f"stopped; {self._source.words.clean}")
        return ExitCode.CLEAN

    async def _serve_http(self) -> None:
        """Listen; the first turn of the loop has started the template, which imports the handler meanwhile: importing
        the server takes as long."""
        await asyncio.sleep(0)
        from kunicorn.observe.http import Server

        self._http = Server(self._settings.http, self.status, self._metrics, self._actions)
        await self._http.start()

    async def _serve(self) -> None:
        if self._tokens is not None:
            await self._tokens.first()
        await self._reach_brokers()
        self._problem = None
        self._pool.want(1)
        await self._templates.current()
        self._start(
            self._pool.watch(),
            self._timeouts.watch(),
            self._recycler.watch(),
            self._balancer.watch(),
            self._reloader.watch(),
            lag.watch(self._brokers, self._fetchers),
            self._end_by_itself(),
            ages.watch(self._brokers, self._fetchers),
            *self._source.works(),
            *([watching.watch(self._watched, self._reloader.ask)] if self._watched else []),
        )
        self._serving = True
        await self._source.run()

    async def _until_ended(self, serving: Awaitable[None]) -> None:
        """Wait for the service's end, whichever comes first: it has left the group, or something fatal."""
        assert self._ended is not None
        task = asyncio.ensure_future(serving)
        self._tasks.append(task)
        done, _ = await asyncio.wait({task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()

    async def _shut_down(self) -> None:
        self._stopping = True
        self._resolver.stop()
        await self._pool.stop(clock.now() + (0.0 if self._hurried else _EXIT_GRACE))
        self._templates.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.stop()
        self._transactional_ids.close()
        with contextlib.suppress(PeerError):
            await self._cluster.close()

    def _start(self, *works: Awaitable[None]) -> None:
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._task_done)
            self._tasks.append(task)

    def _task_done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _fatal(self, error: Exception) -> None:
        """End the service with this error; the first one counts."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    # -- the brokers at the start ----------------------------------------------------------------------------------

    async def _reach_brokers(self) -> None:
        """Go round the bootstrap servers until one answers, however long that takes."""
        while True:
            try:
                await self._topics.refresh(self._settings.other_topics)
            except AuthenticationFailed as error:
                # Told by the cluster, once: credentials may be being rotated, so it is tried on.
                self._problem = str(error)
                await asyncio.sleep(self._backoff.next())
            except PeerError as error:
                wait = self._backoff.next()
                self._problem = f"no broker answers: {error}"
                log.warning(f"no broker answers, trying again in {wait:.1f} s: {error}")
                await asyncio.sleep(wait)
            else:
                break
        self._refuse_missing()

    def _refuse_missing(self) -> None:
        """Raises `ConfigError` for topics that are not there, or not ours to read."""
        for name, setting in self._settings.other_topics.items():
            info = self._cluster.metadata.topics.get(name)
            kind = "dead-letter topic" if setting == "dead_letters.topic" else "output topic"
            if info is None or info.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise ConfigError(
                    f"{kind} {name!r} does not exist on this cluster: create it, or correct "
                    f"{setting}; it is never created by itself"
                )
            if info.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                why = describe(info.error)
                raise ConfigError(f"{kind} {name!r}: {why}: this user needs DESCRIBE and WRITE on it")
        for name, code in self._topics.missing():
            if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise ConfigError(f"topic {name!r}: {describe(code)}: this user needs DESCRIBE and READ on it")
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                setting = "assign.partitions" if self._settings.assigned else "group.topics"
                raise ConfigError(f"topic {name!r} does not exist on this cluster: create it, or correct {setting}")

    # -- what the workers get --------------------------------------------------------------------------------------

    def _configure(self, settings: Settings, worker: int, turn: int) -> Configure:
        token = self._tokens.latest if self._tokens is not None else None
        brokers = max(1, len(self._cluster.metadata.brokers))
        transactional_id = self._transactional_ids.of(worker, turn) if settings.producing.in_transactions else ""
        return configure(settings, worker, self._topics.subscribed(), token, brokers, transactional_id)

    def _handling(self, topic: str) -> TopicHandling:
        handler = self._settings.handler_of(topic)
        return TopicHandling(handler.on_failure == "halt", handler.mode == "batch", handler.handler_timeout_ms)

    def _is_steady(self) -> bool:
        return self._source.steady and not self._stopping

    def _kept_elsewhere(self, topic: str) -> bool:
        keepers = self._templates.keepers
        return bool(keepers) and self._settings.handler_of(topic).entrypoint in keepers

    def _put_in_force(self, settings: Settings) -> None:
        """After a reload: what of it the supervisor itself goes by."""
        self._settings = settings
        self._fetchers.deaths.max_crashes = settings.workers.max_crashes
        self._recycler.limits = self._balancer.settings = settings.workers
        self._snapshot.show(settings)
        logs.adjust(settings.log.level, settings.log.format)

    def _tell_workers(self, login: Token | Password) -> None:
        for process in self._pool.processes():
            process.send(login)

    # -- duties of PID 1 and of a good loop --------------------------------------------------------------------------

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)

    def _told_to_reload(self) -> None:
        if self._stopping or not self._serving:
            log.warning(f"SIGHUP is ignored: the service {'stops' if self._stopping else 'has not begun yet'}")
        else:
            self._reloader.ask()

    def _told_to_stop(self, number: signal.Signals) -> None:
        self._asked_to_stop(number.name)

    def _asked_to_drain(self) -> bool:
        """Like a first SIGTERM. A second one would not wait for what is in hand: that takes a signal."""
        if self._stopping:
            return False
        self._asked_to_stop("asked for over HTTP")
        return True

    def _asked_to_stop(self, why: str) -> None:
        if self._stopping:
            self._stop_at_once(f"{why} again: stopping at once, without waiting for what is in hand")
        elif not self._serving:
            log.info(f"{why}: stopping before anything was begun")
            self._stopping = True
            self._end()
        else:
            log.info(f"{why}: {self._source.words.leaving}")
            self._stopping = True
            self._source.leave(f"{why} at {socket.gethostname()}")
            # The group may be in the middle of a rebalance that waits for another member's drain, for minutes.
            group = self._settings.group
            budget = (group.drain_timeout_ms + group.commit_timeout_ms) / 1000 + _EXIT_GRACE
            asyncio.get_running_loop().call_later(
                budget, self._stop_at_once, f"{self._source.words.overdue} after {budget:.0f} s: stopping nevertheless"
            )

    def _learn_ends(self, partitions: Collection[Partition]) -> None:
        self._start(self._ending.learn(list(partitions)))

    async def _end_by_itself(self) -> None:
        why = await self._ending.wait()
        if not self._stopping:
            self._asked_to_stop(why)

    def _stop_at_once(self, why: str) -> None:
        if self._source.over:
            return
        log.warning(why)
        self._hurried = True
        self._source.hurry()
        self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _sweep(self) -> None:
        """Reap orphans that ended up with us, as PID 1 must."""
        while True:
            reap_strangers(lambda pid: self._pool.owns(pid) or (self._tokens is not None and self._tokens.owns(pid)))
            await asyncio.sleep(_SWEEP_INTERVAL)

    async def _feel_the_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_BEAT)
            late = loop.time() - began - _BEAT
            self._loop_lag = max(late, self._loop_lag * 0.95)

    def status(self) -> Status:
        """The snapshot of this instant."""
        no_token = self._tokens.problem if self._tokens is not None else None
        return self._snapshot.take(self._problem, no_token or self._cluster.refusal, self._stopping, self._loop_lag)
