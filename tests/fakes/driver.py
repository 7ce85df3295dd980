"""Our membership as the service puts it together, with played workers or none: partitions are assigned, resolved,
handed out and given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any

from kunicorn.errors import ServiceError
from kunicorn.group.states import State
from kunicorn.kafka.auth import Sasl, Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.observe.catalogue import PARTITIONS_LOST
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.membership.driver import GroupAssignment
from kunicorn.supervisor.membership.source import StartLookup
from kunicorn.supervisor.tasks import ServiceTasks
from tests.fakes.complete_settings import settings_of
from tests.fakes.coordinator_broker import CoordinatorBroker
from tests.fakes.obedient_worker import ObedientWorker
from tests.fakes.stage import Stage

GROUP: Mapping[str, Any] = {
    "id": "g",
    "topics": ["orders"],
    "session_timeout_ms": 10_000,
    "max_poll_interval_ms": 60_000,
    "drain_timeout_ms": 5_000,
    "commit_timeout_ms": 5_000,
    "allow_short_session_timeout": True,
}


@cache
def _settings(bootstrap: str, group: str) -> Settings:
    """Checked once: some tests start a member a thousand times."""
    return settings_of(kafka={"bootstrap_servers": [bootstrap]}, group={**GROUP, **json.loads(group)})


class Driver:
    """One member. `start` and `stop` it in a loop whose clock is turned."""

    def __init__(
        self, broker: CoordinatorBroker, *, workers: int = 0, sasl: Sasl | None = None, pool: Any = None,
        client_id: str = "the-client", **group: Any,
    ) -> None:  # fmt: skip
        self.settings = _settings(str(broker.address), json.dumps(group))
        self.tasks = ServiceTasks()
        self.metrics = Metrics()
        self.cluster = Cluster(
            [str(broker.address)], client_id=client_id, timeouts=Timeouts(request=30.0, connect=10.0), rng=Random(1),
            security=Security() if sasl is None else Security("SASL_PLAINTEXT", sasl=sasl),
        )  # fmt: skip
        member = MemberState(instance_id=self.settings.group.group_instance_id)
        self.connections = Connections(self.settings, self.cluster, member)
        self.topics, self.coordinator = self.connections.topics, self.connections.coordinator
        self.brokers = self.connections.brokers
        self.stage = Stage(workers=0, topics=self.topics, pool=pool)
        self.assignment = assignment = self.stage.assignment
        self.workers = [ObedientWorker(number, assignment) for number in range(workers)]
        self.stage.pool.workers |= {worker.number: worker for worker in self.workers}
        self.source = GroupAssignment(self.settings, self.connections, assignment, self.tasks, self.metrics)
        self._start_lookup = StartLookup(self.settings, self.source, self.brokers, assignment, self.tasks)
        self._serving: asyncio.Task[None] | None = None

    @property
    def leases(self) -> list[int]:
        """Until when workers were told to start records."""
        leases: list[int] = self.stage.pool.leases
        return leases

    @property
    def fatal(self) -> list[Exception]:
        """What would have ended the service."""
        return [] if self.tasks.error is None else [self.tasks.error]

    @property
    def member(self) -> Any:
        """The state machine."""
        return self.source._driver.member

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What it owns."""
        owned: frozenset[TopicPartition] = self.member.owned
        return owned

    @property
    def stable(self) -> bool:
        """Whether it is a member and nothing is under way."""
        return bool(self.member.state is State.STABLE)

    @property
    def lost(self) -> int:
        """Partitions lost so far. The one counter is asked: the whole registry reads files of the process each time."""
        [family] = self.metrics._counters[PARTITIONS_LOST.name].collect()
        return int(family.samples[0].value)

    async def start(self) -> None:
        """Know the topics, and begin to be a member."""
        await self.topics.refresh()
        await self.start_without_looking()

    async def start_without_looking(self) -> None:
        """Begin to be a member with the topics that it knows."""
        self.tasks.start(self._start_lookup.run(self.assignment.table.without_start))
        self._serving = self.tasks.start(self.source.run())
        for work in self.source.works():
            self.tasks.start(work)

    async def stop(self) -> None:
        """Leave in order."""
        self.source.leave("the test is over")
        assert self._serving is not None
        over, _ = await asyncio.wait({self._serving}, timeout=200)
        assert over, "it has not left within 200 s"
        await self.vanish()

    async def vanish(self) -> None:
        """Nothing is heard of it any more."""
        self._start_lookup.stop()
        assert await self.tasks.cancel(10) == []
        await self.cluster.close()
        for worker in self.workers:
            worker.ledger.close()
        if self.tasks.error is not None and not isinstance(self.tasks.error, ServiceError):
            raise self.tasks.error


async def until(what: Any, within: float = 120.0, every: float = 0.05) -> None:
    """Turn the clock until it is true; raises `AssertionError` after `within` seconds of it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not what():
        assert loop.time() < deadline, f"waited {within:g} s in vain"
        await asyncio.sleep(every)
