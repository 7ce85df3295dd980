"""What a scraper sees. Every page is parsed by Prometheus's own parsers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from kunicorn.ipc.messages import Counted, Observed, Pong
from kunicorn.observe import catalogue as c
from kunicorn.observe import logs
from kunicorn.observe import metrics as module
from kunicorn.observe.catalogue import Declared, Kind, every
from kunicorn.observe.generate import metrics_page
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import CommitStatus, Status
from kunicorn.worker.fetching.client import ClientStatistics
from tests.unit.observe.snapshots import assigned, group, partition, status, worker

BOUNDS = c.PROCESS_SECONDS.buckets

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(metrics: Metrics, snapshot: Status, accept: str = "", limit: int = 2000) -> Samples:
    body, _ = metrics.render(snapshot, accept, limit)
    text = body.decode()
    parse: Any = openmetrics_parser if text.endswith("# EOF\n") else parser
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse.text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The value of the service's series with these labels, beside that of the group."""
    return samples.get((name, frozenset({"group": "shop", **labels}.items())))


def names(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


def hear(metrics: Metrics, *counted: tuple[Declared, list[str], int]) -> None:
    """A worker tells that it has counted these."""
    told = [Counted(declared.name, labels, amount) for declared, labels, amount in counted]
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, told))


def hear_durations(metrics: Metrics, seconds: float, *buckets: int) -> None:
    """Handler calls, one in each of these buckets."""
    counts = [0] * (len(BOUNDS) + 1)
    for bucket in buckets:
        counts[bucket] += 1
    observed = Observed(c.PROCESS_SECONDS.name, ["orders", ""], counts, seconds)
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, observed=[observed]))


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "*/*", "x;;="])
def test_both_formats_say_the_same(accept: str) -> None:
    metrics = Metrics()
    metrics.count(c.COMMITS, 3, result="ok")
    samples = scraped(metrics, status(), accept)
    assert value(samples, "kafka_consumer_commits_total", result="ok") == 3
    assert value(samples, "kafka_consumer_records_lag", group="shop", topic="orders", partition="0") == 10


def test_without_a_group_there_are_lags_but_no_series_of_membership_or_commits() -> None:
    samples = scraped(Metrics(), assigned(partitions=(partition(0, committed=None),)))
    assert value(samples, "kafka_consumer_records_lag", group="shop", topic="orders", partition="0") == 10
    words = ("heartbeat", "rebalance", "commit", "generation", "session", "lease_left", "member_state")
    assert not [name for name in names(samples) if any(word in name for word in words)]
    assert "kafka_consumer_commit_duration_seconds_count" in names(scraped(Metrics(), status()))


def test_openmetrics_is_sent_to_whoever_accepts_it() -> None:
    metrics = Metrics()
    assert metrics.render(status(), "application/openmetrics-text", 1)[1].startswith("application/openmetrics-text")
    assert metrics.render(status(), "text/plain", 1)[1].startswith("text/plain; version=0.0.4")


def test_workers_reports_add_up_by_topic() -> None:
    metrics = Metrics()
    hear(metrics, (c.CONSUMED, ["orders"], 5), (c.FAILURES, ["orders"], 2), (c.RETRIES, ["orders"], 1))
    hear(metrics, (c.CONSUMED, ["orders"], 7), (c.CONSUMED, ["refunds"], 1))
    samples = scraped(metrics, status())
    assert value(samples, "messaging_client_consumed_messages_total", topic="orders") == 12
    assert value(samples, "messaging_client_consumed_messages_total", topic="refunds") == 1
    assert value(samples, "kunicorn_handler_failures_total", topic="orders") == 2
    assert value(samples, "kunicorn_handler_retries_total", topic="orders") == 1


@pytest.mark.parametrize(
    ("counter", "name", "label", "total"),
    [
        (c.DEAD_LETTERS, "kunicorn_dead_letters_total", "reason", "dead_letters"),
        (c.RETRY_TOPICS, "kunicorn_retry_topic_records_total", "delay", "retry_topics"),
    ],
)
def test_records_sent_elsewhere_are_told_by_why_and_add_up_for_the_status(
    counter: Declared, name: str, label: str, total: str
) -> None:
    metrics = Metrics()
    hear(metrics, (counter, ["orders", "one"], 2), (counter, ["orders", "other"], 1))
    hear(metrics, (counter, ["orders", "one"], 1))
    samples = scraped(metrics, status())
    assert value(samples, name, topic="orders", **{label: "one"}) == 3
    assert value(samples, name, topic="orders", **{label: "other"}) == 1
    assert metrics.totals[total] == 4


def test_workers_durations_become_a_cumulative_histogram() -> None:
    metrics = Metrics()
    hear_durations(metrics, 0.5, 0, 0, 3)
    hear_durations(metrics, 400.0, len(BOUNDS))
    samples = scraped(metrics, status())
    name = "messaging_process_duration_seconds"
    assert value(samples, f"{name}_bucket", topic="orders", le=str(BOUNDS[0])) == 2
    assert value(samples, f"{name}_bucket", topic="orders", le=str(BOUNDS[3])) == 3
    assert value(samples, f"{name}_bucket", topic="orders", le=str(BOUNDS[-1])) == 3
    assert value(samples, f"{name}_bucket", topic="orders", le="+Inf") == 4
    assert value(samples, f"{name}_count", topic="orders") == 4
    assert value(samples, f"{name}_sum", topic="orders") == 400.5


def test_a_partitions_series_vanish_when_it_leaves() -> None:
    metrics = Metrics()
    gone = {"group": "shop", "topic": "orders", "partition": "1"}
    assert value(scraped(metrics, status()), "kafka_consumer_position", **gone) == 90
    assert value(scraped(metrics, status(partitions=(partition(0),))), "kafka_consumer_position", **gone) is None


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    unknown = partition(0, position=None, committed=None, log_end=None, lag=None, lag_seconds=None)
    snapshot = status(
        partitions=(unknown,),
        workers=(worker(rss_bytes=None),),
        group=group(generation=-1, heartbeat_age=None, lease_left=None, last_rebalances=()),
    )
    assert names(scraped(Metrics(), snapshot)).isdisjoint(
        {
            "kafka_consumer_position",
            "kafka_consumer_committed_offset",
            "kafka_consumer_log_end_offset",
            "kafka_consumer_records_lag",
            "kafka_consumer_records_lag_max",
            "kafka_consumer_lag_seconds",
            "kafka_consumer_max_lag_seconds",
            "kafka_consumer_group_generation",
            "kafka_consumer_last_heartbeat_seconds",
            "kafka_consumer_last_rebalance_seconds",
            "kunicorn_lease_left_seconds",
            "kunicorn_inflight_oldest_seconds",
            "kunicorn_worker_rss_bytes",
        }
    )


def test_no_lag_is_zero_and_not_absent() -> None:
    samples = scraped(Metrics(), status(partitions=(partition(0, lag=0, lag_seconds=0.0),)))
    labels = {"group": "shop", "topic": "orders", "partition": "0"}
    assert value(samples, "kafka_consumer_records_lag", **labels) == 0
    assert value(samples, "kafka_consumer_lag_seconds", **labels) == 0


def test_the_oldest_record_is_told_by_topic() -> None:
    of_refunds = partition(0, topic="refunds", lag_seconds=0.0)
    unknown = partition(2, lag_seconds=None), partition(0, topic="mails", lag_seconds=None)
    behind = partition(0, lag_seconds=3.0), partition(1, lag_seconds=70.0)
    samples = scraped(Metrics(), status(partitions=(*behind, *unknown, of_refunds)))
    oldest = {
        topic: value(samples, "kafka_consumer_max_lag_seconds", group="shop", topic=topic)
        for topic in ("orders", "refunds", "mails")
    }
    assert oldest == {"orders": 70.0, "refunds": 0.0, "mails": None}


def test_a_halted_partition_is_counted_by_its_state() -> None:
    samples = scraped(Metrics(), status(partitions=(partition(0), partition(1, state="halted", reason="raised"))))
    assert value(samples, "kunicorn_partitions", group="shop", state="halted") == 1
    assert value(samples, "kunicorn_partitions", group="shop", state="running") == 1
    assert value(samples, "kunicorn_partitions", group="shop", state="stuck") == 0


@pytest.mark.parametrize(("reached", "outage", "told"), [(True, None, 1), (False, None, 0), (True, "no broker", 0)])
def test_brokers_count_as_reached_from_the_first_answer_on_but_in_an_outage(
    reached: bool, outage: str | None, told: int
) -> None:
    samples = scraped(Metrics(), status(brokers_reached=reached, outage=outage))
    assert value(samples, "kunicorn_brokers_reached", group="shop") == told


def test_the_group_series_tell_the_snapshot() -> None:
    busy = status(
        partitions=(partition(0, lag=3, in_hand=90, in_hand_age=2.5), partition(1, lag=8, in_hand=5, in_hand_age=0.1)),
        workers=(worker(0, in_flight=1), worker(1, in_flight=3)),
    )
    samples = scraped(Metrics(), busy)
    expected = {
        "kafka_consumer_assigned_partitions": 2,
        "kafka_consumer_records_lag_max": 8,
        "kafka_consumer_group_generation": 7,
        "kafka_consumer_last_heartbeat_seconds": 0.4,
        "kafka_consumer_last_rebalance_seconds": 20,
        "kunicorn_session_timeout_seconds": 45,
        "kunicorn_lease_left_seconds": 44,
        "kunicorn_last_commit_seconds": 2,
        "kunicorn_uncommitted_partitions": 2,
        "kunicorn_inflight_records": 4,
        "kunicorn_inflight_oldest_seconds": 2.5,
    }
    assert {name: value(samples, name, group="shop") for name in expected} == expected
    assert value(samples, "kafka_consumer_group_info", group="shop", protocol="classic", instance_id="") == 1


def test_what_is_not_committed_is_counted_before_the_first_commit_as_the_catalogue_says() -> None:
    """KunicornCommitsFailing needs it: a member that has never committed counts from its start."""
    samples = scraped(Metrics(), status(commit=CommitStatus(last_age=None, last_result="denied", pending=True)))
    assert value(samples, "kunicorn_last_commit_seconds", group="shop") is None
    assert value(samples, "kunicorn_uncommitted_partitions", group="shop") == 2
    assert c.COMMIT_AGE.name not in c.UNCOMMITTED.meaning
    unless = "with transactions, and where all handlers keep their offsets."
    assert c.UNCOMMITTED.meaning.endswith(f"; absent {unless}")
    assert c.COMMIT_AGE.meaning.endswith(f"; absent before the first, {unless}")


@pytest.mark.parametrize(
    ("state", "up"), [("ready", 1), ("draining", 1), ("starting", 0), ("idle", 0), ("backing-off", 0), ("dead", 0)]
)
def test_a_worker_is_up_while_it_handles_records_or_could(state: str, up: int) -> None:
    samples = scraped(Metrics(), status(workers=(worker(3, state=state),)))
    assert value(samples, "kunicorn_worker_up", worker="3") == up


def test_above_the_limit_the_partition_series_go_and_the_sums_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logs._output, "emit", lambda level, logger, event: said.append(event["event"]))
    metrics = Metrics()
    samples = [scraped(metrics, status(), limit=1) for _ in range(3)][-1]
    assert "kafka_consumer_records_lag" not in names(samples)
    assert value(samples, "kafka_consumer_records_lag_max", group="shop") == 10
    assert value(samples, "kafka_consumer_max_lag_seconds", group="shop", topic="orders") == 1.5
    assert len(said) == 1
    assert "2 are assigned, [http] partition_metrics_max is 1" in said[0]


def test_every_declared_metric_is_exposed_and_every_exposed_one_declared() -> None:
    metrics = Metrics()
    for declared in (each for each in every() if not each.counted_elsewhere):
        if declared.kind is Kind.COUNTER:
            metrics.count(declared, 1, **dict.fromkeys(declared.labels, "x"))
        elif declared.kind is Kind.HISTOGRAM:
            metrics.observe(declared, 1.0, **dict.fromkeys(declared.labels, "x"))
    clients = ClientStatistics()
    clients.take('{"brokers": {"b:9092/1": {"nodeid": 1}}}')
    metrics.clients.report(1, clients.families())
    busy = status(partitions=(partition(0, in_hand=1, in_hand_age=1.0),))
    body, _ = metrics.render(busy, "", 2000)
    found = {
        (family.name, family.type)
        for family in parser.text_string_to_metric_families(body.decode())
        if not family.name.startswith("process_") and not family.name.endswith("_created")
    }
    assert found == {(declared.name, declared.kind.value) for declared in every()}


def test_the_metrics_page_is_current() -> None:
    assert (Path(__file__).parents[3] / "docs" / "metrics.md").read_text() == metrics_page(), (
        "run `python -m kunicorn.observe`"
    )


def test_names_belong_to_no_exporter() -> None:
    assert [d.name for d in every() if d.name.startswith("kafka_consumergroup")] == []


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_names_of_groups_and_topics_cannot_break_the_page(accept: str) -> None:
    evil = 'a"b\\c\nd'
    snapshot = status(group_id=evil, partitions=(partition(0, topic=evil),))
    samples = scraped(Metrics(), snapshot, accept)
    assert value(samples, "kafka_consumer_records_lag", group=evil, topic=evil, partition="0") == 10


def test_a_counter_that_the_supervisor_does_not_know_ends_nothing() -> None:
    metrics = Metrics()
    told = [Counted("kunicorn_of_tomorrow", [], 1), Counted(c.CONSUMED.name, ["orders"], 1)]
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, told, [Observed("kunicorn_of_tomorrow_seconds", [], [1], 1.0)]))
    assert value(scraped(metrics, status()), "messaging_client_consumed_messages_total", topic="orders") == 1


def test_topics_that_records_name_have_series_up_to_a_limit_and_the_rest_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_OUTPUTS", 2)
    metrics = Metrics()
    for number in range(5):
        hear(metrics, (c.SENT, [f"to-{number}", ""], 1), (c.UNENCODED, [f"to-{number}", "content"], 1))
        hear(metrics, (c.CONSUMED, [f"from-{number}"], 1))
    metrics.forget("to-1")
    hear(metrics, (c.SENT, ["to-9", ""], 1))
    told = scraped(metrics, status())
    sent = {
        dict(labels)["topic"]: sum for (name, labels), sum in told.items() if name.startswith("messaging_client_se")
    }
    assert sent == {"to-0": 1, "_OTHER": 3, "to-9": 1}
    assert value(told, "kunicorn_unencoded_outputs_total", topic="_OTHER", why="content") == 3
    assert value(told, "messaging_client_consumed_messages_total", topic="from-4") == 1
    assert metrics.totals["sent"] == 6


def test_a_topic_that_is_forgotten_has_no_series_more_and_what_was_counted_over_all_stays() -> None:
    metrics = Metrics()
    for topic in ("day-1", "day-2"):
        hear(metrics, (c.CONSUMED, [topic], 5), (c.DEAD_LETTERS, [topic, "attempts"], 2), (c.SKIPPED, [topic], 0))
        counts = [1] + [0] * len(BOUNDS)
        observed = [Observed(c.PROCESS_SECONDS.name, [topic, kind], counts, 0.1) for kind in ("", "ValueError")]
        metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, observed=observed))
    metrics.forget("day-1")
    metrics.forget("never-seen")
    left = scraped(metrics, status())
    assert {topic for _, labels in left for name, topic in labels if name == "topic" and "day" in topic} == {"day-2"}
    assert value(left, "messaging_client_consumed_messages_total", topic="day-2") == 5
    assert metrics.totals["records"] == 10
