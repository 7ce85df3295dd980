"""From the setting to addresses."""

from __future__ import annotations

import pytest

from kunicorn.errors import ConfigError
from kunicorn.kafka.auth import Address, Security, parse_seeds, resolve


def test_hosts_and_addresses_are_read() -> None:
    assert parse_seeds(["kafka-1:9092", " 10.0.0.1:9093 ", "[::1]:9094", "kafka-1:9092"]) == (
        Address("kafka-1", 9092),
        Address("10.0.0.1", 9093),
        Address("::1", 9094),
    )


@pytest.mark.parametrize(
    "server",
    ["", "kafka", "kafka:", ":9092", "kafka:0", "kafka:70000", "a b:1", "http://k:9092", "a..b:1", "x" * 64 + ":1"],
)
def test_what_is_no_server_is_named(server: str) -> None:
    with pytest.raises(ConfigError, match=f"bootstrap_servers: {server!r} is not 'host:port'"):
        parse_seeds([server])


def test_no_server_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers is empty"):
        parse_seeds([])


async def test_addresses_resolve_to_themselves_and_each_counts_once() -> None:
    problems: list[str] = []
    seeds = [Address("127.0.0.1", 9092), Address("127.0.0.2", 9092), Address("127.0.0.1", 9092)]
    assert await resolve(seeds, 5.0, problems) == seeds[:2]
    assert problems == []


async def test_a_name_that_does_not_exist_is_told_and_the_others_count(names: dict[str, list[str]]) -> None:
    problems: list[str] = []
    names["kafka.test"] = ["10.0.0.1"]
    addresses = await resolve([Address("no-such-host.test", 9092), Address("kafka.test", 1)], 20.0, problems)
    assert addresses == [Address("10.0.0.1", 1)]
    assert problems == ["cannot resolve no-such-host.test: Name or service not known"]


@pytest.mark.parametrize("protocol", ["TLS", "plaintext", ""])
def test_a_security_protocol_that_there_is_not_is_refused_at_once(protocol: str) -> None:
    with pytest.raises(ConfigError, match=f"security_protocol = {protocol!r} is none of PLAINTEXT, SSL"):
        Security(protocol)


async def test_each_resolved_address_keeps_the_name_that_its_certificate_is_made_out_to(
    names: dict[str, list[str]],
) -> None:
    names["kafka.test"] = ["10.0.0.1", "10.0.0.2"]
    addresses = await resolve([Address("kafka.test", 9093)], 20.0, [])
    assert addresses == [Address("10.0.0.1", 9093), Address("10.0.0.2", 9093)]
    assert [address.name for address in addresses] == ["kafka.test"] * 2
