"""A handler that keeps metrics of its own, as users' handlers do."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from kunicorn import Record

SHIPPED = Counter("shop_orders_shipped", "Orders shipped.", ["partition"])
OPEN = Gauge("shop_connections_open", "Connections to the database.")
OPEN.set(1)


def handle(record: Record) -> None:
    """Count one record."""
    SHIPPED.labels(str(record.partition)).inc()
