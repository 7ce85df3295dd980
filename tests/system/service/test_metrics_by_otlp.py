"""A service that exports its metrics by OTLP: a collector that decodes them has the counts of all workers, and one that
is away costs nothing but a line.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.fakes.collector import Collector, attributes_of, collector, total
from tests.kafka import KafkaCluster
from tests.kafka.ports import kept_port
from tests.system.members import MemberProcess, group_settings, merged
from tests.waiting import wait_until

RECORDS, BAD = 400, 7
GOOD = RECORDS - BAD
"""What was skipped does not count as consumed."""
SECRET = "Bearer s3cr3t"
HANDLER = """
def handle(record):
    if record.value == b"bad":
        raise ValueError("bad")
"""


def consumed(there: Collector) -> float:
    metric = there.latest().get("messaging.client.consumed.messages") if there.requests else None
    return 0 if metric is None else total(metric, messaging__destination__name="paid")


def handled(member: MemberProcess) -> float:
    return member.metric("messaging_client_consumed_messages_total")


def send(kafka: KafkaCluster, count: int, value: bytes = b"good") -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(count):
        producer.produce("paid", value, partition=number % 4)
    assert producer.flush(60) == 0


SLOW_TO_LOAD = """
import pathlib, sys, time
until = time.monotonic() + 60
while not pathlib.Path("loaded").exists() and time.monotonic() < until:
    time.sleep(0.01)
sys.path.remove(str(pathlib.Path(__file__).parent))
del sys.modules["requests"]
import requests
"""
"""A `requests`, which the exporter imports, that is loaded when the test says so, and then is the true one."""


def started(
    kafka: KafkaCluster, directory: Path, group: str, url: str, interval_ms: int, *options: str
) -> MemberProcess:
    (directory / "paid.py").write_text(HANDLER)
    otlp = {"enabled": True, "endpoint": url, "interval_ms": interval_ms, "timeout_ms": interval_ms}
    settings = merged(
        group_settings(kafka.bootstrap, ["paid"], group, "paid:handle", workers=2),
        {"handler": {"on_failure": "skip", "max_attempts": 2, "retry_backoff_ms": 1}},
        {"otlp": {**otlp, "headers": {"authorization": SECRET}}},
    )
    return MemberProcess(group, directory, settings, {"PYTHONPATH": str(directory)}, options=options)


@pytest.fixture(scope="module", autouse=True)
def _topic(kafka: KafkaCluster) -> None:
    kafka.create_topic("paid", 4)
    send(kafka, BAD, b"bad")
    send(kafka, GOOD)


def test_a_collector_has_what_the_workers_counted_and_the_last_export_brings_the_rest(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    with collector() as there:
        member = started(kafka, tmp_path, "otlp-first", there.url, 5000)
        try:
            member.wait(lambda: consumed(there) == GOOD, "all records to be told")
            send(kafka, 50)
            member.wait(lambda: handled(member) == GOOD + 50, "the rest to be handled")
            assert member.stop() == 0
        finally:
            member.close()
        assert consumed(there) == GOOD + 50
        assert total(there.latest()["kunicorn.handler_failures"]) == 2 * BAD
        duration = there.latest()["messaging.process.duration"].histogram.data_points
        in_vain = [point for point in duration if attributes_of(point).get("error.type") == "ValueError"]
        assert [point.count for point in in_vain] == [2 * BAD]
        assert sum(point.count for point in duration) == GOOD + 50 + 2 * BAD
        resource = attributes_of(there.requests[-1].resource_metrics[0].resource)
        assert resource["service.name"] == "otlp-first"
        assert {each["authorization"] for each in there.headers} == {SECRET}
        assert SECRET not in member.output()


def test_a_service_that_is_over_before_the_exporter_is_loaded_exports_what_it_has_counted(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    (tmp_path / "requests.py").write_text(SLOW_TO_LOAD)
    with collector() as there:
        member = started(kafka, tmp_path, "otlp-short", there.url, 60_000, "--until-end")
        try:
            wait_until(lambda: "let go of 4 partitions" in member.output(), "the end of what is assigned")
            (tmp_path / "loaded").touch()
            assert member.exit_code() == 0
        finally:
            member.close()
        assert consumed(there) >= GOOD


def test_a_collector_that_is_away_costs_a_line_and_no_more(kafka: KafkaCluster, tmp_path: Path) -> None:
    member = started(kafka, tmp_path, "otlp-away", f"http://127.0.0.1:{kept_port()}/v1/metrics", 500)
    try:
        member.wait(lambda: handled(member) >= GOOD, "records to be handled")
        failed = {"group": "otlp-away", "result": "failed"}
        member.wait(lambda: member.metric("kunicorn_otlp_exports_total", **failed) >= 3, "exports to fail")
        assert member.stop() == 0
        assert member.output().count("metrics are not exported") == 1
        assert SECRET not in member.output()
    finally:
        member.close()
