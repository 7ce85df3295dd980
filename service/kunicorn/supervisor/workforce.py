"""The workers of the service, and everybody who looks after them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kunicorn.ipc import clock
from kunicorn.ipc.messages import Configure, Password, Token
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.settings import Settings, shown
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.partitions.assignment import Fetchers, TopicHandling
from kunicorn.supervisor.partitions.balancer import Balancer
from kunicorn.supervisor.partitions.watchdog import Timeouts
from kunicorn.supervisor.workers.config import TransactionalIds, configure
from kunicorn.supervisor.workers.pool import Blueprint, Pool
from kunicorn.supervisor.workers.rolling import Recycler, Reloader, Replacer
from kunicorn.supervisor.workers.spawn import Spawned, preload
from kunicorn.supervisor.workers.template import Templates


class Workforce:
    """Made once; nothing is started before `Pool.want`. Knows the settings in force, which a reload replaces."""

    def __init__(
        self,
        settings: Settings,
        template: Spawned,
        reread: Callable[[], Settings],
        connections: Connections,
        metrics: Metrics,
        fatal: Callable[[Exception], None],
    ) -> None:
        """`template` was told of these settings, `reread` is the `Reloader`'s, `fatal` takes what ends the service."""
        self.settings = settings
        self.shown = shown(settings)
        """Of the settings in force, what may be shown: no secrets."""
        self._connections = connections
        self._transactional_ids = TransactionalIds(settings)
        self.templates = Templates(template, preload(settings), metrics, fatal)
        self.fetchers = fetchers = Fetchers(settings.workers.max_crashes, metrics, self._handling)
        start_seconds = settings.workers.start_timeout_ms / 1000
        blueprint = Blueprint(1, self.templates.current, partial(self._configure, settings), start_seconds)
        self.pool = pool = Pool(settings.workers.count, self.templates, blueprint, fetchers, metrics, fatal)
        self.replacer = Replacer(pool, fetchers, metrics, settings.group.drain_timeout_ms / 1000)
        self.reloader = Reloader(
            settings,
            reread,
            self._configure,
            self._put_in_force,
            self.templates,
            self.replacer,
            fetchers.try_again,
            metrics,
        )
        self._timeouts = Timeouts(pool, fetchers, metrics, lambda topic: self._handling(topic).timeout_ms)
        self._recycler = Recycler(pool, self.replacer, settings.workers)
        delayed = settings.retry_topics.keys()
        self.balancer = Balancer(fetchers, pool, connections.brokers, settings.workers, delayed)
        fetchers.pool = pool
        fetchers.table.topic_id = connections.topics.topic_id
        fetchers.table.kept_elsewhere = self._kept_elsewhere

    def watches(self) -> Sequence[Awaitable[None]]:
        """What has to run as long as there are workers."""
        return [
            self.pool.watch(),
            self._timeouts.watch(),
            self._recycler.watch(),
            self.balancer.watch(),
            self.reloader.watch(),
        ]

    def tell(self, login: Token | Password) -> None:
        """Every worker logs in with this from now on."""
        for process in self.pool.processes():
            process.send(login)

    async def stop(self, grace: float) -> None:
        """End every worker within so many seconds, and let the template exit."""
        await self.pool.stop(clock.now() + grace)
        self.templates.stop()

    def close(self) -> None:
        """Once nothing can start a worker any more."""
        self._transactional_ids.close()

    def _configure(self, settings: Settings, worker: int, turn: int) -> Configure:
        tokens = self._connections.tokens
        brokers = max(1, len(self._connections.cluster.metadata.brokers))
        transactional_id = self._transactional_ids.of(worker, turn) if settings.producing.in_transactions else ""
        token = tokens.latest if tokens is not None else None
        return configure(settings, worker, self._connections.topics.subscribed(), token, brokers, transactional_id)

    def _handling(self, topic: str) -> TopicHandling:
        handler = self.settings.handler_of(topic)
        return TopicHandling(handler.on_failure == "halt", handler.mode == "batch", handler.handler_timeout_ms)

    def _kept_elsewhere(self, topic: str) -> bool:
        keepers = self.templates.keepers
        return bool(keepers) and self.settings.handler_of(topic).entrypoint in keepers

    def _put_in_force(self, settings: Settings) -> None:
        """After a reload: what of it the supervisor itself goes by."""
        self.settings, self.shown = settings, shown(settings)
        self.fetchers.deaths.max_crashes = settings.workers.max_crashes
        self._recycler.limits = self.balancer.settings = settings.workers
        logs.adjust(settings.log.level, settings.log.format)
