"""Properties of a producer of outputs, for tests that make one as a worker does."""

from __future__ import annotations

from typing import Any

from kunicorn.librdkafka.properties import Property, producer_properties


def of_outputs(**overrides: Any) -> dict[str, Property]:
    """With everything at its plainest; `overrides` are arguments of `producer_properties`."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": ["a:1"],
        "client_id": "orders-0",
        "security": {},
        "consumers_extra": {},
        "extra": {},
        "transactional_id": None,
        "transaction_timeout_ms": 10_000,
        "delivery_timeout_ms": 30_000,
        "linger_ms": 5,
        "compression_type": "none",
        "acks": "all",
        "buffer_memory": 1 << 25,
    }
    return producer_properties(**{**arguments, **overrides})
