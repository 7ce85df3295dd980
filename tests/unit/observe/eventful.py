"""Metrics of a service in which everything that can be counted has happened."""

from __future__ import annotations

from kunicorn.handler.retry import End
from kunicorn.ipc.messages import Pong
from kunicorn.observe import catalogue as c
from kunicorn.observe.metrics import Metrics
from kunicorn.worker.fetching.client import ClientStatistics
from kunicorn.worker.stats import Counters

_STATISTICS = (
    '{"brokers": {"b:9092/1": {"nodeid": 1, "rxbytes": 100, "rtt": {"avg": 2000, "cnt": 3}}}, '
    '"topics": {"orders": {"partitions": {"0": {"fetchq_cnt": 5, "fetchq_size": 500}}}}}'
)


def eventful() -> Metrics:
    """Everything that can be counted has happened."""
    return _supervised(_worked())


def _worked() -> Metrics:
    """A worker has told of everything that it counts."""
    clients = ClientStatistics()
    clients.take(_STATISTICS)
    counters = Counters()
    counters.finished("orders", 10, 20_000_000, 10)
    counters.finished("orders", 0, 480_000_000, 0)
    counters.finished("refunds", 1, 250_000_000, 0)
    for retried in (True, True, True, False):
        counters.failed("orders", retried=retried)
    counters.passed_over("orders", 1, End.DEAD_LETTER, "attempts")
    counters.passed_over("orders", 2, End.DEAD_LETTER, "handler")
    counters.passed_over("orders", 5, End.SKIP, "attempts")
    counters.passed_over("orders", 6, End.RETRY_TOPIC, "5s")
    counters.count(c.HANDLER_TIMEOUTS, 7, "orders")
    counters.count(c.HOOK_FAILURES, 1, "on_assigned")
    counters.count(c.HOOK_FAILURES, 2, "load_offsets")
    counters.count(c.SENT, 8, "totals", "")
    counters.count(c.SENT, 1, "totals", "NOT_ENOUGH_REPLICAS")
    counters.observe(c.OPERATION_SECONDS, 0.06, "send", "NOT_ENOUGH_REPLICAS")
    counters.called_in_vain("orders", "ValueError", 30_000_000, 1)
    for seconds in (0.004, 0.25, 20.0):
        counters.count(c.TRANSACTIONS, 1, "committed")
        counters.observe(c.TRANSACTION_SECONDS, seconds)
    counters.count(c.TRANSACTIONS, 9, "aborted")
    counted, observed = counters.take()
    families = clients.families()
    metrics = Metrics()
    metrics.hear(1, Pong(1, 1, 10, None, 1, False, 0, counted, observed, client_families=families))
    return metrics


def _supervised(metrics: Metrics) -> Metrics:
    """The supervisor has counted everything that it counts."""
    metrics.count(c.HANDLER_TIMEOUTS, topic="orders")
    metrics.count(c.HEARTBEATS, result="ok")
    metrics.observe(c.HEARTBEAT_SECONDS, 0.02)
    metrics.count(c.REBALANCES, result="completed", reason="join")
    metrics.observe(c.REBALANCE_SECONDS, 3)
    metrics.count(c.PARTITIONS_LOST, 2)
    metrics.count(c.COMMITS, result="ok")
    metrics.observe(c.COMMIT_SECONDS, 0.003)
    metrics.observe(c.OPERATION_SECONDS, 0.003, operation="commit", error_type="")
    metrics.count(c.OTLP_EXPORTS, result="ok")
    metrics.count(c.OFFSET_RESETS, reason="truncated")
    metrics.observe(c.DRAIN_SECONDS, 0.3)
    metrics.count(c.WORKER_RESTARTS, reason="SIGKILL")
    metrics.count(c.WORKER_RECYCLES, reason="age")
    metrics.count(c.PARTITION_MOVES, reason="load")
    metrics.count(c.RELOADS, result="completed")
    metrics.count(c.TEMPLATE_RESTARTS)
    metrics.count(c.REPORTS_REFUSED, reason="old grant")
    metrics.count(c.HTTP_ACTIONS, action="drain", result="done")
    return metrics
