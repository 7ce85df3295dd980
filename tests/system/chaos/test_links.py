"""What hurts a group does what it says: to the link that is named and to no other, and to rights on the brokers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from tests.kafka import ProxiedCluster
from tests.kafka.access import EVERYTHING, admit, allow, deny
from tests.kafka.proxied import USER, Security
from tests.system.producing import produce
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

        wait_until(was_reset, "a reset")
    assert client(kafka, link).list_topics(timeout=60).brokers


@pytest.fixture(scope="module")
def tls(request: pytest.FixtureRequest) -> Iterator[ProxiedCluster]:
    """A cluster whose links are over TLS, in the way that is asked for; whoever logs in has every right."""
    security: Security = request.param
    with ProxiedCluster(("one",), brokers=1, security=security) as cluster:
        if security == "SASL_SSL":
            allow(cluster, USER, *EVERYTHING)
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("tls", ["SSL", "SASL_SSL"], indirect=True)
def test_a_link_over_tls_is_cut_and_heals_like_any(tls: ProxiedCluster) -> None:
    admin = secured(tls)
    assert admin.list_topics(timeout=60).brokers
    tls.cut("one", "to", "from")
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    tls.heal("one")
    assert admin.list_topics(timeout=60).brokers
    plain = AdminClient({"bootstrap.servers": tls.bootstrap_over("one")[0], "log_level": 0})
    with pytest.raises(KafkaException):
        plain.list_topics(timeout=1)


@pytest.mark.long
@pytest.mark.parametrize("tls", ["SASL_SSL"], indirect=True)
def test_a_right_that_is_denied_is_gone_until_it_is_admitted(tls: ProxiedCluster) -> None:
    tls.create_topic("orders")
    produce(tls.bootstrap, "orders", 1)
    right = (ResourceType.TOPIC, "orders", AclOperation.READ)
    deny(tls, USER, right)
    wait_until(lambda: error_of_reading(tls) == "TOPIC_AUTHORIZATION_FAILED", "a refusal")
    admit(tls, USER, right)
    wait_until(lambda: error_of_reading(tls) is None, "the record")


def secured(kafka: ProxiedCluster) -> AdminClient:
    return AdminClient({**over_tls(kafka), "log_level": 0})


def over_tls(kafka: ProxiedCluster) -> dict[str, str]:
    """librdkafka's names of the settings that members get."""
    names = {
        "security_protocol": "security.protocol",
        "ssl_ca_location": "ssl.ca.location",
        "sasl_mechanism": "sasl.mechanism",
        "sasl_username": "sasl.username",
    }
    given = kafka.client_settings
    login = {"sasl.password": Path(given["sasl_password_file"]).read_text()} if "sasl_password_file" in given else {}
    server = ",".join(kafka.bootstrap_over("one"))
    return {"bootstrap.servers": server, **login, **{names[name]: given[name] for name in names.keys() & given.keys()}}


def error_of_reading(kafka: ProxiedCluster) -> str | None:
    """What one who reads orders is told; None: the record."""
    consumer = Consumer({**over_tls(kafka), "group.id": "readers", "log_level": 0})
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        message = consumer.poll(20)
        if message is None:
            return "nothing yet"
        error = message.error()
        return None if error is None else error.name()
    finally:
        consumer.close()
