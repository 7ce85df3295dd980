"""Everything at `/metrics`: counters and histograms, gauges made of a snapshot, and the handlers' own metrics.

One registry, in the supervisor. Workers send what changed, by its declared name, with every Pong. No files are shared
between processes, so a dead worker leaves none behind and takes no count along. Rendering runs in a thread, off the
event loop.

The metrics that handlers keep themselves come as each worker's totals since its start, and are added up: one series
where each worker has one. Those of the dead are kept, so that a counter never falls; a gauge is a statement about now,
and ends with its worker. A worker that is killed takes along what it counted in its last seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import Counted, Family, Observed, Pong, Sample
from kunicorn.observe import catalogue as c
from kunicorn.observe import health, logs
from kunicorn.observe.catalogue import Declared, Kind, every
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
    (c.BROKERS_REACHED, lambda s: int(s.brokers_reached and s.outage is None)),
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
    """Prometheus collector over a snapshot. A value that is not known is absent: 0 would be a statement."""

    def __init__(self, status: Status, partition_metrics_max: int) -> None:
        self._status = status
        self._partitions = status.partitions if len(status.partitions) <= partition_metrics_max else ()

    def collect(self) -> Iterator[Metric]:
        status, group_id = self._status, self._status.group_id
        yield _family(c.BUILD_INFO, [((status.version,), 1)])
        yield _family(c.PARTITIONS, self._by_state())
        for declared, of_service in _SERVICE_SERIES:
            yield _family(declared, [((), of_service(status))])
        for declared, of_assigned in _ASSIGNED_SERIES:
            yield _family(declared, [((group_id,), of_assigned(status))])
        yield _family(c.LAG_SECONDS_MAX, self._oldest())
        yield _family(c.WAITING, self._waiting())
        yield _family(c.RATE, self._rates())
        yield _family(c.CIRCUITS, self._circuits())
        yield _family(c.WORKERS, self._places())
        if status.group is not None:
            yield from self._of_group(status.group)
        if status.commit is not None:
            yield _family(c.COMMIT_AGE, [((group_id,), status.commit.last_age)])
            yield _family(c.UNCOMMITTED, [((group_id,), sum(map(_is_uncommitted, status.partitions)))])
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
            for reason in (
                "retry",
                "wait",
                "circuit_breaker",
                "rate_limit",
                "dead_letter",
                "retry_topic",
                "delay",
                "delivery",
            )
        ]

    def _oldest(self) -> list[tuple[tuple[str, ...], Value]]:
        """By topic, of all partitions: the alerts on lag must not fall silent where partitions have no series."""
        oldest: dict[str, float] = {}
        for partition in self._status.partitions:
            if partition.lag_seconds is not None:
                oldest[partition.topic] = max(partition.lag_seconds, oldest.get(partition.topic, 0.0))
        return [((self._status.group_id, topic), seconds) for topic, seconds in sorted(oldest.items())]

    def _rates(self) -> list[tuple[tuple[str, ...], Value]]:
        """By entry point: two of [[handlers]] may have the same."""
        rates: dict[str, float] = {}
        for rate in self._status.rates:
            rates[rate.handler] = rates.get(rate.handler, 0.0) + rate.per_second
        return [((self._status.group_id, handler), per_second) for handler, per_second in sorted(rates.items())]

    def _circuits(self) -> list[tuple[tuple[str, ...], Value]]:
        """By topic, 0 included: a series that is absent says nothing to the alert that it puts off."""
        counts = dict.fromkeys((partition.topic for partition in self._status.partitions), 0)
        for worker in self._status.workers:
            for topic, partitions in worker.broken_circuits.items():
                counts[topic] = counts.get(topic, 0) + partitions
        return [((self._status.group_id, topic), partitions) for topic, partitions in sorted(counts.items())]

    def _places(self) -> list[tuple[tuple[str, ...], Value]]:
        counts = Counts(worker.state for worker in self._status.workers)
        return [((state,), counts[state]) for state in _WORKER_STATES]

    def partition_families(self) -> Iterator[Metric]:
        """The partitions' series, for what takes them in another form than text."""
        group_id = self._status.group_id
        for declared, read in _PARTITION_SERIES:
            values = [((group_id, p.topic, str(p.partition)), read(p)) for p in self._partitions]
            yield _family(declared, values)

    def partition_lines(self) -> Iterator[str]:
        """Lines of the partitions' series, as both text formats have them. Written here: with a thousand partitions
        they are most of a page, and Prometheus's own encoder sorts, checks and escapes the same labels for each of them
        anew.
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


def _is_uncommitted(partition: PartitionStatus) -> bool:
    """Of a partition that was never committed nothing is known: its handler may keep the offset."""
    position, committed = partition.position, partition.committed
    return position is not None and committed is not None and position > committed


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
    """Sum of the metrics that handlers of all workers keep. Caller: supervisor, from its event loop; `collect` runs in
    another thread meanwhile.
    """

    def __init__(self, taken: Collection[str]) -> None:
        """`taken`: names that are ours and not a handler's to use."""
        self._taken = frozenset(taken)
        self._lock = Lock()
        self._living: dict[int, list[Family]] = {}
        self._past: dict[str, Family] = {}
        self._complaints = logs.Complaints(log)

    def report(self, pid: int, families: list[Family]) -> None:
        """Take in all metrics of this worker."""
        for family in families:
            if family.name in self._taken:
                self._complaints.tell(
                    family.name, f"the handler's metric {family.name} is left out: the service has one of that name"
                )
        with self._lock:
            self._living[pid] = [family for family in families if family.name not in self._taken]

    def gone(self, pid: int) -> None:
        """Take a dead worker's counts into the sum for good."""
        with self._lock:
            for family in self._living.pop(pid, ()):
                if family.kind in _KEPT:
                    past = filter(None, [self._past.get(family.name)])
                    self._past[family.name] = _merged(_alike([*past, family]))
            series = sum(len(family.samples) for family in self._past.values())
            if series > _MOST_SERIES:
                self._past.clear()
                self._complaints.tell(
                    "counters of workers that have ended",
                    f"counters of workers that have ended are dropped: they came to more than {_MOST_SERIES} series; "
                    f"use labels with few values in the handler's metrics",
                )

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder, in another thread."""
        with self._lock:
            every = [family for families in self._living.values() for family in families]
            past = dict(self._past)
        for name in sorted({family.name for family in every} | past.keys()):
            own = [family for family in every if family.name == name]
            yield _metric(_merged(_alike([*filter(None, [past.get(name)]), *own])))


def _alike(families: Sequence[Family]) -> list[Family]:
    """Those that can be added up with the last one: a reload may have made another metric of it. Counts of buckets with
    other bounds are none to be added: the sum would have a longer bucket with fewer in it.
    """
    same = [family for family in families if family.kind == families[-1].kind]
    bounds = next(filter(None, map(_bounds, reversed(same))), frozenset())
    return [family for family in same if _bounds(family) in (frozenset(), bounds)]


def _bounds(family: Family) -> frozenset[str]:
    """Of its buckets; empty where nothing is observed yet, and of what has none."""
    if not family.kind.endswith("histogram"):
        return frozenset()
    return frozenset(sample.labels["le"] for sample in family.samples if "le" in sample.labels)


def _merged(families: list[Family]) -> Family:
    values: dict[_Series, float] = {}
    latest = families[-1]
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

_ERROR_TYPE = "error_type"
_OPENMETRICS = "application/openmetrics-text"
_EOF = b"# EOF\n"
"""The last line of OpenMetrics."""

_TOTALS: Mapping[str, str] = {
    c.CONSUMED.name: "records",
    c.FAILURES.name: "failures",
    c.RETRIES.name: "retries",
    c.SKIPPED.name: "skipped",
    c.DEAD_LETTERS.name: "dead_letters",
    c.RETRY_TOPICS.name: "retry_topics",
    c.SENT.name: "sent",
}
"""What `/status` calls the sums of workers' counters over all labels."""
_ABORTED = "aborted"
_OF_OUTPUTS = frozenset({c.SENT.name, c.UNENCODED.name})
"""By a topic that the handler names, their first label: it may be made of what records say."""
_MOST_OUTPUTS = 1000
_OTHER = "_OTHER"
"""What OpenTelemetry's conventions call whatever is beyond so many."""

_OF_MEMBERS = frozenset(declared.name for declared in every() if declared.members_only)


_OURS = frozenset(declared.name for declared in every())
_LABELS = {declared.name: len(declared.labels) for declared in every() if not declared.counted_elsewhere}


def _is_declared(told: Counted | Observed) -> bool:
    """Whether we know the metric with these labels: after a reload a worker may be of newer code than the
    supervisor."""
    return _LABELS.get(told.name) == len(told.labels)


_OF_THE_PROCESS = (
    *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "cpu_seconds", "open_fds", "max_fds"),
)


class Metrics:
    """Every counter and histogram that `kunicorn.observe.catalogue` declares.

    Caller: supervisor, from its event loop; `render` runs in another thread meanwhile.
    """

    def __init__(self) -> None:
        # A `_created` beside every counter and histogram doubles the series and tells nobody anything.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        ours = [declared for declared in every() if not declared.counted_elsewhere]
        self._counters = {
            declared.name: Counter(declared.name, declared.meaning, declared.labels, registry=self._registry)
            for declared in ours
            if declared.kind is Kind.COUNTER
        }
        self._histograms = {declared.name: Buckets(declared) for declared in ours if declared.kind is Kind.HISTOGRAM}
        for histogram in self._histograms.values():
            self._registry.register(histogram)
        self.handlers = Families(_OURS | {f"process_{name}" for name in _OF_THE_PROCESS})
        """What the handler counts by itself."""
        self.clients = Families(())
        """What the workers' Kafka clients say of themselves."""
        self.totals = dict.fromkeys((*_TOTALS.values(), _ABORTED), 0)
        """What workers have counted, over all labels, for `/status`."""
        self.outputs: set[str] = set()
        """Topics that handlers have sent to, each with series of its own."""
        self._lines_dropped = 0
        self._certificate_ends: dict[str, float] = {}
        self._rendering = Lock()
        self._said_too_many = False

    def count(self, declared: Declared, amount: float = 1, **labels: str) -> None:
        """Add `amount` to the counter."""
        counter = self._counters[declared.name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def observe(self, declared: Declared, seconds: float, **labels: str) -> None:
        """Add one duration to the histogram."""
        self._histograms[declared.name].observe(seconds, [labels[name] for name in declared.labels])

    def hear(self, pid: int, pong: Pong) -> None:
        """Count what a worker reports."""
        for counted in filter(_is_declared, pong.counted):
            self._add(counted)
        for observed in filter(_is_declared, pong.observed):
            self._histograms[observed.name].add(observed)
        if pong.families is not None:
            self.handlers.report(pid, pong.families)
        if pong.client_families is not None:
            self.clients.report(pid, pong.client_families)

    def lines_dropped(self, count: int) -> None:
        """Workers dropped so many log lines more; the supervisor's own are `logs.dropped()`."""
        self._lines_dropped += count

    def certificate_ends(self, section: str, at: float) -> None:
        """Our own TLS certificate in that section of the settings ends then, in seconds since 1970."""
        self._certificate_ends[section] = at

    def forget(self, topic: str) -> None:
        """Drop the series of a topic that is gone. Caller: supervisor."""
        self.outputs.discard(topic)
        for declared in every():
            if "topic" not in declared.labels:
                continue
            if (counter := self._counters.get(declared.name)) is not None:
                told = [sample.labels for family in counter.collect() for sample in family.samples]
                for labels in told:
                    if labels["topic"] == topic:
                        counter.remove(*(labels[name] for name in declared.labels))
            elif (histogram := self._histograms.get(declared.name)) is not None:
                histogram.forget(topic)

    def worker_gone(self, pid: int) -> None:
        """Note a worker's death: what it has counted stays."""
        self.handlers.gone(pid)
        self.clients.gone(pid)

    def _add(self, counted: Counted) -> None:
        counter, labels = self._counters[counted.name], counted.labels
        if counted.name in _OF_OUTPUTS:
            labels = [self._output(labels[0]), *labels[1:]]
        (counter.labels(*labels) if labels else counter).inc(counted.amount)
        if counted.name == c.SENT.name and counted.labels[-1]:
            return  # Of those that were refused.
        if (total := _TOTALS.get(counted.name)) is not None:
            self.totals[total] += counted.amount
        elif counted.name == c.TRANSACTIONS.name and counted.labels == [_ABORTED]:
            self.totals[_ABORTED] += counted.amount

    def _output(self, topic: str) -> str:
        if topic not in self.outputs and len(self.outputs) >= _MOST_OUTPUTS:
            return _OTHER
        self.outputs.add(topic)
        return topic

    def render(self, status: Status, accept: str, partition_metrics_max: int) -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics if `accept` names it, else Prometheus's text format.

        Takes a tenth of a second with thousands of partitions: never on the event loop. One at a time.
        """
        with self._rendering:
            gauges = Gauges(status, partition_metrics_max)
            page = self._page(status, gauges, partition_metrics_max)
            lines = "".join(f"{line}\n" for line in gauges.partition_lines()).encode()
            if _OPENMETRICS in accept:
                body = bytes(openmetrics.generate_latest(page))  # type: ignore[no-untyped-call]
                return body.removesuffix(_EOF) + lines + _EOF, openmetrics.CONTENT_TYPE_LATEST
            return generate_latest(page) + lines, CONTENT_TYPE_PLAIN_0_0_4

    def families(self, status: Status, partition_metrics_max: int) -> list[Metric]:
        """Likewise as families, the same ones with the same labels. Never on the event loop, and one at a time."""
        with self._rendering:
            gauges = Gauges(status, partition_metrics_max)
            page = self._page(status, gauges, partition_metrics_max)
            return [*page.collect(), *gauges.partition_families()]

    def _page(self, status: Status, gauges: Gauges, partition_metrics_max: int) -> _Page:
        self._mind_the_limit(len(status.partitions), partition_metrics_max)
        dropped = logs.dropped() + self._lines_dropped
        left_out = _OF_MEMBERS if status.group is None else frozenset()
        said = _Said(status.group_id, dropped, left_out, dict(self._certificate_ends))
        return _Page(self._registry, gauges, (self.clients, self.handlers), said)

    def _mind_the_limit(self, partitions: int, limit: int) -> None:
        if partitions > limit and not self._said_too_many:
            log.warning(
                f"/metrics leaves out the series of single partitions: {partitions} are assigned, "
                f"[http] partition_metrics_max is {limit}"
            )
        self._said_too_many = partitions > limit


class Buckets:
    """Histogram that also takes whole buckets, which workers have observed already."""

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._lock = Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._seconds: dict[tuple[str, ...], float] = {}
        if not declared.labels:
            self._of(())

    def observe(self, seconds: float, labels: Sequence[str]) -> None:
        """Add one observation. Caller: supervisor."""
        with self._lock:
            self._of(tuple(labels))[bisect_left(self._declared.buckets, seconds)] += 1
            self._seconds[tuple(labels)] += seconds

    def add(self, observed: Observed) -> None:
        """Add many observations. Caller: supervisor. Buckets beyond those we know count as longest."""
        labels = tuple(observed.labels)
        with self._lock:
            counts = self._of(labels)
            for bucket, count in enumerate(observed.buckets):
                counts[min(bucket, len(self._declared.buckets))] += count
            self._seconds[labels] += observed.seconds

    def forget(self, topic: str) -> None:
        """Drop all that was observed of the topic. Caller: supervisor."""
        place = self._declared.labels.index("topic")
        with self._lock:
            for labels in [labels for labels in self._counts if labels[place] == topic]:
                del self._counts[labels], self._seconds[labels]

    def collect(self) -> Iterator[Metric]:
        """Caller: Prometheus's encoder, in another thread."""
        with self._lock:
            series = {labels: (list(counts), self._seconds[labels]) for labels, counts in self._counts.items()}
        declared = self._declared
        family = HistogramMetricFamily(declared.name, declared.meaning, labels=declared.labels)
        bounds = [*(str(bound) for bound in declared.buckets), "+Inf"]
        for labels, (counts, seconds) in series.items():
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), seconds)
        yield family

    def _of(self, labels: tuple[str, ...]) -> list[int]:
        if (counts := self._counts.get(labels)) is None:
            counts = self._counts[labels] = [0] * (len(self._declared.buckets) + 1)
            self._seconds[labels] = 0.0
        return counts


@dataclass(frozen=True, slots=True)
class _Said:
    """Facts of one page: the group, lines of the log that were dropped, and families that are left out."""

    group_id: str
    lines_dropped: int
    left_out: frozenset[str]
    certificate_ends: Mapping[str, float]


class _Page:
    """Collector of counters and gauges together."""

    def __init__(self, registry: CollectorRegistry, gauges: Gauges, workers: tuple[Families, ...], said: _Said) -> None:
        self._registry = registry
        self._gauges = gauges
        self._workers = workers
        self._said = said

    def collect(self) -> Iterator[Metric]:
        for family in self._every():
            yield self._with_group(family) if family.name in _OURS else family

    def _every(self) -> Iterator[Metric]:
        yield from (family for family in self._registry.collect() if family.name not in self._said.left_out)
        yield from self._gauges.collect()
        for families in self._workers:
            yield from families.collect()
        yield CounterMetricFamily(c.LOGS_DROPPED.name, c.LOGS_DROPPED.meaning, value=self._said.lines_dropped)
        yield _family(c.CERTIFICATE_ENDS, [((of,), at) for of, at in self._said.certificate_ends.items()])

    def _with_group(self, family: Metric) -> Metric:
        """Whatever is asked of one group, such as an alert of one release, is asked by this label. What has not failed
        has no type of error."""
        group = {"group": self._said.group_id}
        for index, sample in enumerate(family.samples):
            labels = {**group, **sample.labels}
            if not labels.get(_ERROR_TYPE, True):
                del labels[_ERROR_TYPE]
            family.samples[index] = sample._replace(labels=labels)
        return family
