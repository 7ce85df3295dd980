"""Rates that workers have together: dealt out to this pod's workers by what they use, and divided by the number of the
group's members.

`deal` decides, and is pure. Whoever uses less than its share leaves the rest to those that wait; each keeps a little
more than it uses, so that it can begin at once. Together the shares are never more than the rate.

The number of members is that of the group as its coordinator describes it, asked for now and then and after every
rebalance, over connections of its own: a request behind a JoinGroup would wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from kunicorn.errors import PeerError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Rate, Rates, RateUse
from kunicorn.kafka.admin import GroupAdmin
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.observe import logs
from kunicorn.observe.status import RateStatus
from kunicorn.settings import Settings
from kunicorn.settings.limits import RateLimitSettings
from kunicorn.supervisor.connections import Connections, cluster_of
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.workers.pool import Pool
from kunicorn.supervisor.workers.process import WorkerProcess

log = logs.get("kunicorn.rates")

_DEAL_SECONDS = 1.0
_DESCRIBE_SECONDS = 30.0
_AGAIN_SECONDS = 5.0
_HEADROOM = 1.25
"""So many times what it uses does a worker keep of its share that does not need it."""
_LEAST = 0.05
"""And so much of an equal share, however little it uses."""
_SAME = 0.01
"""A share that differs by less is not told anew."""


class Use(NamedTuple):
    """What a worker uses of its share."""

    per_second: float
    waited: bool
    """Records waited for more."""


def deal(total: float, uses: Sequence[Use | None]) -> list[float]:
    """Shares of a rate, one for each worker. None: what it will use nobody knows yet."""
    wants = [_want(total, use, len(uses)) for use in uses]
    shares, left = [0.0] * len(uses), total
    for behind, at in enumerate(sorted(range(len(uses)), key=lambda at: wants[at])):
        shares[at] = min(wants[at], left / (len(uses) - behind))
        left -= shares[at]
    return [share + max(0.0, left) / len(uses) for share in shares]


def _want(total: float, use: Use | None, workers: int) -> float:
    if use is None or use.waited:
        return total
    # Below nothing where a long call gives back what it took before: the others would get what it owes them.
    return min(total, max(0.0, use.per_second) * _HEADROOM + total * _LEAST / workers)


class RateShares:
    """The rates of this pod. Caller: the service."""

    def __init__(self, in_force: SettingsInForce, connections: Connections, pool: Pool) -> None:
        self._in_force = in_force
        self._connections = connections
        self._pool = pool
        self._members = 1
        """As the coordinator described the group last."""
        self._refusal = int(ErrorCode.NONE)
        """The error that it answered with last."""
        self._seen: dict[int, tuple[float, Mapping[int, RateUse]]] = {}
        """By pid: when the Pong came that was looked at last, and what it told, by handler."""
        self._uses: dict[int, Mapping[int, Use]] = {}
        """By pid and handler: what it used between the last two."""
        self._told: dict[int, Mapping[int, float]] = {}
        """By pid: the rates that it knows of."""

    def first_share(self) -> float:
        """Share of a rate that a worker starts with."""
        members = [limit.members for limit in self._limits().values() if limit.members is not None]
        return 1.0 / (max(1, self._in_force.workers.count) * max(self._members, *members, 1))

    def of_pod(self, limit: RateLimitSettings) -> float:
        """What this pod has of the rate, a second."""
        return limit.per_second / self.members(limit)

    def members(self, limit: RateLimitSettings) -> int:
        """Number of members that the rate is divided by."""
        return limit.members or self._members

    def status(self) -> tuple[RateStatus, ...]:
        """The rates that workers have together."""
        return tuple(
            RateStatus(self._settings.every_handler[number].entrypoint, self.of_pod(limit), self.members(limit))
            for number, limit in self._limits().items()
        )

    def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        """The tasks for as long as there are workers."""
        return [self._keep_dealing(), *([] if self._settings.assigned else [self._keep_describing()])]

    @property
    def _settings(self) -> Settings:
        return self._in_force.settings

    def _limits(self) -> dict[int, RateLimitSettings]:
        """Limits that are divided, by the handler's number."""
        limits = ((number, handler.rate_limit) for number, handler in enumerate(self._settings.every_handler))
        return {number: limit for number, limit in limits if limit is not None and limit.is_divided}

    # -- over workers ------------------------------------------------------------------------------------------------

    async def _keep_dealing(self) -> None:
        while True:
            self.deal()
            await asyncio.sleep(_DEAL_SECONDS)

    def deal(self) -> None:
        """Tell the workers their shares, where these are others than before."""
        if not (limits := self._limits()):
            return
        processes = [each for each in self._pool.processes() if each.ready_at is not None and not each.is_dead()]
        for process in processes:
            self._note_use(process)
        alive = {process.pid for process in processes}
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in alive}
        self._uses = {pid: use for pid, use in self._uses.items() if pid in alive}
        self._told = {pid: told for pid, told in self._told.items() if pid in alive}
        shares: dict[int, dict[int, float]] = {process.pid: {} for process in processes}
        for number, limit in limits.items():
            uses = [self._use_of(process, number, limit) for process in processes]
            for process, share in zip(processes, deal(self.of_pod(limit), uses), strict=True):
                shares[process.pid][number] = share
        # Who has to give comes before who gets: together they never have more.
        for process in sorted(processes, key=lambda each: self._gain(each.pid, shares[each.pid])):
            self._tell(process, shares[process.pid], limits)

    def _note_use(self, process: WorkerProcess) -> None:
        """Compare what the worker tells with what it told before: both count from its start."""
        if process.pong is None or process.pong_at is None:
            return
        now = {each.handler: each for each in process.pong.rates}
        at, before = self._seen.get(process.pid, (0.0, {}))
        if process.pong_at == at:
            return
        self._seen[process.pid] = process.pong_at, now
        seconds = process.pong_at - at
        self._uses[process.pid] = {
            number: Use((each.used - before[number].used) / seconds, each.waits != before[number].waits)
            for number, each in now.items()
            if number in before
        }

    def _use_of(self, process: WorkerProcess, number: int, limit: RateLimitSettings) -> Use | None:
        # Of keys nobody knows who will have which: all workers have the same rate for each.
        return self._uses.get(process.pid, {}).get(number) if limit.per == "service" else None

    def _gain(self, pid: int, shares: Mapping[int, float]) -> float:
        told = self._told.get(pid, {})
        return sum(share - told.get(number, share) for number, share in shares.items())

    def _tell(
        self, process: WorkerProcess, shares: Mapping[int, float], limits: Mapping[int, RateLimitSettings]
    ) -> None:
        told = self._told.get(process.pid, {})
        news = {n: share for n, share in shares.items() if abs(share - told.get(n, 0.0)) > _SAME * share}
        if not news:
            return
        self._told[process.pid] = {**told, **news}
        bursts = {n: limits[n].whole_burst * share / limits[n].per_second for n, share in news.items()}
        process.send(Rates([Rate(n, share, bursts[n]) for n, share in news.items()]))

    # -- over members ------------------------------------------------------------------------------------------------

    async def _keep_describing(self) -> None:
        member, settings = self._connections.member, self._settings
        cluster = cluster_of(settings.kafka, self._connections.tokens)
        admin = GroupAdmin(cluster, settings.group.id, settings.kafka.request_timeout_ms / 1000)
        generation, due = member.generation, 0.0
        try:
            while True:
                asks = any(limit.members is None for limit in self._limits().values())
                if asks and member.stable and (clock.now() >= due or member.generation != generation):
                    generation = member.generation
                    due = clock.now() + await self._describe(admin)
                await asyncio.sleep(_DEAL_SECONDS)
        finally:
            await cluster.close()

    async def _describe(self, admin: GroupAdmin) -> float:
        """Ask for the group's members; seconds until it is to be asked again."""
        try:
            described = await admin.describe()
        except PeerError as error:
            log.warning(f"the group's members cannot be counted, rates are divided by {self._members}: {error}")
            admin.forget()
            return _AGAIN_SECONDS
        self._tell_refusal(described.error)
        if described.error or not described.members:
            return _AGAIN_SECONDS
        if len(described.members) != self._members:
            log.info(f"rates are divided by {len(described.members)}, the group's members")
            self._members = len(described.members)
        return _DESCRIBE_SECONDS

    def _tell_refusal(self, error: int) -> None:
        """Log the coordinator's refusal, once until it answers otherwise: each pod has the rate that it divides."""
        before, self._refusal = self._refusal, error
        if error and error != before:
            remedy = fault(error).remedy(group=f"group {self._settings.group.id!r}", rights="DESCRIBE")
            log.warning(
                f"the group's members cannot be counted, rates are divided by {self._members}: {describe(error)}; "
                f"{remedy}; or set rate_limit.members"
            )
