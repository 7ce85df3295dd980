"""What workers report of their handlers' own metrics, added up: one series where each worker has one.

A worker reports totals since its start. Those of the dead are kept, so that a counter never falls; a gauge is a
statement about now, and ends with its worker. A worker that is killed takes along what it counted in its last seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from threading import Lock

from prometheus_client.core import Metric

from kunicorn.observe import logs
from kunicorn.pipes.families import Family, Sample

log = logs.get("kunicorn.metrics")

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
