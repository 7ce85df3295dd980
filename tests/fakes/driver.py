"""Our membership as the service puts it together, with played workers or none: partitions are assigned, resolved,
handed out and given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Any

from kunicorn.group.states import State
from kunicorn.kafka.auth import Sasl, Security
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.membership.driver import GroupAssignment
from kunicorn.supervisor.membership.source import Resolver
from kunicorn.supervisor.offsets.start_offsets import Brokers
from kunicorn.supervisor.topics import Topics
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
    return Settings.model_validate(
        {
            "kafka": {"bootstrap_servers": [bootstrap]},
            "group": {**GROUP, **json.loads(group)},
            "handler": {"entrypoint": "shop:handle"},
        }
    )


class Driver:
    """One member. `start` and `stop` it in a loop whose clock is turned."""

    def __init__(self, broker: CoordinatorBroker, *, workers: int = 0, sasl: Sasl | None = None, **group: Any) -> None:
        self.settings = _settings(str(broker.address), json.dumps(group))
        self.fatal: list[Exception] = []
        self.leases: list[int] = []
        self.metrics = Metrics()
        self.cluster = Cluster(
            [str(broker.address)], client_id="the-client", request_timeout=30.0, connect_timeout=10.0, rng=Random(1),
            security=Security() if sasl is None else Security("SASL_PLAINTEXT", sasl=sasl),
        )  # fmt: skip
        consumer = self.settings.group.group_protocol == "consumer"
        self.topics = Topics(self.settings.group.topics, self.cluster, brokers_match=consumer)
        self.stage = Stage(workers=0)
        self.coordinator = coordinator = Coordinator(self.cluster, "g")
        self.brokers = brokers = Brokers(self.settings, self.cluster, coordinator, self.topics)
        self.fetchers = fetchers = self.stage.fetchers
        self.workers = [ObedientWorker(number, fetchers) for number in range(workers)]
        self.stage.pool.workers |= {worker.number: worker for worker in self.workers}
        self.source = GroupAssignment(
            self.settings, coordinator, brokers, self.topics, fetchers, self.metrics, self.leases.append,
            self.fatal.append,
        )  # fmt: skip
        self._resolver = Resolver(
            self.source, brokers, fetchers, self.settings.group.auto_offset_reset, (), self.fatal.append
        )
        fetchers.resolve = self._resolver.resolve
        fetchers.table.topic_id = self.topics.topic_id
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def member(self) -> Any:
        """The state machine."""
        return self.source._membership.member

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
        """Partitions lost so far."""
        return int(next(iter(self.metrics.partitions_lost.collect())).samples[0].value)

    async def start(self) -> None:
        """Know the topics, and begin to be a member."""
        await self.topics.refresh()
        self._tasks = [asyncio.create_task(self._run())]
        self._tasks += [asyncio.create_task(work) for work in self.source.works()]  # type: ignore[arg-type]

    async def _run(self) -> None:
        await self.source.run()

    async def stop(self) -> None:
        """Leave in order."""
        self.source.leave("the test is over")
        await asyncio.wait_for(asyncio.shield(self._tasks[0]), 200)
        await self.vanish()

    async def vanish(self) -> None:
        """Nothing is heard of it any more."""
        self._resolver.stop()
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.close()
        for worker in self.workers:
            worker.ledger.close()
        # The service would have ended with it.
        for end in ends:
            if isinstance(end, Exception):
                raise end


async def until(what: Any, within: float = 120.0, every: float = 0.05) -> None:
    """Turn the clock until it is true; raises `AssertionError` after `within` seconds of it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not what():
        assert loop.time() < deadline, f"waited {within:g} s in vain"
        await asyncio.sleep(every)
