"""The workers of the service: the blueprints from which they are started (`Blueprints`), and all that starts, replaces
and ends them (`Workforce`). Small: it only puts the parts of `workers` together, above `connections`, which these
may not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from kunicorn.ipc import clock
from kunicorn.ipc.messages import Configure, Password, Token
from kunicorn.observe.metrics import Metrics
from kunicorn.settings import Settings
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.credentials import ClientCertificate, watch_certificate
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.rates import RateShares
from kunicorn.supervisor.workers.config import configure
from kunicorn.supervisor.workers.pool import Arbiter, Blueprint
from kunicorn.supervisor.workers.process import WorkerProcess
from kunicorn.supervisor.workers.rolling import Recycler, Reloader, Replacer
from kunicorn.supervisor.workers.template import Template, Templates
from kunicorn.supervisor.workers.transactions import TransactionalIds


class Blueprints:
    """Makes the blueprint of each revision, with the settings and what is known of the cluster at that moment."""

    def __init__(self, settings: Settings, connections: Connections, rates: RateShares) -> None:
        self.rates = rates
        self._connections = connections
        self._transactional_ids = TransactionalIds(settings)

    def of(self, revision: int, settings: Settings, template: Callable[[], Awaitable[Template]]) -> Blueprint:
        """The blueprint of that revision."""
        start_seconds = settings.workers.start_timeout_ms / 1000
        named = partial(self._transactional_id, settings)
        return Blueprint(revision, template, partial(self._configure, settings), start_seconds, named)

    async def look_for(self, topics: Mapping[str, str]) -> None:
        """Raise `ConfigError` where one of these topics, by name, cannot be written to; with the setting that names
        it."""
        await self._connections.look_for(topics)

    def close(self) -> None:
        """Give the transactional ids back, once nothing can start a worker any more."""
        self._transactional_ids.close()

    def _configure(self, settings: Settings, worker: int, turn: int, inherits: bool) -> Configure:
        tokens = self._connections.tokens
        metadata = self._connections.cluster.metadata
        brokers = max(1, len(metadata.brokers))
        transactional_id = self._transactional_id(settings, worker, turn)
        token = tokens.latest if tokens is not None else None
        topics, share = self._connections.topics.subscribed(), self.rates.first_share()
        known = metadata.cluster_id or ""
        made = configure(settings, worker, topics, token, brokers, transactional_id, share=share, cluster_id=known)
        if inherits and transactional_id and made.producing is not None:
            other = self._transactional_id(settings, worker, turn + 1)
            return msgspec.structs.replace(made, producing=msgspec.structs.replace(made.producing, inherited=other))
        return made

    def _transactional_id(self, settings: Settings, worker: int, turn: int) -> str:
        return self._transactional_ids.of(worker, turn) if settings.producing.in_transactions else ""


class Workforce:
    """Made once; no worker is started before `Pool.want`."""

    def __init__(
        self,
        in_force: SettingsInForce,
        templates: Templates,
        blueprints: Blueprints,
        arbiter: Arbiter,
        metrics: Metrics,
    ) -> None:
        drain_seconds = in_force.settings.group.drain_timeout_ms / 1000
        self.templates = templates
        self.rates = blueprints.rates
        replacer = Replacer(arbiter, metrics, drain_seconds)
        self.reloader = Reloader(in_force, templates, blueprints, replacer, metrics)
        self.recycler = Recycler(replacer, in_force)
        self._blueprints = blueprints
        self._arbiter = arbiter
        self._kafka = in_force.settings.kafka
        self._metrics = metrics

    def keeps(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks from the start on: they keep a template, and a process for every worker that is wanted."""
        return [self.templates.keep(), self._arbiter.fill()]

    def watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks for as long as there are workers."""
        watches = [self._arbiter.watch(), self.recycler.watch(), self.reloader.watch(), *self.rates.works()]
        if self._kafka.security_protocol.endswith("SSL"):
            ends_at = partial(self._metrics.certificate_ends, "kafka")
            watches.append(watch_certificate(ClientCertificate(self._kafka, self._replace_all), ends_at))
        return watches

    async def _replace_all(self, seen_at: float) -> bool:
        """Replace every worker that has started before that time, in order, without a rebalance; whether all successors
        started. Where one does not, this is called again: those that have been replaced by then are left alone."""
        replaced = True
        for slot in self._arbiter.pool.slots:
            if slot.process is None or slot.process.started_at > seen_at:
                continue
            if not await self.recycler.recycle(slot, "the certificate files are others", "certificate"):
                replaced = False
        return replaced

    async def replace_silent(self, worker: WorkerProcess) -> None:
        """Give a worker a successor as its client has lost its partitions, unless another one has its slot by now."""
        slot = self._arbiter.pool.slots[worker.number]
        if slot.process is worker:
            await self.recycler.recycle(slot, "its client has lost its partitions", "silent", worker)

    def owns(self, pid: int) -> bool:
        """Whether that process is a worker or a template, whose exit is watched."""
        return self._arbiter.owns(pid) or self.templates.owns(pid)

    def tell(self, login: Token | Password) -> None:
        """Send every worker the login to use from now on."""
        for process in self._arbiter.pool.processes():
            process.send(login)

    async def stop(self, grace: float) -> None:
        """End every worker within so many seconds, and let the template exit."""
        await self._arbiter.stop(clock.now() + grace)
        self.templates.stop()

    def close(self) -> None:
        """Once nothing can start a worker any more."""
        self._blueprints.close()
