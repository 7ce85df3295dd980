"""What a call with rows of several partitions counts for."""

from __future__ import annotations

import pytest

from kunicorn import Batch, BatchError, Skip
from kunicorn.handler.config import Batching, CircuitBreaking, Decoding, HandlerConfig
from kunicorn.observe.catalogue import CIRCUIT_OPENED, PROCESS_SECONDS
from kunicorn.testing import record
from tests.fakes.counts import counts_of
from tests.unit.worker.whole import Worker

TOPICS = "a", "b", "c"
calls: list[list[str]] = []
"""Topics of each call's rows."""
failing: set[str] = set()
"""Topics whose rows fail in the first call."""
passed_over: set[tuple[str, int]] = set()
"""Topics and offsets of rows that are passed over in it."""


def failing_at_first(records: Batch) -> BatchError | None:
    """What is needed is away in the first call."""
    topics = [each.topic for each in records]
    calls.append(topics)
    if len(calls) > 1:
        return None
    bad = [(each.topic, each.offset) in passed_over for each in records]
    return BatchError(outcomes=[(Skip("a bad row"), bad), (OSError("away"), [topic in failing for topic in topics])])


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.clear()
    failing.clear()
    passed_over.clear()


def handle(*fail: str, min_calls: int = 1, undecodable: str = "") -> Worker:
    """Two rows of each topic, of which those of some fail together, and those of one are no JSON."""
    failing.update(fail)
    breaking = CircuitBreaking(["builtins.OSError"], 1.0, 60_000, min_calls, open_ms=1, probes=1)
    across = Batching(memory_bytes=1 << 20, batch_across_partitions=True)
    config = HandlerConfig(
        f"{__name__}:failing_at_first", "batch", {}, 100, 1, 1, 10, on_failure="skip", topics=list(TOPICS),
        circuit_breaker=breaking, batching=across, decoding=Decoding("json"),
    )  # fmt: skip
    worker = Worker(config)
    values = {topic: b"{" if topic == undecodable else b"1" for topic in TOPICS}
    worker.handle(record(values[topic], topic=topic) for _ in range(2) for topic in TOPICS)
    assert sorted(calls[0]) == [topic for topic in TOPICS if topic != undecodable for _ in range(2)], "one call"
    return worker


def told_by(worker: Worker) -> tuple[int, int, int, int]:
    """How often the circuit breaker has opened, failures, calls, and records that were skipped."""
    counted, observed = worker.made.counters.take()
    opened = sum(each.amount for each in counted if each.name == CIRCUIT_OPENED.name)
    counts = counts_of(counted, observed)
    totals = [(each.failures, each.calls, each.skipped) for each in counts]
    return opened, *map(sum, zip(*totals, strict=True))  # type: ignore[return-value]


def test_one_call_that_has_failed_counts_once_however_many_partitions_it_had() -> None:
    worker = handle(*TOPICS, min_calls=2)
    assert told_by(worker) == (0, 1, 1, 6)
    assert len(calls) == 1


@pytest.mark.parametrize("fails", TOPICS)
def test_a_call_that_has_failed_for_one_partition_is_no_good_one_for_the_others(fails: str) -> None:
    worker = handle(fails)
    opened, failures, _, skipped = told_by(worker)
    assert (opened, failures, skipped) == (1, 1, 0)
    assert calls[1] == [fails]


def test_a_call_counts_that_has_done_all_it_had_although_another_partitions_row_behind_cannot_be_decoded() -> None:
    worker = handle(undecodable="c")
    _, observed = worker.made.counters.take()
    good = [each for each in observed if each.name == PROCESS_SECONDS.name and each.labels[1] == ""]
    assert (len(calls), sum(sum(each.buckets) for each in good)) == (1, 1)


def test_rows_of_all_partitions_wait_for_the_circuit_breaker_that_their_call_has_opened() -> None:
    worker = handle(*TOPICS)
    opened, failures, _, skipped = told_by(worker)
    assert (opened, failures, skipped) == (1, 1, 0)
    assert sorted(topic for call in calls[1:] for topic in call) == ["a", "a", "b", "b", "c", "c"]


def test_rows_behind_another_outcome_wait_for_the_circuit_breaker_that_another_partitions_rows_have_opened() -> None:
    passed_over.add(("b", 0))
    worker = handle(*TOPICS)
    opened, failures, _, skipped = told_by(worker)
    assert (opened, failures, skipped) == (1, 1, 1)
    assert sorted(topic for call in calls[1:] for topic in call) == ["a", "a", "b", "c", "c"]
