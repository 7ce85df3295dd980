"""A handler's own prometheus_client metrics, and the Kafka clients' statistics, on the service's /metrics."""

from __future__ import annotations

from collections.abc import Callable

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.producing import produce


def test_counters_of_all_workers_are_summed_and_kept_when_workers_are_recycled(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    kafka.create_topic(topic, 4)
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=2,
        entrypoint="tests.system.handlers.measured:handle",
        settings={"kafka": {"statistics_interval_ms": 500}, "workers": {"max_records": 300}},
    )
    member = members.start()
    member.wait_running(4)
    for count in (1000, 2000):
        produce(kafka.bootstrap, topic, 1000)
        member.wait(lambda: member.metric("shop_orders_shipped_total") == count, f"{count} counted")  # noqa: B023
        member.wait(lambda: member.metric("kunicorn_worker_recycles_total") >= 2, "both workers to be recycled")
    assert member.metric("shop_orders_shipped_total") == 2000, "nothing is lost with those that were recycled"
    living = len(member.workers())
    member.wait(lambda: 1 <= member.metric("shop_connections_open") <= living + 1, "gauges of the living alone")
    member.wait(lambda: member.metric("messaging_client_consumed_messages_total") == 2000, "each record counted")
    member.wait(lambda: member.metric("kunicorn_client_received_bytes_total") > 0, "the clients' statistics")
    member.wait(lambda: member.metric("kunicorn_client_broker_rtt_seconds") > 0, "a round trip")
    _, page = member.get("/metrics")
    assert "python_gc" not in page
    assert member.stop() == 0
