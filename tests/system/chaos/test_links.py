"""The proxied cluster does to its links what its methods say, and to no other link."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka import ProxiedCluster
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedCluster]:
    with ProxiedCluster(("one", "other"), brokers=1) as cluster:
        yield cluster


@pytest.fixture
def link(kafka: ProxiedCluster) -> Iterator[str]:
    yield "one"
    kafka.heal("one")


def client(kafka: ProxiedCluster, link: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": ",".join(kafka.bootstrap_over(link)), "log_level": 0})


def test_clients_are_told_the_addresses_of_their_own_link(kafka: ProxiedCluster) -> None:
    for link in ("one", "other"):
        brokers = client(kafka, link).list_topics(timeout=60).brokers.values()
        assert [f"{broker.host}:{broker.port}" for broker in brokers] == kafka.bootstrap_over(link)


@pytest.mark.parametrize("directions", [("to",), ("from",), ("to", "from")])
def test_nothing_comes_over_a_link_that_is_cut_until_it_heals(
    kafka: ProxiedCluster, link: str, directions: tuple[str, ...]
) -> None:
    admin = client(kafka, link)
    admin.list_topics(timeout=60)
    kafka.cut(link, *directions)  # type: ignore[arg-type]
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    assert client(kafka, "other").list_topics(timeout=60).brokers, "the other link is whole"
    kafka.heal(link)
    assert admin.list_topics(timeout=60).brokers


def test_a_slow_link_takes_its_time_in_each_direction(kafka: ProxiedCluster, link: str) -> None:
    admin = client(kafka, link)
    admin.list_topics(timeout=60)
    kafka.slow(link, 0.2)
    began = time.monotonic()
    admin.list_topics(timeout=60)
    assert time.monotonic() - began > 0.4


def test_a_reset_ends_connections_with_an_error_and_new_ones_can_be_made(kafka: ProxiedCluster, link: str) -> None:
    host, port = kafka.bootstrap_over(link)[0].split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        # Until the proxy has connected to the broker, there is nothing to reset.
        connection.settimeout(0.2)

        def was_reset() -> bool:
            kafka.reset(link)
            try:
                return connection.recv(1) == b"never"
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True

        wait_until(was_reset, "a reset", 60)
    assert client(kafka, link).list_topics(timeout=60).brokers
