"""Counters of a worker, reported to the supervisor with every Pong, and the metrics of its handler and its client.

`Counters` is what all threads count and the control thread reports: handler calls by topic and duration, and whatever
else the catalogue of metrics declares.

`Collecting` has the metrics that the handler keeps with `prometheus_client`, and those of the Kafka client, made ready
for the next Pong, in a thread of its own: collecting may run the user's code (a collector, a gauge's function), and the
control thread must not wait for that. There is no such thread as long as there is nothing to collect.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kunicorn.handler.retry import End
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.ipc.messages import MOST_SERIES, Counted, Family, Observed, Sample
from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared
from kunicorn.worker.linux import MORE_THREADS

_BOUNDS_NS = tuple(round(bound * NANOSECONDS) for bound in c.PROCESS_SECONDS.buckets)
_OF_EVERY_TOPIC = (c.FAILURES, c.RETRIES, c.SKIPPED, c.WAITS)
"""Told as 0 until it happens, so that an alert on a first time has a series to look at."""

_MOST_ERROR_TYPES = 50
_OTHER = "_OTHER"
"""What OpenTelemetry's conventions call error types beyond so many: classes made at run time would be series for
ever."""

Series = tuple[Declared, tuple[str, ...]]
"""A metric, and the values of its labels in the order of the declaration."""


@dataclass(slots=True)
class _Calls:
    """Calls of the handler with one topic's records."""

    records: int = 0
    nanoseconds: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))


@dataclass(slots=True)
class _Observations:
    buckets: list[int]
    seconds: float = 0.0


class Counters:
    """Counts since the last report, as `kunicorn.observe.catalogue` declares them. Caller: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = 0
        self._counted: Counter[Series] = Counter()
        self._observed: dict[Series, _Observations] = {}
        self._calls: dict[str, _Calls] = {}
        self._error_types: set[str] = set()

    @property
    def handled(self) -> int:
        """Number of records finished since the worker's start."""
        return self._handled

    def count(self, declared: Declared, amount: int, *labels: str) -> None:
        """Add `amount` to a counter. `labels`: in the order of the declaration."""
        with self._lock:
            self._counted[declared, labels] += amount

    def observe(self, declared: Declared, seconds: float, *labels: str) -> None:
        """Add one duration to a histogram."""
        with self._lock:
            self._observe((declared, labels), seconds, 1)

    def _observe(self, series: Series, seconds: float, times: int) -> None:
        """`times` durations that are equally long. Holds the lock."""
        bounds = series[0].buckets
        if (found := self._observed.get(series)) is None:
            found = self._observed[series] = _Observations([0] * (len(bounds) + 1))
        found.buckets[bisect_left(bounds, seconds)] += times
        found.seconds += seconds * times

    def finished(self, topic: str, records: int, nanoseconds: int, calls: int) -> None:
        """`records` were handled by `calls` of the handler in `nanoseconds`; the calls count as equally long.

        A chunk's records share one reading of the clock: slow records come in chunks of one, so only the durations of
        fast ones are an average.
        """
        with self._lock:
            if (counts := self._calls.get(topic)) is None:
                counts = self._calls[topic] = _Calls()
            counts.records += records
            counts.nanoseconds += nanoseconds
            if calls:
                counts.buckets[bisect_left(_BOUNDS_NS, nanoseconds // calls)] += calls
            self._handled += records

    def called_in_vain(self, topic: str, error_type: str, nanoseconds: int, calls: int) -> None:
        """`calls` of the handler failed together, by this exception's class, after `nanoseconds`."""
        with self._lock:
            if error_type not in self._error_types and len(self._error_types) >= _MOST_ERROR_TYPES:
                error_type = _OTHER
            self._error_types.add(error_type)
            self._observe((c.PROCESS_SECONDS, (topic, error_type)), nanoseconds / NANOSECONDS / calls, calls)

    def failed(self, topic: str, *, retried: bool) -> None:
        """Count a call that raised; `retried`: the handler will be called again."""
        self.count(c.FAILURES, 1, topic)
        if retried:
            self.count(c.RETRIES, 1, topic)

    def passed_over(self, topic: str, records: int, end: End, label: str | None) -> None:
        """Count records that are done without the handler's return. `label` is that of the counter of such ends: what
        led there, or a retry topic's delay; None: they are counted already.
        """
        if label is None:
            return
        match end:
            case End.DEAD_LETTER:
                self.count(c.DEAD_LETTERS, records, topic, label)
            case End.RETRY_TOPIC:
                self.count(c.RETRY_TOPICS, records, topic, label)
            case End.SKIP:
                self.count(c.SKIPPED, records, topic)
            case End.DONE:
                self.finished(topic, records, 0, 0)
            case End.HALT:
                pass

    def take(self) -> tuple[list[Counted], list[Observed]]:
        """Changes since the last call."""
        with self._lock:
            counted, self._counted = self._counted, Counter()
            observed, self._observed = self._observed, {}
            calls, self._calls = self._calls, {}
        for topic, of_topic in calls.items():
            counted[c.CONSUMED, (topic,)] += of_topic.records
            for declared in _OF_EVERY_TOPIC:
                counted[declared, (topic,)] += 0
            seconds = of_topic.nanoseconds / NANOSECONDS
            observed[c.PROCESS_SECONDS, (topic, "")] = _Observations(of_topic.buckets, seconds)
        return (
            [Counted(declared.name, list(labels), amount) for (declared, labels), amount in counted.items()],
            [Observed(of.name, list(labels), found.buckets, found.seconds) for (of, labels), found in observed.items()],
        )


log = logging.getLogger("kunicorn.worker")

_INTERVAL = 2.0
"""Seconds between two collections: scrapes come every 15 or so, and each takes a little of the handler's GIL."""
_FIRST = 0.1
_SUMMED = frozenset({"counter", "histogram", "summary", "gaugehistogram"})
_CREATED = "_created"
_MERGES = {"min": "min", "max": "max", "livemin": "min", "livemax": "max", "mostrecent": "max", "livemostrecent": "max"}
"""prometheus_client's `multiprocess_mode` of a gauge; other numbers are summed over the living workers."""
_FACTS = frozenset({"info", "stateset"})
"""Types of 1 for what is so and 0 for what is not (`Info`, `Enum`): so in one worker is so."""


class Collecting:
    """Metric families of two sources. `client`: those of the Kafka client, None where it keeps no statistics."""

    def __init__(self, client: Callable[[], list[Family]] | None) -> None:
        self._handler = _Report(_Registry().families)
        self._client = _Report(client) if client is not None else None
        self._thread: threading.Thread | None = None
        self._complained = False
        self._over = threading.Event()

    def news(self) -> tuple[list[Family] | None, list[Family] | None]:
        """Families of the handler and of the client; None where they are as reported before. Caller: the control
        thread; never waits.
        """
        if self._thread is None and self._needed():
            self._thread = self._start()
        return self._changes()

    def _start(self) -> threading.Thread | None:
        """The thread that collects; None where none can be started now: the next Ping tries again, as metrics are not
        worth the worker, with all that it has in hand.
        """
        thread = threading.Thread(target=self._keep, name="metrics", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._complained:
                self._complained = True
                log.warning("metrics are not collected: %s. It is tried again with each Ping: %s", error, MORE_THREADS)
            return None
        return thread

    def last(self) -> tuple[list[Family] | None, list[Family] | None]:
        """The same, as of now, for the last time: the user's collectors are not asked again. Caller: the runner's
        thread, when everything is drained.
        """
        self._over.set()
        if self._needed():
            self._collect()
        return self._changes()

    def _changes(self) -> tuple[list[Family] | None, list[Family] | None]:
        return self._handler.news(), self._client.news() if self._client is not None else None

    def _needed(self) -> bool:
        # The handler may import it as late as with its first record.
        return self._client is not None or "prometheus_client" in sys.modules

    def _keep(self) -> None:
        seconds = _FIRST
        while not self._over.wait(seconds):
            self._collect()
            seconds = _INTERVAL

    def _collect(self) -> None:
        if "prometheus_client" in sys.modules:
            self._handler.collect()
        if self._client is not None:
            self._client.collect()


class _Report:
    """Families of one source, and what of them was reported."""

    def __init__(self, source: Callable[[], list[Family]]) -> None:
        self.latest: list[Family] = []
        self._source = source
        self._told: list[Family] = []
        self._complained = False

    def collect(self) -> None:
        """Ask the source. What it raises is logged once: the user's code may be behind it."""
        try:
            self.latest = self._source()
        except Exception as error:
            if not self._complained:
                self._complained = True
                log.warning("metrics cannot be collected: %s: %s", type(error).__name__, error)

    def news(self) -> list[Family] | None:
        latest = self.latest
        if latest is self._told:
            return None
        changed, self._told = latest != self._told, latest
        return latest if changed else None


class _Registry:
    """prometheus_client's default registry, without what it says of any process by itself."""

    def __init__(self) -> None:
        self._built_in: frozenset[str] | None = None
        self._complained = False

    def families(self) -> list[Family]:
        """Families, each whole, as long as there is room."""
        kept, series = [], 0
        for family in self._collected():
            series += len(family.samples)
            if series > MOST_SERIES:
                self._complain(family.name)
                break
            kept.append(family)
        return kept

    def _collected(self) -> Iterator[Family]:
        import prometheus_client as client

        if self._built_in is None:
            own: Iterable[Any] = (client.PROCESS_COLLECTOR, client.PLATFORM_COLLECTOR, client.GC_COLLECTOR)
            self._built_in = frozenset(family.name for collector in own for family in collector.collect())
        collectors = dict(client.REGISTRY._names_to_collectors)
        for family in client.REGISTRY.collect():
            if family.name not in self._built_in:
                yield _family(family, getattr(collectors.get(family.name), "_multiprocess_mode", ""))

    def _complain(self, name: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "the handler's metric %s and those after it are left out: a worker reports at most %d series; "
                "use labels with few values", name, MOST_SERIES,
            )  # fmt: skip


def _family(family: Any, mode: str) -> Family:
    samples = [
        Sample(sample.name, {_text(k): _text(v) for k, v in sample.labels.items()}, float(sample.value))
        for sample in family.samples
        # JSON has no other numbers than finite ones.
        if math.isfinite(sample.value) and not (family.type in _SUMMED and sample.name.endswith(_CREATED))
    ]
    merge = "max" if family.type in _FACTS else _MERGES.get(mode, "sum")
    return Family(family.name, family.type, _text(family.documentation), samples, merge)


def _text(value: object) -> str:
    """JSON cannot carry a lone surrogate."""
    return str(value).encode(errors="replace").decode()
