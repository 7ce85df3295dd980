"""The metrics that are counted as things happen, and the rendering of everything at `/metrics`.

One registry, in the supervisor; workers send what changed (`Deltas`) with every Pong. No files are shared between
processes, so a dead worker leaves none behind and takes no count along.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from kunicorn.observe import catalogue as c
from kunicorn.observe import group_catalogue as g
from kunicorn.observe import logs
from kunicorn.observe.catalogue import Declared
from kunicorn.observe.families import Families
from kunicorn.observe.gauges import Gauges
from kunicorn.observe.served import every
from kunicorn.observe.status import Status
from kunicorn.pipes.messages import DURATION_BUCKETS, Deltas, Pong

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
        *(g.HEARTBEATS, g.HEARTBEAT_SECONDS, g.REBALANCES, g.REBALANCE_SECONDS, g.PARTITIONS_LOST),
        *(g.COMMITS, g.COMMIT_SECONDS),
    )
)
"""Counted for members of a group only: elsewhere they would stand at 0 and look like a fault."""


_OURS = frozenset(declared.name for declared in every())
_OF_THE_PROCESS = (
    *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "cpu_seconds", "open_fds", "max_fds"),
)


class Metrics:
    """Counters and histograms as attributes; what each means is in `kunicorn.observe.catalogue` and `group_catalogue`.

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
        self.heartbeats = self._counter(g.HEARTBEATS)
        self.heartbeat_seconds = self._histogram(g.HEARTBEAT_SECONDS, _FAST)
        self.rebalances = self._counter(g.REBALANCES)
        self.rebalance_seconds = self._histogram(g.REBALANCE_SECONDS, _SLOW)
        self.partitions_lost = self._counter(g.PARTITIONS_LOST)
        self.commits = self._counter(g.COMMITS)
        self.commit_seconds = self._histogram(g.COMMIT_SECONDS, _FAST)
        self.offset_resets = self._counter(g.OFFSET_RESETS)
        self.drain_seconds = self._histogram(g.DRAIN_SECONDS, _SLOW)
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
