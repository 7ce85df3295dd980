"""The gauges: one snapshot of the service as Prometheus series. Pure; runs in a thread, off the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from kunicorn.group.partitions import PartitionState
from kunicorn.observe import catalogue as c
from kunicorn.observe import group_catalogue as g
from kunicorn.observe import health
from kunicorn.observe.catalogue import Declared
from kunicorn.observe.status import GroupStatus, PartitionStatus, Status, WorkerStatus

Value = float | int | None
_UP = frozenset({"ready", "draining"})
_WORKER_STATES = ("starting", "ready", "draining", "backing-off", "idle")
_NO_GENERATION = -1

_PARTITION_SERIES: tuple[tuple[Declared, Callable[[PartitionStatus], Value]], ...] = (
    (g.LAG, lambda p: p.lag),
    (g.LAG_SECONDS, lambda p: p.lag_seconds),
    (g.POSITION, lambda p: p.position),
    (g.COMMITTED, lambda p: p.committed),
    (g.LOG_END, lambda p: p.log_end),
)

_ASSIGNED_SERIES: tuple[tuple[Declared, Callable[[Status], Value]], ...] = (
    (g.LAG_MAX, lambda s: max((p.lag for p in s.partitions if p.lag is not None), default=None)),
    (c.INFLIGHT, lambda s: sum(w.in_flight for w in s.workers)),
    (c.INFLIGHT_AGE, lambda s: max((p.in_hand_age for p in s.partitions if p.in_hand_age is not None), default=None)),
    (g.ASSIGNED, lambda s: len(s.partitions)),
    (g.LAST_POLL, lambda s: max((w.runner_age for w in s.workers if w.runner_age is not None), default=None)),
)

_GROUP_SERIES: tuple[tuple[Declared, Callable[[GroupStatus], Value]], ...] = (
    (g.GENERATION, lambda m: None if m.generation == _NO_GENERATION else m.generation),
    (g.HEARTBEAT_AGE, lambda m: m.heartbeat_age),
    (g.SESSION_TIMEOUT, lambda m: m.session_timeout),
    (g.LEASE_LEFT, lambda m: m.lease_left),
    (g.REBALANCE_AGE, lambda m: min((r.age for r in m.last_rebalances), default=None)),
)

_SERVICE_SERIES: tuple[tuple[Declared, Callable[[Status], Value]], ...] = (
    (c.WORKERS_PAUSED, lambda s: sum(w.paused_by_lease for w in s.workers)),
    (c.LIVE, lambda s: int(health.live(s).ok)),
    (c.READY, lambda s: int(health.ready(s).ok)),
    (c.BROKERS_REACHED, lambda s: int(s.brokers_reached)),
    (c.LOOP_LAG, lambda s: s.loop_lag),
    (c.UPTIME, lambda s: s.uptime),
)

_WORKER_SERIES: tuple[tuple[Declared, Callable[[WorkerStatus], Value]], ...] = (
    (c.WORKER_UP, lambda w: int(w.state in _UP)),
    (c.WORKER_RSS, lambda w: w.rss_bytes),
    (c.WORKER_PARTITIONS, lambda w: w.partitions),
    (c.WORKER_LOAD, lambda w: w.load),
)


class Gauges:
    """A snapshot as a Prometheus collector. A value that is not known is absent: 0 would be a statement."""

    def __init__(self, status: Status, partition_metrics_max: int) -> None:
        self._status = status
        self._partitions = status.partitions if len(status.partitions) <= partition_metrics_max else ()

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder."""
        status, group_id = self._status, self._status.group_id
        yield _family(c.BUILD_INFO, [((status.version,), 1)])
        yield _family(g.PARTITIONS, self._by_state())
        for declared, of_service in _SERVICE_SERIES:
            yield _family(declared, [((), of_service(status))])
        for declared, of_assigned in _ASSIGNED_SERIES:
            yield _family(declared, [((group_id,), of_assigned(status))])
        yield _family(c.WAITING, self._waiting())
        yield _family(c.WORKERS, self._places())
        if status.group is not None:
            yield from self._of_group(status.group)
        if status.commit is not None:
            yield _family(g.COMMIT_AGE, [((group_id,), status.commit.last_age)])
        for declared, of_worker in _WORKER_SERIES:
            yield _family(declared, [((str(worker.worker),), of_worker(worker)) for worker in status.workers])

    def _of_group(self, group: GroupStatus) -> Iterator[Metric]:
        yield _family(g.GROUP_INFO, [((group.group_id, group.protocol, group.instance_id or ""), 1)])
        yield _family(g.GROUP_STATE, [((group.group_id, group.state), 1)])
        for declared, of_group in _GROUP_SERIES:
            yield _family(declared, [((group.group_id,), of_group(group))])

    def _by_state(self) -> list[tuple[tuple[str, ...], Value]]:
        # Every state is always there, so that an alert on a state that never occurred has a series to look at.
        counts = Counter(partition.state for partition in self._status.partitions)
        states = [state.value for state in PartitionState]
        return [((self._status.group_id, state), counts[state]) for state in states]

    def _waiting(self) -> list[tuple[tuple[str, ...], Value]]:
        workers = self._status.workers
        return [
            ((self._status.group_id, reason), sum(worker.waiting.get(reason, 0) for worker in workers))
            for reason in ("retry", "dead_letter", "retry_topic", "delay", "delivery")
        ]

    def _places(self) -> list[tuple[tuple[str, ...], Value]]:
        counts = Counter(worker.state for worker in self._status.workers)
        return [((state,), counts[state]) for state in _WORKER_STATES]

    def partition_lines(self) -> Iterator[str]:
        """The partitions' series as both text formats have them, written here: with a thousand partitions they are most
        of a page, and Prometheus's own encoder sorts, checks and escapes the same labels for each of them anew.
        """
        group = _escaped(self._status.group_id)
        labels = [
            f'{{group="{group}",partition="{p.partition}",topic="{_escaped(p.topic)}"}} ' for p in self._partitions
        ]
        for declared, read in _PARTITION_SERIES:
            yield f"# HELP {declared.name} {_escaped(declared.meaning)}"
            yield f"# TYPE {declared.name} gauge"
            for label, partition in zip(labels, self._partitions, strict=True):
                if (value := read(partition)) is not None:
                    yield f"{declared.name}{label}{float(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _family(declared: Declared, values: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    family = GaugeMetricFamily(declared.name, declared.meaning, labels=declared.labels)
    for labels, value in values:
        if value is not None:
            family.add_metric(labels, value)
    return family
