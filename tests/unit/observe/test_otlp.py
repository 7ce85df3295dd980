"""Metrics by OTLP, as a real collector decodes them, and what becomes of an export that fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.common.http import _OTLPHTTPClient
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.semconv._incubating.metrics import messaging_metrics as conventional
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.schemas import Schemas
from pydantic import SecretStr

from kunicorn.ipc.messages import Family, Pong, Sample
from kunicorn.observe import catalogue as c
from kunicorn.observe import conventions, otlp
from kunicorn.observe.catalogue import Declared, Kind, every
from kunicorn.observe.metrics import Metrics
from kunicorn.settings.otlp import OtlpSettings
from tests.fakes.collector import Collector, attributes_of, collector, total
from tests.unit.observe.eventful import eventful
from tests.unit.observe.snapshots import partition, status
from tests.waiting import wait_until

GROUP, TOPIC = names.MESSAGING_CONSUMER_GROUP_NAME, names.MESSAGING_DESTINATION_NAME
KAFKA = {names.MESSAGING_SYSTEM: "kafka"}
BUSY = status(partitions=(partition(0, in_hand=1, in_hand_age=1.0),))


@pytest.fixture(name="there")
def _there() -> Iterator[Collector]:
    with collector() as found:
        yield found


def exporting(there: Collector | str, metrics: Metrics | None = None, **changes: Any) -> otlp.OtlpExport:
    url = there if isinstance(there, str) else there.url
    settings = OtlpSettings(enabled=True, endpoint=url, **{"interval_ms": 5000, "timeout_ms": 5000, **changes})
    return otlp.OtlpExport(settings, otlp.Endpoint(settings), metrics or Metrics(), lambda: BUSY, 2000)


def exported(metrics: Metrics, there: Collector) -> dict[str, Any]:
    asyncio.run(exporting(there, metrics).export())
    return there.latest()


def points(metric: Any) -> list[Any]:
    return list(getattr(metric, metric.WhichOneof("data")).data_points)


# -- what is told ------------------------------------------------------------------------------------------------------


def test_the_four_metrics_of_the_messaging_conventions_are_as_these_say(there: Collector) -> None:
    found = exported(eventful(), there)
    assert Schemas.V1_44_0.value == conventions.SCHEMA
    (resource,) = there.requests[-1].resource_metrics
    assert (resource.schema_url, resource.scope_metrics[0].scope.name) == (conventions.SCHEMA, "kunicorn")

    consumed = found[conventional.MESSAGING_CLIENT_CONSUMED_MESSAGES]
    assert (consumed.unit, consumed.sum.is_monotonic, consumed.sum.aggregation_temporality) == ("{message}", True, 2)
    process = {names.MESSAGING_OPERATION_NAME: "process", **KAFKA, GROUP: "shop"}
    assert attributes_of(consumed.sum.data_points[0]) == {**process, TOPIC: "orders"}
    assert total(consumed) == 11

    sent = found[conventional.MESSAGING_CLIENT_SENT_MESSAGES]
    sending = {names.MESSAGING_OPERATION_NAME: "send", **KAFKA, TOPIC: "totals"}
    assert [attributes_of(point) for point in sent.sum.data_points] == [
        sending,
        {**sending, ERROR_TYPE: "NOT_ENOUGH_REPLICAS"},
    ]

    duration = found[conventional.MESSAGING_PROCESS_DURATION]
    assert duration.unit == "s"
    by_error = {attributes_of(point).get(ERROR_TYPE): point for point in duration.histogram.data_points}
    assert by_error.keys() == {None, "ValueError"}
    assert attributes_of(by_error["ValueError"]) == {**process, TOPIC: "orders", ERROR_TYPE: "ValueError"}
    buckets = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
    assert [list(point.explicit_bounds) for point in duration.histogram.data_points] == [buckets] * 3
    of_error = by_error["ValueError"]
    assert (of_error.count, of_error.sum) == (1, 0.03)
    assert list(of_error.bucket_counts) == [0, 0, 0, 1, *[0] * 11]

    operations = found[conventional.MESSAGING_CLIENT_OPERATION_DURATION].histogram.data_points
    assert [attributes_of(point) for point in operations] == [
        {
            names.MESSAGING_OPERATION_NAME: "send",
            names.MESSAGING_OPERATION_TYPE: "send",
            **KAFKA,
            ERROR_TYPE: "NOT_ENOUGH_REPLICAS",
        },
        {names.MESSAGING_OPERATION_NAME: "commit", names.MESSAGING_OPERATION_TYPE: "settle", **KAFKA, GROUP: "shop"},
    ]


def _as_prometheus(name: str, unit: str, kind: Kind) -> str:
    """What a Prometheus server calls a metric that comes by OTLP (its translation strategy that is the default)."""
    words = {"s": "_seconds", "By": "_bytes"}.get(unit, "")
    return name.replace(".", "_") + words + ("_total" if kind is Kind.COUNTER else "")


@pytest.mark.parametrize("declared", every(), ids=lambda declared: declared.name)
def test_a_prometheus_server_makes_the_names_of_our_page_of_them(declared: Declared) -> None:
    found = conventions.convention_of(declared)
    page = declared.name + ("_total" if declared.kind is Kind.COUNTER else "")
    assert _as_prometheus(found.name, found.unit, declared.kind) == page


def test_all_that_the_page_has_is_told_with_the_same_values(there: Collector) -> None:
    metrics = eventful()
    mine = [Family("shop_paid", "counter", "Paid.", [Sample("shop_paid_total", {"by": "card"}, 7.0)], "sum")]
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, families=mine))
    found = exported(metrics, there)
    families = metrics.families(BUSY, 2000)
    missing = (
        {family.name for family in families if family.samples}
        - {declared.name for declared in every() if conventions.convention_of(declared).name in found}
        - found.keys()
    )
    assert not missing
    lag = found["kafka.consumer.records_lag"]
    assert (lag.WhichOneof("data"), points(lag)[0].as_int) == ("gauge", 10)
    assert attributes_of(points(lag)[0]) == {
        GROUP: "shop",
        TOPIC: "orders",
        names.MESSAGING_DESTINATION_PARTITION_ID: "0",
    }
    assert attributes_of(points(found["kunicorn.dead_letters"])[0])["kunicorn.reason"] == "attempts"
    assert attributes_of(points(found["shop_paid"])[0]) == {"by": "card"}
    rebalances = points(found["kafka.consumer.rebalance_duration"])[0]
    assert (rebalances.count, len(rebalances.bucket_counts)) == (1, len(c.REBALANCE_SECONDS.buckets) + 1)
    assert not rebalances.HasField("min")


def test_two_members_differ_and_the_settings_name_the_service_before_the_group(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resource(**changes: Any) -> dict[str, str]:
        asyncio.run(exporting(there, **changes).export())
        return attributes_of(there.requests[-1].resource_metrics[0].resource)

    assert resource()["service.name"] == "shop"
    assert resource()["service.instance.id"]
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=ours,team=payments")
    assert (resource()["service.name"], resource()["team"]) == ("ours", "payments")
    assert resource(resource={"service.name": "till"})["service.name"] == "till"


def test_without_an_address_opentelemetrys_own_variables_say_where(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url.removesuffix("/v1/metrics"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop")
    settings = OtlpSettings(enabled=True)
    assert otlp.Endpoint(settings).send(otlp._whole(otlp.resource_of(settings, "shop"), [])) == ""
    assert (there.paths, there.headers[0]["x-tenant"]) == (["/v1/metrics"], "shop")


# -- what goes wrong ---------------------------------------------------------------------------------------------------

SECRET = "Bearer s3cr3t"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the log says."""
    lines: list[str] = []
    monkeypatch.setattr(otlp.log.__class__, "warning", lambda self, event, **fields: lines.append(event))
    monkeypatch.setattr(otlp.log.__class__, "info", lambda self, event, **fields: lines.append(event))
    monkeypatch.setattr(otlp.log.__class__, "debug", lambda self, event, **fields: None)
    return lines


def test_a_failure_is_told_once_and_again_when_it_is_over_and_nothing_counted_is_lost(
    there: Collector, said: list[str]
) -> None:
    metrics = Metrics()
    export = exporting(there, metrics, headers={"authorization": SecretStr(SECRET)})
    there.status, there.body = 401, f"you sent {SECRET}\n".encode()

    async def rounds() -> None:
        for _ in range(3):
            metrics.count(c.PARTITIONS_LOST, 1)
            await export.export()
        there.status = 200
        await export.export()

    asyncio.run(rounds())
    assert len(said) == 2
    assert "401" in said[0]
    assert SECRET not in "".join(said)
    assert said[1] == "metrics are exported again"
    assert total(there.latest()["kafka.consumer.partitions_lost"]) == 3
    assert total(there.latest()["kunicorn.otlp_exports"], kunicorn__result="failed") == 3
    assert there.headers[-1]["authorization"] == SECRET


def echoing(there: Collector, said: list[str], text: str, **changes: Any) -> str:
    """What the log says where the collector refuses with that text."""
    there.status, there.body = 401, text.encode()
    asyncio.run(exporting(there, **changes).export())
    return "".join(said)


@pytest.mark.parametrize("quoted", ["token s3cr3t has expired", "got: bearer S3CR3T", '{"authorization": "s3cr3t"}'])
def test_a_collector_that_quotes_a_part_of_a_login_does_not_have_it_logged(
    there: Collector, said: list[str], quoted: str
) -> None:
    line = echoing(there, said, quoted, headers={"authorization": SecretStr(SECRET)})
    assert "(not shown)" in line
    assert "s3cr3t" not in line.lower()


@pytest.mark.parametrize("quoted", ["you sent Bearer s3cr3t/1", "token s3cr3t/1 has expired", "Bearer%20s3cr3t%2F1"])
def test_a_login_of_opentelemetrys_own_variable_is_not_logged_as_it_is_sent(
    there: Collector, said: list[str], quoted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cr3t%2F1")
    assert "s3cr3t" not in echoing(there, said, quoted)
    assert there.headers[-1]["authorization"] == "Bearer s3cr3t/1"


UNBOUNDED = [Sample("size_bucket", {}, 1.0), Sample("size_count", {}, 1.0)]
FALLING = [Sample("size_bucket", {"le": "1.0"}, 5.0), Sample("size_bucket", {"le": "+Inf"}, 2.0)]


@pytest.mark.parametrize("samples", [UNBOUNDED, FALLING, [Sample("size_bucket", {"le": "+Inf"}, float("nan"))]])
def test_a_histogram_that_otlp_cannot_have_is_left_out_and_told_once(
    there: Collector, said: list[str], samples: list[Sample]
) -> None:
    metrics = Metrics()
    paid = Family("shop_paid", "counter", "Paid.", [Sample("shop_paid_total", {}, 7.0)])
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, families=[Family("size", "histogram", "", samples), paid]))
    export = exporting(there, metrics)

    async def twice() -> None:
        await export.export()
        await export.export()

    asyncio.run(twice())
    (line,) = said
    assert "the histogram size is left out" in line
    assert "size" not in there.latest()
    assert total(there.latest()["shop_paid"]) == 7


def test_after_a_hundred_families_it_is_told_once_that_no_more_are_told(there: Collector, said: list[str]) -> None:
    metrics = Metrics()
    families = [Family(f"size_{number}", "histogram", "", UNBOUNDED) for number in range(103)]
    metrics.hear(1, Pong(1, 1, 1, None, 1, False, 0, families=families))
    asyncio.run(exporting(there, metrics).export())
    assert len(said) == 101
    assert "is left out of what is exported" in said[-1]
    assert said[-1].endswith("there were 100 warnings like this, and no further ones are told")


def test_metrics_that_cannot_be_put_together_fail_the_export_and_not_the_service(
    there: Collector, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()

    def families(*_: object) -> list[Any]:
        raise KeyError("le")

    monkeypatch.setattr(metrics, "families", families)
    asyncio.run(exporting(there, metrics).export())
    assert "metrics are not exported: KeyError: 'le'" in said[0]
    assert not there.requests


def test_nobody_listens(said: list[str]) -> None:
    asyncio.run(exporting("http://127.0.0.1:9/v1/metrics", timeout_ms=1000).export())
    (line,) = said
    assert "127.0.0.1" in line


@pytest.mark.parametrize("address", ["127.0.0.1:9/v1/metrics?api-key=s3cr3t", "me:s3/cr3t@127.0.0.1:9/v1/metrics"])
def test_the_secrets_of_an_address_from_opentelemetrys_own_variable_are_not_logged(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://{address}")
    settings = OtlpSettings(enabled=True, timeout_ms=1000)
    why = otlp.Endpoint(settings).send(otlp._whole(otlp.resource_of(settings, "shop"), []))
    assert why
    assert "cr3t" not in why


def test_a_try_that_no_time_is_left_for_does_not_hide_why_the_one_before_failed(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = _OTLPHTTPClient._submit
    left = iter([1.0, 0.0])  # The pause between tries may end just when the time does.
    monkeypatch.setattr(_OTLPHTTPClient, "_submit", lambda client, data, _: submit(client, data, next(left)))
    monkeypatch.setattr(_OTLPHTTPClient, "_compute_backoff", lambda _, retry: 0.01)
    asyncio.run(exporting("http://127.0.0.1:9/v1/metrics", timeout_ms=1000).export())
    assert "127.0.0.1" in said[0]
    assert not list(left)


def test_values_that_the_collector_rejects_are_told(there: Collector, said: list[str]) -> None:
    there.rejects = 7
    asyncio.run(exporting(there).export())
    assert "rejects 7 values: too old" in said[0]


@pytest.mark.parametrize("manner", ["endless", "elsewhere"])
def test_an_answer_without_end_and_one_that_sends_us_on_are_none(
    there: Collector, said: list[str], manner: Any
) -> None:
    there.manner = manner
    asyncio.run(exporting(there, headers={"authorization": SecretStr(SECRET)}).export())
    assert len(said) == 1
    assert set(there.paths) == {"/v1/metrics"}


def test_a_collector_that_does_not_answer_holds_up_neither_the_loop_nor_the_stop(
    there: Collector, said: list[str]
) -> None:
    there.manner = "silent"
    export = exporting(there, timeout_ms=60_000, interval_ms=60_000)

    async def beside() -> int:
        beats = 0
        task = asyncio.ensure_future(export.export_every())
        while not there.requests or beats < 20:
            await asyncio.sleep(0.01)
            beats += 1
        task.cancel()
        await export.last(0.2)
        return beats

    assert asyncio.run(beside()) >= 20
    assert said == ["the last export of metrics is given up after 0.2 s"]
    there.over.set()


def test_headers_are_read_anew_from_their_file(there: Collector, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("authorization: first\nx-tenant: shop\n")
    export = exporting(there, headers_file=str(file))

    async def twice() -> None:
        await export.export()
        file.write_text("authorization: second\n")
        await export.export()
        file.unlink()
        await export.export()

    asyncio.run(twice())
    assert [each.get("authorization") for each in there.headers] == ["first", "second"]


def test_a_clock_that_is_set_back_leaves_no_value_older_than_its_start(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = exporting(there, eventful())
    an_hour_ago = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_ago)
    asyncio.run(export.export())
    found = [point for metric in there.latest().values() for point in points(metric)]
    assert found
    assert [each for each in found if each.start_time_unix_nano > each.time_unix_nano] == []


def test_an_export_for_which_there_is_no_thread_is_tried_again_and_sent_once(
    there: Collector, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = exporting(there)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def thrice() -> None:
        with monkeypatch.context() as limit:
            limit.setattr(threading.Thread, "start", refuse)
            await export.export()
            await export.export()
        await export.last(60)

    asyncio.run(thrice())
    assert "metrics are not exported: RuntimeError: can't start new thread" in said[0]
    assert len(there.requests) == 1


def test_exports_end_their_thread(there: Collector) -> None:
    export = exporting(there)
    asyncio.run(export.last(60))
    assert len(there.requests) == 1
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("otlp")], "the thread's end")
