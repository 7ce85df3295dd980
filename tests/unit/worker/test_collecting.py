"""What a worker makes of the handler's own prometheus_client metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Enum, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily

from kunicorn.ipc import messages
from kunicorn.ipc.messages import Family, FromWorker, Pong
from kunicorn.observe.metrics import Families
from kunicorn.worker import stats
from kunicorn.worker.stats import Collecting
from tests.fakes.thread_limit import ThreadLimit
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """The registry is everybody's: what a test adds is removed."""
    before = set(REGISTRY._collector_to_names)
    yield
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def reported(handlers: Collecting) -> dict[str, Family]:
    found, _ = handlers.last()
    return {family.name: family for family in found or ()}


def test_the_handlers_metrics_are_collected_and_python_s_own_are_not() -> None:
    counter = Counter("shipped", "Shipped.", ["country"])
    counter.labels("de").inc(2)
    Histogram("size", "Sizes.", buckets=(1.0,)).observe(0.5)
    found = reported(Collecting(None))
    assert set(found) == {"shipped", "size"}
    (sample,) = found["shipped"].samples
    assert (sample.name, sample.labels, sample.value) == ("shipped_total", {"country": "de"}, 2.0)
    assert {s.name for s in found["size"].samples} == {"size_bucket", "size_count", "size_sum"}, "no _created"


def test_gauges_say_how_they_are_to_be_merged_and_only_finite_values_are_told() -> None:
    Gauge("oldest", "", multiprocess_mode="livemax").set(3)
    Gauge("plain", "").set(1)
    Gauge("broken", "").set(float("nan"))
    found = reported(Collecting(None))
    assert (found["oldest"].merge, found["plain"].merge) == ("max", "sum")
    assert found["broken"].samples == []


def test_what_is_true_in_several_workers_is_no_sum_of_them() -> None:
    """Two workers of one version have no version 2, and an Enum whose states add up is in none."""
    Info("shop_build", "").info({"version": "1.2"})
    Enum("shop_circuit", "", states=["open", "closed"]).state("closed")
    one = [*reported(Collecting(None)).values()]
    families = Families(())
    for pid in (1, 2, 3):
        families.report(pid, one)
    told = {
        (sample.name, *sample.labels.values()): sample.value for each in families.collect() for sample in each.samples
    }
    assert told == {("shop_build_info", "1.2"): 1, ("shop_circuit", "open"): 0, ("shop_circuit", "closed"): 1}


def test_what_is_told_survives_the_pipe() -> None:
    Counter("odd", "l\udcffne", ["who"]).labels("\udcff").inc()
    families, _ = Collecting(None).last()
    pong = Pong(1, 1, 1, None, 1, False, 0, families=families)
    assert messages.decode(messages.encode(pong), FromWorker) == pong


def test_the_control_thread_is_told_only_what_has_changed_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_INTERVAL", 0.02)
    counter = Counter("steps", "")
    handlers = Collecting(None)
    assert handlers.news() == (None, None), "nothing is collected yet"
    first = wait_until(lambda: handlers.news()[0], "the first collection")
    assert first[0].samples[0].value == 0
    counter.inc()
    second = wait_until(lambda: handlers.news()[0], "the change")
    assert second[0].samples[0].value == 1
    assert handlers.news() == (None, None)
    handlers.last()


def test_where_no_thread_can_be_started_the_worker_goes_on_without_metrics_until_one_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the control thread that asks: with it the worker would end, and all that is in hand with that."""
    Counter("steps", "")
    handlers, limit = Collecting(None), ThreadLimit(monkeypatch, 0)
    for _ in range(3):
        assert handlers.news() == (None, None)
    assert limit.refused == 3
    (told,) = caplog.messages
    assert told.startswith("metrics are not collected: can't start new thread. ")
    limit.left = 1
    assert wait_until(lambda: handlers.news()[0], "the first collection")[0].name == "steps"
    handlers.last()


class Waits:
    """An event that is set behind three waits, and keeps how long they were to last."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == 3


def test_a_handler_that_has_no_metrics_is_asked_no_oftener_than_others() -> None:
    handlers, waits = Collecting(None), Waits()
    handlers._over = waits  # type: ignore[assignment]
    handlers._keep()
    assert handlers._handler.latest == []
    assert waits.seconds == [stats._FIRST, stats._INTERVAL, stats._INTERVAL]


def test_after_the_last_word_the_handlers_collectors_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_FIRST", 0.01)
    Counter("steps", "")
    handlers = Collecting(None)
    wait_until(lambda: handlers.news()[0], "the first collection")
    assert handlers._thread is not None
    handlers.last()
    handlers._thread.join(60)
    assert not handlers._thread.is_alive()


def test_a_collector_that_raises_is_told_once_and_the_last_values_stay(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        fails = False

        def collect(self) -> Iterator[Any]:
            if self.fails:
                raise RuntimeError("no database")
            yield GaugeMetricFamily("fine", "", value=1)

    broken = Broken()
    REGISTRY.register(broken)
    handlers = Collecting(None)
    assert "fine" in reported(handlers)
    broken.fails = True
    for _ in range(2):
        assert handlers.last()[0] is None
    assert caplog.text.count("metrics cannot be collected: RuntimeError: no database") == 1


def test_a_label_with_a_value_for_each_record_costs_that_metric_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats, "MOST_SERIES", 10)
    Counter("a_good_one", "").inc()
    keys = Counter("by_key", "", ["key"])
    for number in range(20):
        keys.labels(str(number)).inc()
    assert set(reported(Collecting(None))) == {"a_good_one"}
    assert "by_key and those after it are left out: a worker reports at most 10 series" in caplog.text
