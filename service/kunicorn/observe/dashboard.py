"""The generated Grafana dashboard. Pure.

Every expression is made of declared metrics, so a panel cannot ask for a series that is not there; what a metric means
and what to do about it is the panel's description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kunicorn.observe import catalogue as c
from kunicorn.observe import group_catalogue as g
from kunicorn.observe.catalogue import Declared, Kind

_HEIGHT = 8
_COLUMNS = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WINDOW = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """`expression` with `{0}`, `{1}` … for the metrics, each selected by what the dashboard's variables say."""

    expression: str
    metrics: tuple[Declared, ...]
    legend: str
    matching: str = ""
    """One more matcher on the series."""

    def text(self) -> str:
        """As Prometheus reads it."""
        return self.expression.format(*(_selected(metric, self.matching) for metric in self.metrics), w=_WINDOW)


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph; `width` of 24."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 8
    kind: str = "timeseries"


_SUFFIX = {Kind.COUNTER: "_total", Kind.HISTOGRAM: "_bucket", Kind.GAUGE: ""}


def _selected(metric: Declared, matching: str) -> str:
    group = 'group=~"$group"' if "group" in metric.labels else ""
    matchers = filter(None, ['job=~"$job"', 'instance=~"$instance"', group, matching])
    return f"{metric.name}{_SUFFIX[metric.kind]}{{{', '.join(matchers)}}}"


def _one(expression: str, metric: Declared, legend: str) -> tuple[Query, ...]:
    return (Query(expression, (metric,), legend),)


def _rate(metric: Declared, *by: str) -> tuple[Query, ...]:
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return _one(f"sum by ({', '.join(by)}) (rate({{0}}{{w}}))", metric, legend)


def _increase(metric: Declared, by: str) -> tuple[Query, ...]:
    return _one(f"sum by ({by}) (increase({{0}}{{w}}))", metric, f"{{{{{by}}}}}")


def _each(metric: Declared) -> tuple[Query, ...]:
    return _one("max by (instance) ({0})", metric, "{{instance}}")


def _quantiles(metric: Declared) -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({share}, sum by (le) (rate({{0}}{{w}})))", (metric,), f"p{share * 100:g}")
        for share in (0.5, 0.99)
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel("Oldest unhandled record", "s", _one("max({0})", g.LAG_SECONDS, ""), 4, "stat"),
            Panel("Lag", "short", _one("sum({0})", g.LAG, ""), 4, "stat"),
            Panel("Members", "short", _one("count({0})", g.GROUP_INFO, ""), 4, "stat"),
            Panel("Workers up", "short", _one("sum({0})", c.WORKER_UP, ""), 4, "stat"),
            Panel("Ready", "short", _one("sum({0})", c.READY, ""), 4, "stat"),
            Panel("Halted or stuck", "short",
                  (Query("sum({0})", (g.PARTITIONS,), "", 'state=~"halted|stuck"'),), 4, "stat"),
        ),
    ),
    (
        "Records",
        (
            Panel("Records handled", "ops", _rate(c.CONSUMED, "topic")),
            Panel("Lag in seconds", "s", _one("max by (topic) ({0})", g.LAG_SECONDS, "{{topic}}")),
            Panel("Lag", "short", _one("sum by (topic) ({0})", g.LAG, "{{topic}}")),
            Panel("Lag by partition, the ten largest", "short",
                  _one("topk(10, max by (topic, partition) ({0}))", g.LAG, "{{topic}}-{{partition}}")),
            Panel("Handler duration", "s", _quantiles(c.PROCESS_SECONDS)),
            Panel("Longest handler call now", "s", _each(c.INFLIGHT_AGE)),
            Panel("Handler failures", "ops", _rate(c.FAILURES, "topic"), 6),
            Panel("Retries", "ops", _rate(c.RETRIES, "topic"), 6),
            Panel("Dead letters", "ops", _rate(c.DEAD_LETTERS, "topic", "reason"), 6),
            Panel("Skipped records", "ops", _rate(c.SKIPPED, "topic"), 6),
            Panel("Into retry topics", "ops", _rate(c.RETRY_TOPICS, "topic", "delay"), 6),
            Panel("Records in hand", "short", _one("sum by (instance) ({0})", c.INFLIGHT, "{{instance}}"), 6),
            Panel("Partitions that wait, for what", "short",
                  _one("sum by (waits_for) ({0})", c.WAITING, "{{waits_for}}"), 6),
            Panel("Handler time-outs", "short", _increase(c.HANDLER_TIMEOUTS, "topic"), 6),
            Panel("Hooks that failed", "short", _increase(c.HOOK_FAILURES, "hook"), 6),
        ),
    ),
    (
        "Outputs, with [producing]",
        (
            Panel("Records sent", "ops", _rate(c.SENT, "topic")),
            Panel("Transactions by result", "ops", _rate(c.TRANSACTIONS, "result")),
            Panel("Transaction duration", "s", _quantiles(c.TRANSACTION_SECONDS)),
        ),
    ),
    (
        "Group",
        (
            Panel("Partitions by state", "short", _one("sum by (state) ({0}) > 0", g.PARTITIONS, "{{state}}")),
            Panel("Partitions by member", "short", _one("sum by (instance) ({0})", g.ASSIGNED, "{{instance}}")),
            Panel("Generation", "short", _each(g.GENERATION)),
            Panel("Rebalances by reason and result", "short",
                  _one("sum by (reason, result) (increase({0}{w}))", g.REBALANCES, "{{reason}}: {{result}}")),
            Panel("Rebalance duration", "s", _quantiles(g.REBALANCE_SECONDS)),
            Panel("Drain duration", "s", _quantiles(g.DRAIN_SECONDS)),
            Panel("Last heartbeat against the session", "percentunit", (
                Query("max by (instance) ({0} / on (job, instance, group) {1})",
                      (g.HEARTBEAT_AGE, g.SESSION_TIMEOUT), "{{instance}}"),
            )),
            Panel("Heartbeats", "ops", _rate(g.HEARTBEATS, "result")),
            Panel("Heartbeat answer time", "s", _quantiles(g.HEARTBEAT_SECONDS)),
            Panel("Commits by result", "ops", _rate(g.COMMITS, "result")),
            Panel("Commit duration", "s", _quantiles(g.COMMIT_SECONDS)),
            Panel("Since the last commit", "s", _each(g.COMMIT_AGE)),
        ),
    ),
    (
        "Processes",
        (
            Panel("Worker deaths", "short", _increase(c.WORKER_RESTARTS, "reason")),
            Panel("Workers recycled", "short", _increase(c.WORKER_RECYCLES, "reason")),
            Panel("Workers paused by their lease", "short", _each(c.WORKERS_PAUSED)),
            Panel("Worker memory", "bytes",
                  _one("max by (instance, worker) ({0})", c.WORKER_RSS, "{{instance}} {{worker}}")),
            Panel("Event loop late by", "s", _each(c.LOOP_LAG)),
            Panel("Uptime", "s", _each(c.UPTIME)),
            Panel("Workers by state", "short", _one("sum by (state) ({0}) > 0", c.WORKERS, "{{state}}")),
            Panel("Longest turn of a worker", "s", _each(g.LAST_POLL)),
        ),
    ),
    (
        "Kafka clients, with statistics_interval_ms",
        (
            Panel("Brokers answer in", "s", _one("max by (broker) ({0})", c.CLIENT_RTT, "{{broker}}")),
            Panel("Fetched and not yet handled", "short", _each(c.CLIENT_QUEUE)),
            Panel("Received", "Bps", _rate(c.CLIENT_RECEIVED, "broker")),
            Panel("Unanswered requests", "ops", _rate(c.CLIENT_TIMEOUTS, "broker"), 12),
            Panel("Disconnects", "ops", _rate(c.CLIENT_DISCONNECTS, "broker"), 12),
        ),
    ),
)  # fmt: skip


def expressions() -> list[str]:
    """Every query of the dashboard."""
    return [query.text() for _, panels in ROWS for panel in panels for query in panel.queries]


def dashboard() -> str:
    """deploy/helm/dashboards/kunicorn.json."""
    page = {
        "uid": "kunicorn",
        "title": "kunicorn",
        "description": "Generated by `python -m kunicorn.observe`; do not edit.",
        "tags": ["kafka", "kunicorn"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_placed()),
    }
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, Any]]:
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        datasource,
        _variable("job", f"label_values({c.BUILD_INFO.name}, job)"),
        _variable("group", f'label_values({g.ASSIGNED.name}{{job=~"$job"}}, group)'),
        _variable("instance", f'label_values({c.BUILD_INFO.name}{{job=~"$job"}}, instance)'),
    ]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Panels from left to right, row by row."""
    number = top = 0
    for title, panels in ROWS:
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": _place(0, top, _COLUMNS, 1), "panels": []}
        top += 1
        left = height = 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                left, top = 0, top + height
            height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
            number += 1
            yield {"id": number, "gridPos": _place(left, top, panel.width, height), **_drawn(panel)}
            left += panel.width
        top += height


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _drawn(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _DATASOURCE, "expr": query.text(), "legendFormat": query.legend}
        for number, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": _described(panel.queries),
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def _described(queries: Sequence[Query]) -> str:
    metrics = dict.fromkeys(metric for query in queries for metric in query.metrics)
    return "\n\n".join(f"{metric.meaning} {metric.remedy}" for metric in metrics)
