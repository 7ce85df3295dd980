"""What a worker counts, and tells the supervisor.

`Meter` is what the runner counts and the control thread reports: handler calls by topic and duration.

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
from kunicorn.ipc.messages import DURATION_BUCKETS, MOST_SERIES, Deltas, Family, Sample

_BOUNDS_NS = tuple(round(bound * NANOSECONDS) for bound in DURATION_BUCKETS)


@dataclass(slots=True)
class _Counts:
    records: int = 0
    failures: int = 0
    retries: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    retried_later: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    timed_out: int = 0
    nanoseconds: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))


class Meter:
    """Counters since the last report. Not locked: every caller holds the fetcher's lock."""

    def __init__(self) -> None:
        self.handled = 0
        """Records finished since the worker's start."""
        self._topics: dict[str, _Counts] = {}

    def finished(self, topic: str, records: int, nanoseconds: int, calls: int) -> None:
        """`records` were handled by `calls` of the handler in `nanoseconds`; the calls count as equally long.

        A chunk's records share one reading of the clock: slow records come in chunks of one, so only the durations of
        fast ones are an average.
        """
        counts = self._of(topic)
        counts.records += records
        counts.nanoseconds += nanoseconds
        if calls:
            counts.buckets[bisect_left(_BOUNDS_NS, nanoseconds // calls)] += calls
        self.handled += records

    def failed(self, topic: str, *, retried: bool) -> None:
        """The handler raised; `retried`: it will be asked again."""
        counts = self._of(topic)
        counts.failures += 1
        counts.retries += retried

    def timed_out(self, topic: str, calls: int) -> None:
        """So many calls were overdue besides the one that the supervisor has counted."""
        self._of(topic).timed_out += calls

    def passed_over(self, topic: str, records: int, end: End, label: str | None) -> None:
        """The records are done with, without the handler having returned. `label` is that of the counter of such ends:
        what led there, or a retry topic's delay; None: they are counted already."""
        if label is None:
            return
        counts = self._of(topic)
        if end is End.DEAD_LETTER:
            counts.dead_letters[label] += records
        if end is End.RETRY_TOPIC:
            counts.retried_later[label] += records
        counts.skipped += records if end is End.SKIP else 0
        if end is End.DONE:
            counts.records += records
            self.handled += records

    def _of(self, topic: str) -> _Counts:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = _Counts()
        return counts

    def take(self) -> list[Deltas]:
        """The changes since the last call."""
        topics, self._topics = self._topics, {}
        return [
            Deltas(
                topic,
                c.records,
                c.failures,
                c.retries,
                c.nanoseconds / NANOSECONDS,
                c.buckets,
                dict(c.dead_letters),
                c.skipped,
                dict(c.retried_later),
                c.timed_out,
            )
            for topic, c in topics.items()
        ]


log = logging.getLogger("kunicorn.worker")

_INTERVAL = 2.0
"""Seconds between two collections: scrapes come every 15 or so, and each takes a little of the handler's GIL."""
_FIRST = 0.1
_SUMMED = frozenset({"counter", "histogram", "summary", "gaugehistogram"})
_CREATED = "_created"
_MERGES = {"min": "min", "max": "max", "livemin": "min", "livemax": "max", "mostrecent": "max", "livemostrecent": "max"}
"""prometheus_client's `multiprocess_mode` of a gauge; everything else is summed over the living workers."""


class Collecting:
    """Families of two sources. `client`: those of the Kafka client, None where it keeps no statistics."""

    def __init__(self, client: Callable[[], list[Family]] | None) -> None:
        self._handler = _Report(_Registry().families)
        self._client = _Report(client) if client is not None else None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def news(self) -> tuple[list[Family] | None, list[Family] | None]:
        """The handler's and the client's; None where they are as told before. Caller: the control thread; never
        waits."""
        if self._thread is None and self._needed():
            self._thread = threading.Thread(target=self._keep, name="metrics", daemon=True)
            self._thread.start()
        return self._changes()

    def last(self) -> tuple[list[Family] | None, list[Family] | None]:
        """The same, as of now, for the last time: the user's collectors are not asked again. Caller: the runner's
        thread, when everything is drained."""
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
        while not self._over.wait(_INTERVAL if self._handler.latest else _FIRST):
            self._collect()

    def _collect(self) -> None:
        if "prometheus_client" in sys.modules:
            self._handler.collect()
        if self._client is not None:
            self._client.collect()


class _Report:
    """What one source says, and what of it was told."""

    def __init__(self, source: Callable[[], list[Family]]) -> None:
        self.latest: list[Family] = []
        self._source = source
        self._told: list[Family] = []
        self._complained = False

    def collect(self) -> None:
        """Ask the source. What it raises is said once: the user's code may be behind it."""
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
        """Whole families, as long as there is room."""
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
    return Family(family.name, family.type, _text(family.documentation), samples, _MERGES.get(mode, "sum"))


def _text(value: object) -> str:
    """JSON cannot carry a lone surrogate."""
    return str(value).encode(errors="replace").decode()
