"""Handlers' metrics of many workers, as one."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric

from kunicorn.ipc.messages import Family, Pong, Sample
from kunicorn.observe import metrics as module
from kunicorn.observe.metrics import Families, Metrics
from tests.unit.observe.snapshots import status


def counter(value: float, name: str = "orders_shipped", **labels: str) -> Family:
    return Family(name, "counter", "Shipped.", [Sample(f"{name}_total", labels, value)])


def gauge(value: float, merge: str = "sum") -> Family:
    return Family("stock", "gauge", "Left.", [Sample("stock", {}, value)], merge)


def histogram(*buckets: float, bounds: tuple[str, ...] = ("0.1", "+Inf")) -> Family:
    samples = [Sample("size_bucket", {"le": le}, n) for le, n in zip(bounds, buckets, strict=True)]
    return Family(
        "size", "histogram", "Sizes.", [*samples, Sample("size_sum", {}, 1.5), Sample("size_count", {}, buckets[-1])]
    )


def values(families: Families) -> dict[str, float]:
    """By name and labels, as on the page."""
    return {
        sample.name + "".join(f"|{v}" for _, v in sorted(sample.labels.items())): sample.value
        for metric in families.collect()
        for sample in metric.samples
    }


def test_counters_and_histograms_are_summed_by_their_labels() -> None:
    families = Families(())
    families.report(1, [counter(3, country="de"), histogram(1, 4)])
    families.report(2, [counter(5, country="de"), histogram(0, 2)])
    families.report(3, [counter(7, country="fr")])
    assert values(families) == {
        "orders_shipped_total|de": 8,
        "orders_shipped_total|fr": 7,
        "size_bucket|0.1": 1,
        "size_bucket|+Inf": 6,
        "size_sum": 3.0,
        "size_count": 6,
    }


def test_a_report_replaces_the_workers_last_one() -> None:
    families = Families(())
    families.report(1, [counter(3)])
    families.report(1, [counter(4)])
    assert values(families) == {"orders_shipped_total": 4}


def test_what_a_dead_worker_has_counted_stays_and_its_gauges_go() -> None:
    families = Families(())
    families.report(1, [counter(3), gauge(10)])
    families.gone(1)
    assert values(families) == {"orders_shipped_total": 3}
    families.report(2, [counter(1), gauge(5)])
    families.gone(2)
    families.gone(2)
    families.report(3, [counter(1), gauge(7)])
    assert values(families) == {"orders_shipped_total": 5, "stock": 7}


@pytest.mark.parametrize(("merge", "together"), [("sum", 12), ("min", 2), ("max", 10), ("unheard of", 12)])
def test_gauges_are_merged_as_they_say(merge: str, together: float) -> None:
    families = Families(())
    families.report(1, [gauge(10, merge)])
    families.report(2, [gauge(2, merge)])
    assert values(families)["stock"] == together


def test_a_metric_that_a_reload_made_another_one_begins_anew() -> None:
    families = Families(())
    families.report(1, [counter(3)])
    families.gone(1)
    families.report(2, [Family("orders_shipped", "gauge", "", [Sample("orders_shipped", {}, 1)])])
    assert values(families) == {"orders_shipped": 1}


def test_a_histogram_that_a_reload_gave_other_buckets_is_summed_with_its_like_alone() -> None:
    other = ("1.0", "2.0", "+Inf")
    families = Families(())
    families.report(1, [histogram(10, 20)])
    families.report(2, [histogram(10, 20)])
    families.gone(1)
    families.report(3, [histogram(1, 2, 3, bounds=other)])
    families.report(4, [Family("size", "histogram", "Sizes.", [])])
    one = {"size_bucket|1.0": 1, "size_bucket|2.0": 2, "size_bucket|+Inf": 3, "size_sum": 1.5, "size_count": 3}
    assert values(families) == one
    families.gone(2)
    families.gone(3)
    families.gone(4)
    assert values(families) == one
    families.report(5, [histogram(1, 1, 1, bounds=other)])
    assert values(families) == {
        "size_bucket|1.0": 2,
        "size_bucket|2.0": 3,
        "size_bucket|+Inf": 4,
        "size_sum": 3.0,
        "size_count": 4,
    }


def test_a_name_of_ours_is_left_out_and_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    families = Families({"kunicorn_live"})
    for _ in range(2):
        families.report(1, [counter(1, "kunicorn_live"), counter(2)])
    assert values(families) == {"orders_shipped_total": 2}
    assert capfd.readouterr().err.count("the handler's metric kunicorn_live is left out") == 1


def test_after_a_hundred_of_them_it_is_told_once_that_no_more_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    names = [f"kunicorn_{number}" for number in range(103)]
    families = Families(names)
    for _ in range(2):
        families.report(1, [counter(1, name) for name in names])
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 101
    assert "the handler's metric kunicorn_100 is left out: the service has one of that name" in lines[-1]
    assert lines[-1].endswith("there were 100 warnings like this, and no further ones are told")


def test_counters_of_the_dead_do_not_grow_without_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_MOST_SERIES", 3)
    families = Families(())
    for pid in range(5):
        families.report(pid, [counter(1, key=str(pid))])
        families.gone(pid)
    assert len(values(families)) <= 3
    assert "use labels with few values" in capfd.readouterr().err


def test_they_stand_on_the_page_beside_ours() -> None:
    metrics = Metrics()
    pong = Pong(1, 1, 1, None, 1, False, 0, families=[counter(3, country='d"e\n')])
    metrics.hear(7, pong)
    page = metrics.render(status(), "", 2000)[0].decode()
    assert '# TYPE orders_shipped_total counter\norders_shipped_total{country="d\\"e\\n"} 3.0' in page
    metrics.hear(7, Pong(2, 1, 1, None, 1, False, 0))
    assert "orders_shipped_total" in metrics.render(status(), "application/openmetrics-text", 2000)[0].decode()
    assert "kunicorn_client" not in page


def test_every_kind_of_metric_can_be_rendered() -> None:
    families = Families(())
    info = Family("model", "info", "", [Sample("model_info", {"version": "3"}, 1)])
    summary = Family("wait", "summary", "", [Sample("wait_count", {}, 2), Sample("wait_sum", {}, 3)])
    families.report(1, [info, summary, histogram(1, 2), gauge(1), counter(1)])

    class Registry:
        def collect(self) -> list[Metric]:
            return list(families.collect())

    text = generate_latest(Registry()).decode()
    assert 'model_info{version="3"} 1.0' in text
    assert "wait_sum 3.0" in text
