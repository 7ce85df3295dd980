"""Everything at `/metrics`: what is counted, what is gauged, and what handlers count themselves.

The metrics that are counted as things happen, and the rendering of everything at `/metrics`.

One registry, in the supervisor; workers send what changed (`Deltas`) with every Pong. No files are shared between
processes, so a dead worker leaves none behind and takes no count along.

The gauges: one snapshot of the service as Prometheus series. Pure; runs in a thread, off the event loop.

What workers report of their handlers' own metrics, added up: one series where each worker has one.

A worker reports totals since its start. Those of the dead are kept, so that a counter never falls; a gauge is a
statement about now, and ends with its worker. A worker that is killed takes along what it counted in its last seconds.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import DURATION_BUCKETS, Deltas, Family, Pong, Sample
from kunicorn.observe import catalogue as c
from kunicorn.observe import health, logs
from kunicorn.observe.catalogue import Declared, every
from kunicorn.observe.status import GroupStatus, PartitionStatus, Status, WorkerStatus

Value = float | int | None
_UP = frozenset({"ready", "draining"})
_WORKER_STATES = ("starting", "ready", "draining", "backing-off", "idle")
_NO_GENERATION = -1

_PARTITION_SERIES: tuple[tuple[Declared, Callable[[PartitionStatus], Value]], ...] = (
    (c.LAG, lambda p: p.lag),
    (c.LAG_SECONDS, lambda p: p.lag_seconds),
    (c.POSITION, lambda p: p.position),
    (c.COMMITTED, lambda p: p.committed),
    (c.LOG_END, lambda p: p.log_end),
)

_ASSIGNED_SERIES: tuple[tuple[Declared, Callable[[Status], Value]], ...] = (
    (c.LAG_MAX, lambda s: max((p.lag for p in s.partitions if p.lag is not None), default=None)),
    (c.INFLIGHT, lambda s: sum(w.in_flight for w in s.workers)),
    (c.INFLIGHT_AGE, lambda s: max((p.in_hand_age for p in s.partitions if p.in_hand_age is not None), default=None)),
    (c.ASSIGNED, lambda s: len(s.partitions)),
    (c.LAST_POLL, lambda s: max((w.runner_age for w in s.workers if w.runner_age is not None), default=None)),
)

_GROUP_SERIES: tuple[tuple[Declared, Callable[[GroupStatus], Value]], ...] = (
    (c.GENERATION, lambda m: None if m.generation == _NO_GENERATION else m.generation),
    (c.HEARTBEAT_AGE, lambda m: m.heartbeat_age),
    (c.SESSION_TIMEOUT, lambda m: m.session_timeout),
    (c.LEASE_LEFT, lambda m: m.lease_left),
    (c.REBALANCE_AGE, lambda m: min((r.age for r in m.last_rebalances), default=None)),
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
        yield _family(c.PARTITIONS, self._by_state())
        for declared, of_service in _SERVICE_SERIES:
            yield _family(declared, [((), of_service(status))])
        for declared, of_assigned in _ASSIGNED_SERIES:
            yield _family(declared, [((group_id,), of_assigned(status))])
        yield _family(c.WAITING, self._waiting())
        yield _family(c.WORKERS, self._places())
        if status.group is not None:
            yield from self._of_group(status.group)
        if status.commit is not None:
            yield _family(c.COMMIT_AGE, [((group_id,), status.commit.last_age)])
        for declared, of_worker in _WORKER_SERIES:
            yield _family(declared, [((str(worker.worker),), of_worker(worker)) for worker in status.workers])

    def _of_group(self, group: GroupStatus) -> Iterator[Metric]:
        yield _family(c.GROUP_INFO, [((group.group_id, group.protocol, group.instance_id or ""), 1)])
        yield _family(c.GROUP_STATE, [((group.group_id, group.state), 1)])
        for declared, of_group in _GROUP_SERIES:
            yield _family(declared, [((group.group_id,), of_group(group))])

    def _by_state(self) -> list[tuple[tuple[str, ...], Value]]:
        # Every state is always there, so that an alert on a state that never occurred has a series to look at.
        counts = Counts(partition.state for partition in self._status.partitions)
        states = [state.value for state in PartitionState]
        return [((self._status.group_id, state), counts[state]) for state in states]

    def _waiting(self) -> list[tuple[tuple[str, ...], Value]]:
        workers = self._status.workers
        return [
            ((self._status.group_id, reason), sum(worker.waiting.get(reason, 0) for worker in workers))
            for reason in ("retry", "dead_letter", "retry_topic", "delay", "delivery")
        ]

    def _places(self) -> list[tuple[tuple[str, ...], Value]]:
        counts = Counts(worker.state for worker in self._status.workers)
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


_KEPT = frozenset({"counter", "histogram", "summary"})
"""Types that count: a dead worker's share stays."""
_MOST_SERIES = 10_000
_MERGES: dict[str, Callable[[float, float], float]] = {"sum": lambda a, b: a + b, "min": min, "max": max}

_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""


class Families:
    """Caller: supervisor, from its event loop; `collect` runs in another thread meanwhile."""

    def __init__(self, taken: Collection[str]) -> None:
        """`taken`: names that are ours and not a handler's to use."""
        self._taken = frozenset(taken)
        self._lock = Lock()
        self._living: dict[int, list[Family]] = {}
        self._past: dict[str, Family] = {}
        self._complaints: set[str] = set()

    def report(self, pid: int, families: list[Family]) -> None:
        """This worker's metrics, all of them."""
        for family in families:
            if family.name in self._taken:
                self._complain(f"the handler's metric {family.name} is left out: the service has one of that name")
        with self._lock:
            self._living[pid] = [family for family in families if family.name not in self._taken]

    def gone(self, pid: int) -> None:
        """The worker is dead: what it has counted stays."""
        with self._lock:
            for family in self._living.pop(pid, ()):
                if family.kind in _KEPT:
                    self._past[family.name] = _merged([*_same(self._past.get(family.name), family), family])
            series = sum(len(family.samples) for family in self._past.values())
            if series > _MOST_SERIES:
                self._past.clear()
                self._complain(
                    f"counters of workers that have ended are dropped: they came to more than {_MOST_SERIES} series; "
                    f"use labels with few values in the handler's metrics"
                )

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder, in another thread."""
        with self._lock:
            every = [family for families in self._living.values() for family in families]
            past = dict(self._past)
        for name in sorted({family.name for family in every} | past.keys()):
            own = [family for family in every if family.name == name]
            kind = own[-1].kind if own else past[name].kind
            same = [family for family in (*own, *filter(None, [past.get(name)])) if family.kind == kind]
            yield _metric(_merged(same))

    def _complain(self, text: str) -> None:
        if text not in self._complaints and len(self._complaints) < 100:
            self._complaints.add(text)
            log.warning(text)


def _same(past: Family | None, now: Family) -> Iterable[Family]:
    """What was counted before, unless a reload has made another metric of it."""
    return [past] if past is not None and past.kind == now.kind else []


def _merged(families: list[Family]) -> Family:
    values: dict[_Series, float] = {}
    latest = families[0]
    merge = _MERGES.get(latest.merge, _MERGES["sum"])
    for family in families:
        for sample in family.samples:
            series = (sample.name, tuple(sorted(sample.labels.items())))
            values[series] = merge(values[series], sample.value) if series in values else sample.value
    samples = [Sample(name, dict(labels), value) for (name, labels), value in values.items()]
    return Family(latest.name, latest.kind, latest.documentation, samples, latest.merge)


def _metric(family: Family) -> Metric:
    metric = Metric(family.name, family.documentation, family.kind)
    for sample in family.samples:
        metric.add_sample(sample.name, sample.labels, sample.value)
    return metric


log = logs.get("kunicorn.metrics")

_OPENMETRICS = "application/openmetrics-text"
_EOF = b"# EOF\n"
"""The last line of OpenMetrics."""
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: requests to a broker."""
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
"""Seconds: what waits for handlers and for other members."""


_TOTALS = ("records", "failures", "retries", "skipped")

_GROUPS_OWN = frozenset(
    declared.name
    for declared in (
        *(c.HEARTBEATS, c.HEARTBEAT_SECONDS, c.REBALANCES, c.REBALANCE_SECONDS, c.PARTITIONS_LOST),
        *(c.COMMITS, c.COMMIT_SECONDS),
    )
)
"""Counted for members of a group only: elsewhere they would stand at 0 and look like a fault."""


_OURS = frozenset(declared.name for declared in every())
_OF_THE_PROCESS = (
    *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "cpu_seconds", "open_fds", "max_fds"),
)


class Metrics:
    """Counters and histograms as attributes; what each means is in `kunicorn.observe.catalogue`.

    Caller: supervisor, from its event loop; `render` runs in another thread meanwhile.
    """

    def __init__(self) -> None:
        # A `_created` beside every counter and histogram doubles the series and tells nobody anything.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self.consumed = self._counter(c.CONSUMED)
        self.failures = self._counter(c.FAILURES)
        self.retries = self._counter(c.RETRIES)
        self.handler_timeouts = self._counter(c.HANDLER_TIMEOUTS)
        self.dead_letters = self._counter(c.DEAD_LETTERS)
        self.skipped, self.retry_topics = self._counter(c.SKIPPED), self._counter(c.RETRY_TOPICS)
        self.sent = self._counter(c.SENT)
        self.transactions = self._counter(c.TRANSACTIONS)
        self.transaction_seconds = self._histogram(c.TRANSACTION_SECONDS, _FAST)
        self.process_seconds = HandlerDurations()
        self._registry.register(self.process_seconds)
        self.handlers = Families(_OURS | {f"process_{name}" for name in _OF_THE_PROCESS})
        """What the handler counts by itself."""
        self.clients = Families(())
        """What the workers' Kafka clients say of themselves."""
        self.heartbeats = self._counter(c.HEARTBEATS)
        self.heartbeat_seconds = self._histogram(c.HEARTBEAT_SECONDS, _FAST)
        self.rebalances = self._counter(c.REBALANCES)
        self.rebalance_seconds = self._histogram(c.REBALANCE_SECONDS, _SLOW)
        self.partitions_lost = self._counter(c.PARTITIONS_LOST)
        self.commits = self._counter(c.COMMITS)
        self.commit_seconds = self._histogram(c.COMMIT_SECONDS, _FAST)
        self.offset_resets = self._counter(c.OFFSET_RESETS)
        self.drain_seconds = self._histogram(c.DRAIN_SECONDS, _SLOW)
        self.worker_restarts = self._counter(c.WORKER_RESTARTS)
        self.worker_recycles, self.partition_moves = map(self._counter, (c.WORKER_RECYCLES, c.PARTITION_MOVES))
        self.reloads = self._counter(c.RELOADS)
        self.template_restarts = self._counter(c.TEMPLATE_RESTARTS)
        self.reports_refused = self._counter(c.REPORTS_REFUSED)
        self.hook_failures = self._counter(c.HOOK_FAILURES)
        self.http_actions = self._counter(c.HTTP_ACTIONS)
        self.totals = dict.fromkeys((*_TOTALS, "dead_letters", "retry_topics", "sent", "aborted"), 0)
        """The same over all topics, for `/status`."""
        self.worker_lines_dropped = 0
        """Log lines that workers dropped, as they told; the supervisor's own are `logs.dropped()`."""
        self._rendering = Lock()
        self._said_too_many = False

    def hear(self, pid: int, pong: Pong) -> None:
        """Count what a worker reports."""
        for deltas in pong.deltas:
            self.add(deltas)
        for hook, count in pong.hook_failures.items():
            self.hook_failures.labels(hook=hook).inc(count)
        for topic, count in pong.sent.items():
            self.sent.labels(topic=topic).inc(count)
            self.totals["sent"] += count
        for seconds in pong.committed_seconds:
            self.transactions.labels(result="committed").inc()
            self.transaction_seconds.observe(seconds)
        if pong.aborted:
            self.transactions.labels(result="aborted").inc(pong.aborted)
            self.totals["aborted"] += pong.aborted
        if pong.families is not None:
            self.handlers.report(pid, pong.families)
        if pong.client_families is not None:
            self.clients.report(pid, pong.client_families)

    def worker_gone(self, pid: int) -> None:
        """It is dead: what it has counted stays."""
        self.handlers.gone(pid)
        self.clients.gone(pid)

    def add(self, deltas: Deltas) -> None:
        """Count what a worker reports of one topic."""
        self.consumed.labels(topic=deltas.topic).inc(deltas.records)
        self.failures.labels(topic=deltas.topic).inc(deltas.failures)
        self.retries.labels(topic=deltas.topic).inc(deltas.retries)
        for reason, count in deltas.dead_letters.items():
            self.dead_letters.labels(topic=deltas.topic, reason=reason).inc(count)
        for delay, count in deltas.retried_later.items():
            self.retry_topics.labels(topic=deltas.topic, delay=delay).inc(count)
        self.skipped.labels(topic=deltas.topic).inc(deltas.skipped)
        if deltas.timed_out:
            self.handler_timeouts.labels(topic=deltas.topic).inc(deltas.timed_out)
        self.process_seconds.add(deltas)
        for name in _TOTALS:
            self.totals[name] += getattr(deltas, name)
        self.totals["dead_letters"] += sum(deltas.dead_letters.values())
        self.totals["retry_topics"] += sum(deltas.retried_later.values())

    def render(self, status: Status, accept: str, partition_metrics_max: int) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics if `accept` names it, else Prometheus's text format.

        Takes a tenth of a second with thousands of partitions: never on the event loop. One at a time.
        """
        with self._rendering:
            self._mind_the_limit(len(status.partitions), partition_metrics_max)
            dropped = logs.dropped() + self.worker_lines_dropped
            left_out = _GROUPS_OWN if status.group is None else frozenset()
            gauges = Gauges(status, partition_metrics_max)
            page = _Page(self._registry, gauges, (self.clients, self.handlers), dropped, left_out)
            lines = "".join(f"{line}\n" for line in gauges.partition_lines()).encode()
            if _OPENMETRICS in accept:
                body = bytes(openmetrics.generate_latest(page))  # type: ignore[no-untyped-call]
                return body.removesuffix(_EOF) + lines + _EOF, openmetrics.CONTENT_TYPE_LATEST
            return generate_latest(page) + lines, CONTENT_TYPE_PLAIN_0_0_4

    def _mind_the_limit(self, partitions: int, limit: int) -> None:
        if partitions > limit and not self._said_too_many:
            log.warning(
                f"/metrics leaves out the series of single partitions: {partitions} are assigned, "
                f"[http] partition_metrics_max is {limit}"
            )
        self._said_too_many = partitions > limit

    def _counter(self, declared: Declared) -> Counter:
        return Counter(declared.name, declared.meaning, declared.labels, registry=self._registry)

    def _histogram(self, declared: Declared, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(declared.name, declared.meaning, declared.labels, registry=self._registry, buckets=buckets)


class HandlerDurations:
    """A histogram by topic that takes whole buckets: the workers have observed each call already."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def add(self, deltas: Deltas) -> None:
        """Caller: supervisor. Buckets beyond those we know count as longest."""
        with self._lock:
            counts = self._counts.setdefault(deltas.topic, [0] * (len(DURATION_BUCKETS) + 1))
            for bucket, count in enumerate(deltas.buckets):
                counts[min(bucket, len(DURATION_BUCKETS))] += count
            self._seconds[deltas.topic] = self._seconds.get(deltas.topic, 0.0) + deltas.seconds

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder, in another thread."""
        with self._lock:
            topics = {topic: (list(counts), self._seconds[topic]) for topic, counts in self._counts.items()}
        declared = c.PROCESS_SECONDS
        family = HistogramMetricFamily(declared.name, declared.meaning, labels=declared.labels)
        bounds = [*(str(bound) for bound in DURATION_BUCKETS), "+Inf"]
        for topic, (counts, seconds) in topics.items():
            family.add_metric([topic], list(zip(bounds, accumulate(counts), strict=True)), seconds)
        yield family


class _Page:
    """What was counted and what is so now, as one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        gauges: Gauges,
        workers: tuple[Families, ...],
        lines_dropped: int,
        left_out: frozenset[str],
    ) -> None:
        self._registry = registry
        self._gauges = gauges
        self._workers = workers
        self._lines_dropped = lines_dropped
        self._left_out = left_out

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder."""
        yield from (family for family in self._registry.collect() if family.name not in self._left_out)
        yield from self._gauges.collect()
        for families in self._workers:
            yield from families.collect()
        yield CounterMetricFamily(c.LOGS_DROPPED.name, c.LOGS_DROPPED.meaning, value=self._lines_dropped)
