"""Every way of calling handlers that there is, and whoever fetches."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from kunicorn.worker.assembly import OWN
from tests.contract.worker.plan import OTHER, TOPIC, Way

WAYS: dict[str, Mapping[str, Way]] = {
    "a record": {TOPIC: Way("record")},
    "a record async": {TOPIC: Way("record_async")},
    "a batch": {TOPIC: Way("batch", "batch")},
    "a batch async": {TOPIC: Way("batch_async", "batch")},
    "arrow": {TOPIC: Way("arrow", "batch")},
    "threads by partition": {TOPIC: Way("record", concurrency=3)},
    "threads by key": {TOPIC: Way("record", ordering="key", concurrency=3)},
    "threads in no order": {TOPIC: Way("record", ordering="none", concurrency=3)},
    "tasks by partition": {TOPIC: Way("record_async", concurrency=5)},
    "tasks by key": {TOPIC: Way("record_async", ordering="key", concurrency=5)},
    "tasks in no order": {TOPIC: Way("record_async", ordering="none", concurrency=5)},
    "two handlers": {TOPIC: Way("record"), OTHER: Way("record_async")},
    "two handlers, one of batches": {TOPIC: Way("batch", "batch"), OTHER: Way("record")},
    "two handlers, batches and tasks": {
        TOPIC: Way("batch", "batch"),
        OTHER: Way("record_async", ordering="none", concurrency=3),
    },
    "two handlers, one after the other and threads": {
        TOPIC: Way("record"),
        OTHER: Way("record", ordering="key", concurrency=3),
    },
    "a fuller batch": {TOPIC: Way("batch", "batch", batch_max_records=3, batch_max_ms=50)},
    "two handlers, threads and tasks": {
        TOPIC: Way("record", ordering="key", concurrency=2),
        OTHER: Way("record_async", ordering="none", concurrency=3),
    },
}
YIELDING: dict[str, Mapping[str, Way]] = {
    "yielded": {TOPIC: Way("yielding")},
    "yielded async by key": {TOPIC: Way("yielding_async", ordering="key", concurrency=3)},
}
"""Where nothing is sent, the worker refuses it."""

BOTH_FETCHERS = frozenset(
    (
        "a record",
        "a batch",
        "arrow",
        "threads by key",
        "tasks by key",
        "two handlers, batches and tasks",
        "yielded",
    )
)
"""Ways that each run of the tests tries over our own fetcher, too. Workers branch on the form in which records come,
not on who fetches: these have each form (one, several, columns), in the loop's thread, in threads and in tasks."""


def fetchers(way: str) -> Mapping[str, Collection[pytest.MarkDecorator]]:
    """Who fetches, with the marks of tests over it: all ways over both are `long`."""
    return {"librdkafka": (), OWN: () if way in BOTH_FETCHERS else (pytest.mark.long,)}
