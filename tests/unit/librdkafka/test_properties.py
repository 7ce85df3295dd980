"""The properties of the workers' clients."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kunicorn.errors import ConfigError
from kunicorn.librdkafka.properties import (
    OWNED_PROPERTIES,
    client_properties,
    letter_properties,
)
from tests.producers import of_outputs


def properties(**overrides: Any) -> dict[str, str | int | float | bool]:
    """With everything at its plainest."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": ["a:1", "b:2"],
        "client_id": "orders-0",
        "group_id": "orders",
        "isolation_level": "read_committed",
        "client_rack": None,
        "security": {},
        "extra": {},
        "memory_per_worker_mb": 128,
        "brokers": 1,
    }
    return client_properties(**{**arguments, **overrides})


def test_a_worker_never_commits_and_never_guesses_an_offset() -> None:
    found = properties()
    assert found["enable.auto.commit"] is False
    assert found["enable.auto.offset.store"] is False
    assert found["auto.offset.reset"] == "error"
    assert found["group.id"] == "orders"
    assert found["bootstrap.servers"] == "a:1,b:2"


@pytest.mark.parametrize("name", OWNED_PROPERTIES)
def test_an_owned_property_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        properties(extra={name: "x"})
    assert name in str(caught.value)
    assert OWNED_PROPERTIES[name] in str(caught.value)


def test_what_is_only_tuning_may_be_overridden() -> None:
    assert properties(extra={"fetch.queue.backoff.ms": 50})["fetch.queue.backoff.ms"] == 50


def test_prefetched_records_take_an_eighth_of_the_memory() -> None:
    assert properties(memory_per_worker_mb=128)["queued.max.messages.kbytes"] == 16_384
    assert properties(memory_per_worker_mb=1)["queued.max.messages.kbytes"] == 1024


def test_small_records_are_bounded_by_their_number_and_by_the_size_of_a_response() -> None:
    """librdkafka's queue counts bytes of values, of which small records have few: see bench/memory.py."""
    small, planned, large = (properties(memory_per_worker_mb=megabytes) for megabytes in (64, 256, 8192))
    assert (small["queued.min.messages"], small["fetch.max.bytes"]) == (20_971, 1_718_641)
    assert (planned["queued.min.messages"], planned["fetch.max.bytes"]) == (100_000, 15_467_774)
    assert (large["queued.min.messages"], large["fetch.max.bytes"]) == (100_000, 52_428_800)


def test_the_brokers_share_what_responses_may_take() -> None:
    one, three, many = (properties(memory_per_worker_mb=256, brokers=brokers) for brokers in (1, 3, 200))
    assert int(three["fetch.max.bytes"]) == int(one["fetch.max.bytes"]) // 3
    assert many["fetch.max.bytes"] == 131_072


@pytest.mark.parametrize("brokers", [1, 50])
@pytest.mark.parametrize("megabytes", [1, 32, 128, 512, 4096, 1_000_000])
@pytest.mark.parametrize(
    "extra", [{}, {"fetch.max.bytes": 200_000_000}, {"fetch.max.bytes": 50_000}, {"message.max.bytes": 150_000_000}]
)
def test_librdkafka_takes_the_properties_whatever_the_memory(
    megabytes: int, extra: dict[str, int], brokers: int
) -> None:
    found = properties(memory_per_worker_mb=megabytes, extra=extra, brokers=brokers, client_rack="a")
    Consumer({**found, "log_level": 0}).close()


@pytest.mark.parametrize("name", ["fetch.max.bytes", "message.max.bytes"])
def test_a_size_that_is_no_number_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[kafka.librdkafka\] '{name}' = '50MB' is no number"):
        properties(memory_per_worker_mb=256, extra={name: "50MB"})


IN_FLIGHT = "max.in.flight.requests.per.connection"


def test_without_idempotence_no_request_overtakes_one_that_is_repeated() -> None:
    assert IN_FLIGHT not in of_outputs()
    found = of_outputs(acks="1")
    assert (found["enable.idempotence"], found[IN_FLIGHT]) == (False, 1)
    assert of_outputs(acks="1", extra={IN_FLIGHT: 5})[IN_FLIGHT] == 5
    Producer({**found, "log_level": 0})


def test_in_transactions_a_client_keeps_its_brokers_where_it_loses_all_unless_it_is_told_otherwise() -> None:
    name = "metadata.recovery.strategy"
    assert name not in of_outputs()
    assert of_outputs(transactional_id="orders")[name] == "none"
    assert of_outputs(transactional_id="orders", extra={name: "rebootstrap"})[name] == "rebootstrap"


def test_letters_are_compressed_and_go_to_all_replicas_whatever_the_consumers_properties_say() -> None:
    extra: dict[str, str | int | float | bool] = {"compression.type": "none", "acks": 1, "enable.idempotence": False}
    found = letter_properties(
        bootstrap_servers=["a:1"], client_id="orders-0", security={}, extra=extra, delivery_timeout_ms=1000
    )
    assert (found["compression.type"], found["acks"], found["enable.idempotence"]) == ("zstd", "all", True)
    Producer({**found, "log_level": 0})
