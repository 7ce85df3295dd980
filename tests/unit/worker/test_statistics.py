"""librdkafka's statistics, as far as they are published; STATISTICS.md has the whole."""

from __future__ import annotations

import json

from kunicorn.worker.fetching.client import ClientStatistics

SOME = {
    "name": "kunicorn-worker-0",
    "type": "consumer",
    "brokers": {
        "b:9092/bootstrap": {"nodeid": -1, "rxbytes": 999, "rtt": {"avg": 5}},
        "b:9092/1": {"nodeid": 1, "rxbytes": 1000, "req_timeouts": 2, "disconnects": 3, "rtt": {"avg": 2500, "cnt": 4}},
        "c:9092/2": {"nodeid": 2, "rxbytes": 10, "req_timeouts": 0, "disconnects": 0, "rtt": {"avg": 500, "cnt": 1}},
        "d:9092/3": {"nodeid": 3, "rtt": {"avg": 0, "cnt": 0}},
    },
    "topics": {
        "orders": {"partitions": {"0": {"fetchq_cnt": 5, "fetchq_size": 500}, "-1": {"fetchq_cnt": 0}}},
        "refunds": {"partitions": {"0": {"fetchq_cnt": 2, "fetchq_size": 200}}},
    },
}


def test_brokers_and_queues_are_told_and_bootstrap_servers_are_not() -> None:
    statistics = ClientStatistics()
    assert statistics.families() == []
    statistics.take(json.dumps(SOME))
    found = {
        (sample.name, sample.labels.get("broker")): sample.value
        for family in statistics.families()
        for sample in family.samples
    }
    assert found == {
        ("kunicorn_client_broker_rtt_seconds", "1"): 0.0025,
        ("kunicorn_client_broker_rtt_seconds", "2"): 0.0005,
        ("kunicorn_client_received_bytes_total", "1"): 1000,
        ("kunicorn_client_received_bytes_total", "2"): 10,
        ("kunicorn_client_received_bytes_total", "3"): 0,
        ("kunicorn_client_request_timeouts_total", "1"): 2,
        ("kunicorn_client_request_timeouts_total", "2"): 0,
        ("kunicorn_client_request_timeouts_total", "3"): 0,
        ("kunicorn_client_disconnects_total", "1"): 3,
        ("kunicorn_client_disconnects_total", "2"): 0,
        ("kunicorn_client_disconnects_total", "3"): 0,
        ("kunicorn_client_fetch_queue_records", None): 7,
        ("kunicorn_client_fetch_queue_bytes", None): 700,
    }
    assert statistics.families() is statistics.families(), "the same text, of megabytes, is read once"
    assert {family.merge for family in statistics.families() if family.name.endswith("rtt_seconds")} == {"max"}
