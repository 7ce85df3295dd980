"""Files generated from the metrics' catalogue and the tables of states: the Grafana dashboard, docs/metrics.md and
docs/states.md. Pure; `python -m kunicorn.observe` writes them.

Every expression of the dashboard is made of declared metrics, so a panel cannot ask for a series that does not exist; a
metric's meaning and remedy are the panel's description.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kunicorn.group import states
from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared, Kind, every

_HEIGHT = 8
_COLUMNS = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WINDOW = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL `expression` with `{0}`, `{1}` … for metrics, each selected by what the dashboard's variables say."""

    expression: str
    metrics: tuple[Declared, ...]
    legend: str
    matching: str = ""
    """One more matcher on the series."""

    def text(self) -> str:
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
    matchers = filter(None, ['job=~"$job"', 'instance=~"$instance"', 'group=~"$group"', matching])
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
            Panel("Oldest unhandled record", "s", _one("max({0})", c.LAG_SECONDS_MAX, ""), 4, "stat"),
            Panel("Lag", "short", _one("sum({0})", c.LAG, ""), 4, "stat"),
            Panel("Members", "short", _one("count({0})", c.GROUP_INFO, ""), 4, "stat"),
            Panel("Workers up", "short", _one("sum({0})", c.WORKER_UP, ""), 4, "stat"),
            Panel("Ready", "short", _one("sum({0})", c.READY, ""), 4, "stat"),
            Panel("Halted or stuck", "short",
                  (Query("sum({0})", (c.PARTITIONS,), "", 'state=~"halted|stuck"'),), 4, "stat"),
        ),
    ),
    (
        "Records",
        (
            Panel("Records handled", "ops", _rate(c.CONSUMED, "topic")),
            Panel("Lag in seconds", "s", _one("max by (topic) ({0})", c.LAG_SECONDS_MAX, "{{topic}}")),
            Panel("Lag", "short", _one("sum by (topic) ({0})", c.LAG, "{{topic}}")),
            Panel("Lag by partition, the ten largest", "short",
                  _one("topk(10, max by (topic, partition) ({0}))", c.LAG, "{{topic}}-{{partition}}")),
            Panel("Lag in seconds by partition, the ten largest", "s",
                  _one("topk(10, max by (topic, partition) ({0}))", c.LAG_SECONDS, "{{topic}}-{{partition}}")),
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
        "Filters and limits",
        (
            Panel("Records filtered, or too old", "ops", _rate(c.FILTERED, "topic", "filter")),
            Panel("Partitions whose circuit breaker is open", "short",
                  _one("sum by (topic) ({0})", c.CIRCUITS, "{{topic}}")),
            Panel("Circuit breakers that opened", "short", _increase(c.CIRCUIT_OPENED, "handler")),
            Panel("Rate limits, of all pods", "ops", _one("sum by (handler) ({0})", c.RATE, "{{handler}}")),
            Panel("Waits that handlers asked for", "ops", _rate(c.WAITS, "topic")),
        ),
    ),
    (
        "Outputs, with [producing]",
        (
            Panel("Records sent", "ops", (
                Query("sum by (topic) (rate({0}{w}))", (c.SENT,), "{{topic}}", 'error_type=""'),
                Query("sum by (error_type) (rate({0}{w}))", (c.SENT,), "refused: {{error_type}}", 'error_type!=""'),
            )),
            Panel("Transactions by result", "ops", _rate(c.TRANSACTIONS, "result")),
            Panel("Transaction duration", "s", _quantiles(c.TRANSACTION_SECONDS)),
            Panel("Outputs that could not be encoded", "ops", _rate(c.UNENCODED, "topic", "why")),
        ),
    ),
    (
        "Group",
        (
            Panel("Partitions by state", "short", _one("sum by (state) ({0}) > 0", c.PARTITIONS, "{{state}}")),
            Panel("Partitions by member", "short", _one("sum by (instance) ({0})", c.ASSIGNED, "{{instance}}")),
            Panel("Generation", "short", _each(c.GENERATION)),
            Panel("Rebalances by reason and result", "short",
                  _one("sum by (reason, result) (increase({0}{w}))", c.REBALANCES, "{{reason}}: {{result}}")),
            Panel("Rebalance duration", "s", _quantiles(c.REBALANCE_SECONDS)),
            Panel("Drain duration", "s", _quantiles(c.DRAIN_SECONDS)),
            Panel("Last heartbeat against the session", "percentunit", (
                Query("max by (instance) ({0} / on (job, instance, group) {1})",
                      (c.HEARTBEAT_AGE, c.SESSION_TIMEOUT), "{{instance}}"),
            )),
            Panel("Heartbeats", "ops", _rate(c.HEARTBEATS, "result")),
            Panel("Heartbeat answer time", "s", _quantiles(c.HEARTBEAT_SECONDS)),
            Panel("Commits by result", "ops", _rate(c.COMMITS, "result")),
            Panel("Commit duration", "s", _quantiles(c.COMMIT_SECONDS)),
            Panel("Since the last commit", "s", _each(c.COMMIT_AGE)),
            Panel("Partitions with more consumed than committed", "short", _each(c.UNCOMMITTED)),
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
            Panel("Certificate is good for", "s",
                  _one("min by (instance, certificate) ({0}) - time()", c.CERTIFICATE_ENDS,
                       "{{instance}} {{certificate}}")),
            Panel("Workers by state", "short", _one("sum by (state) ({0}) > 0", c.WORKERS, "{{state}}")),
            Panel("Longest turn of a worker", "s", _each(c.LAST_POLL)),
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


def _by_group(expression: str, metric: Declared) -> tuple[Query, ...]:
    return _one(expression.replace("by group", "by (namespace, group)"), metric, "{{namespace}} {{group}}")


def _spent(window: str) -> tuple[Query, ...]:
    recorded = f'max by (namespace, group) (group:kunicorn_lag_over_objective:ratio_{window}{{{{group=~"$group"}}}})'
    return _one(recorded, c.LAG_SECONDS_MAX, "{{namespace}} {{group}}")


FLEET: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Which group needs somebody",
        (
            Panel("Oldest unhandled record", "s", _by_group("max by group ({0})", c.LAG_SECONDS_MAX)),
            Panel("Part of the last hour behind the objective", "percentunit", _spent("1h")),
            Panel("Part of the last three days behind the objective", "percentunit", _spent("3d")),
            Panel("Halted or stuck partitions", "short", (
                Query("sum by (namespace, group) ({0}) > 0", (c.PARTITIONS,), "{{namespace}} {{group}}",
                      'state=~"halted|stuck"'),
            )),
            Panel("Dead letters", "ops", _by_group("sum by group (rate({0}{w}))", c.DEAD_LETTERS)),
            Panel("Handler failures", "ops", _by_group("sum by group (rate({0}{w}))", c.FAILURES)),
        ),
    ),
    (
        "What each group does",
        (
            Panel("Records handled", "ops", _by_group("sum by group (rate({0}{w}))", c.CONSUMED)),
            Panel("Lag", "short", _by_group("sum by group ({0})", c.LAG)),
            Panel("Members", "short", _by_group("count by group ({0})", c.GROUP_INFO)),
            Panel("Members that are not ready", "short", _by_group("count by group ({0} == 0)", c.READY)),
            Panel("Rebalances", "short", _by_group("sum by group (increase({0}{w}))", c.REBALANCES)),
            Panel("Worker deaths", "short", _by_group("sum by group (increase({0}{w}))", c.WORKER_RESTARTS)),
            Panel("Workers up", "short", _by_group("sum by group ({0})", c.WORKER_UP)),
            Panel("Versions", "short",
                  _one("count by (version) ({0})", c.BUILD_INFO, "{{version}}")),
        ),
    ),
)  # fmt: skip


def expressions() -> list[str]:
    """Every query of both dashboards."""
    return [query.text() for _, panels in (*ROWS, *FLEET) for panel in panels for query in panel.queries]


def dashboard() -> str:
    """deploy/helm/dashboards/kunicorn.json: one release. The chart gives it the release's name, and its group."""
    return _page("kunicorn", "kunicorn", ROWS)


def fleet_dashboard() -> str:
    """deploy/helm/dashboards/kunicorn-fleet.json: every group side by side."""
    return _page("kunicorn-fleet", "kunicorn: all groups", FLEET)


def _page(uid: str, title: str, rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> str:
    page = {
        "uid": uid,
        "title": title,
        "description": "Generated by `python -m kunicorn.observe`; do not edit.",
        "tags": ["kafka", "kunicorn"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_placed(rows)),
    }
    return json.dumps(page, indent=1, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, Any]]:
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        datasource,
        _variable("job", f"label_values({c.BUILD_INFO.name}, job)"),
        _variable("group", f'label_values({c.ASSIGNED.name}{{job=~"$job"}}, group)'),
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


def _placed(rows: Sequence[tuple[str, tuple[Panel, ...]]]) -> Iterator[dict[str, Any]]:
    """Panels with their places, from left to right, row by row."""
    number = top = 0
    for title, panels in rows:
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


_HEAD = """# States

<!-- Generated by `python -m kunicorn.observe`; do not edit. -->

`kunicorn status` and `/status` show these states. Those of a partition:

| state | means | do |
|---|---|---|
"""

_BELOW = """
A member is fine while it is *stable*. The other states are steps of a rebalance or of a stop: a member that stays in
one of them drains, or waits for brokers. *failed* means that the group has refused the member; the service ends with
exit code 4.

Each table in `kunicorn.group` is flat: a pair that is not drawn cannot happen, and would end the service as a bug.
Steps that lead from many states to the same one are listed below a drawing.
"""

_PASSES = "nothing: it passes"
SEEN: Mapping[states.PartitionState, tuple[str, str]] = {
    states.PartitionState.RUNNING: ("a worker fetches and handles it", "nothing"),
    states.PartitionState.HALTED: (
        "a record cannot be handled; nothing behind it is",
        "read the reason, then `kunicorn resume` or `kunicorn seek` ([runbook](runbooks/KunicornPartitionHalted.md))",
    ),
    states.PartitionState.PAUSED: (
        "a person has paused it, or it is handled up to where it is to end",
        "`kunicorn resume`, if it should go on",
    ),
    states.PartitionState.RESOLVING: ("its start offset is being looked up", "for long: read its reason in `/status`"),
    states.PartitionState.STARTING: ("a worker will fetch it as soon as one is ready", "for long: look at the workers"),
    states.PartitionState.MOVING: ("it drains in one worker and goes on in another one of this member", _PASSES),
    states.PartitionState.STOPPING: ("it drains, because it leaves this member", _PASSES),
    states.PartitionState.STUCK: (
        "its worker outlives SIGKILL, which only the kernel can cause",
        "look at that machine's disks and drivers",
    ),
    states.PartitionState.RELEASED: (
        "this member has let go of it; its consumed offset is final",
        f'{_PASSES}; with `assign.stop = "end"` it stays, handled up to its end',
    ),
}
"""Each state of a partition, as whoever reads `/status` needs it: what it means, and what to do."""

_COMMON = 4
"""A step that leads to one state from more states than this is listed, not drawn: its arrows would hide the others."""


def states_page() -> str:
    """docs/states.md."""
    tables: tuple[tuple[str, Mapping[Any, Enum]], ...] = (
        ("A member with the classic protocol", states.CLASSIC),
        ("A member with the consumer protocol (KIP-848)", states.CONSUMER),
        ("A partition", states.TRANSITIONS),
    )
    seen = "".join(f"| *{state.value}* | {means} | {do} |\n" for state, (means, do) in SEEN.items())
    return _HEAD + seen + _BELOW + "".join(f"\n## {title}\n\n{_diagrams_drawn(table)}" for title, table in tables)


def _diagrams_drawn(table: Mapping[Any, Enum]) -> str:
    """The table as a mermaid diagram; its keys are pairs of state and step."""
    sources: dict[tuple[Enum, Enum], list[Enum]] = defaultdict(list)
    for (state, step), after in table.items():
        sources[step, after].append(state)
    arrows: dict[tuple[Enum, Enum], list[str]] = defaultdict(list)
    common: list[str] = []
    for (step, after), before in sources.items():
        if len(before) > _COMMON:
            common.append(f"- “{step.value}” leads to *{after.value}* from {', '.join(s.value for s in before)}.")
            continue
        for state in before:
            arrows[state, after].append(str(step.value))
    lines = [f"    {_node(a)} --> {_node(b)}: {', '.join(steps)}" for (a, b), steps in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", "", *common, ""])


def _node(state: Enum) -> str:
    return str(state.value).replace(" ", "_").replace("-", "_")


_PAGES_HEAD = """# Metrics

<!-- Generated by `python -m kunicorn.observe`; do not edit. -->

`GET /metrics` answers in Prometheus's text format, or in OpenMetrics to clients that accept it.

| you ask | look at |
|---|---|
| how far behind is the group? | `kafka_consumer_max_lag_seconds` |
| which partition is behind? | `kafka_consumer_lag_seconds`, `kafka_consumer_records_lag` |
| how much is handled, how fast? | `messaging_client_consumed_messages_total`, `messaging_process_duration_seconds` |
| does something fail? | `kunicorn_handler_failures_total`, `kunicorn_dead_letters_total`, `kunicorn_partitions` |
| does the group rebalance? | `kafka_consumer_rebalances_total`, `kunicorn_drain_seconds` |
| are workers well? | `kunicorn_worker_restarts_total`, `kunicorn_worker_load`, `kunicorn_worker_rss_bytes` |

- Durations are seconds, and ages count from now. A value that is not known is absent.
- Every series has the label `group`, the group's id.
- Series with the labels `topic` and `partition` vanish when the partition leaves this member. Above
  `[http] partition_metrics_max` partitions they are left out. `kafka_consumer_max_lag_seconds`, which the alerts on lag
  ask for, and `kafka_consumer_records_lag_max` stay.
- Beside these there are `process_…` of the supervisor itself.

| metric | type | labels | meaning | what to do |
|---|---|---|---|---|
"""

_JOBS = """
## Jobs on Spark

`kunicorn pipeline` serves these at `[http]`'s host and port while a job runs ([pipeline.md](pipeline.md)).

| metric | type | labels | meaning | what to do |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """docs/metrics.md."""
    return _PAGES_HEAD + _rows(every()) + _JOBS + _rows(c.every_of_jobs())


def _rows(declarations: Iterable[Declared]) -> str:
    return "".join(f"{_row(declared)}\n" for declared in declarations)


def _row(declared: Declared) -> str:
    name = declared.name + ("_total" if declared.kind is Kind.COUNTER else "")
    labels = ", ".join(f"`{label}`" for label in declared.labels)
    return f"| `{name}` | {declared.kind} | {labels} | {declared.meaning} | {declared.remedy} |"
