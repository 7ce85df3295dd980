"""What `kunicorn broker` makes of settings and of its command line, before anything is served."""

from __future__ import annotations

import socket
from asyncio import base_events
from pathlib import Path
from typing import NoReturn

import pytest

from kunicorn.commands import broker
from kunicorn.commands.broker import Topics, named, port_of, serve, topics_of
from kunicorn.commands.demo.mock_cluster import MockUnavailable
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.settings import Settings, load

HANDLER = '[handler]\nentrypoint = "shop:handle"\n'
GROUP = '[group]\nid = "shop"\ntopics = ["orders"]\n'


def settings(
    directory: Path, tables: str = GROUP + HANDLER, server: str = "127.0.0.1:9092", kafka: str = ""
) -> Settings:
    path = directory / "config.toml"
    path.write_text(f'[kafka]\nbootstrap_servers = ["{server}"]\n{kafka}\n{tables}')
    return load(path, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_port_is_the_one_at_which_the_settings_look_for_a_broker(tmp_path: Path, host: str) -> None:
    assert port_of(settings(tmp_path, server=f"{host}:19092")) == 19092


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"server": "kafka:9092"}, r'names kafka:9092: .* write bootstrap_servers = \["127.0.0.1:9092"\]'),
        ({"kafka": 'security_protocol = "SSL"'}, 'kafka.security_protocol = "SSL": .* PLAINTEXT alone'),
        ({"tables": GROUP + 'group_protocol = "consumer"\n' + HANDLER}, "the classic protocol alone"),
        ({"tables": GROUP + HANDLER + '[producing]\ndelivery = "transactions"\n'}, "none of their promises"),
    ],
)
def test_what_the_embedded_broker_cannot_serve_is_refused(
    tmp_path: Path, changed: dict[str, str], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        port_of(settings(tmp_path, **changed))


def test_every_topic_that_the_service_needs_is_made_and_those_that_it_consumes_are_seeded(tmp_path: Path) -> None:
    failing = 'on_failure = "dead_letter"\nretry_topic_delays_ms = [5000]\n'
    topics = topics_of(settings(tmp_path, GROUP + HANDLER + failing), 8)
    assert dict(topics.made) == {"orders": 8, "shop.dead-letters": 8, "shop.retry.5s": 8}
    assert topics.seeded == ("orders",)


def test_a_partition_that_is_assigned_by_number_is_there(tmp_path: Path) -> None:
    topics = topics_of(settings(tmp_path, '[assign]\npartitions = ["orders:0-11", "refunds"]\n' + HANDLER), 8)
    assert dict(topics.made) == {"orders": 12, "refunds": 8}


def test_a_partition_beyond_all_memory_is_refused_wherever_it_is_named(tmp_path: Path) -> None:
    """The mock makes as many as it is told, and with millions they take the memory of the machine."""
    with pytest.raises(ConfigError, match=r"assign.partitions names orders:700000: .* up to 1000 partitions"):
        topics_of(settings(tmp_path, '[assign]\npartitions = ["orders:700000"]\n' + HANDLER), 8)


def test_settings_that_name_patterns_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no broker can make a topic of a pattern"):
        topics_of(settings(tmp_path, GROUP.replace("orders", "^orders-.*") + HANDLER), 8)


def test_topics_of_the_command_line_have_the_partitions_they_name() -> None:
    assert named(["orders:3", "refunds"], 8) == Topics((("orders", 3), ("refunds", 8)), ("orders", "refunds"))
    assert named(["orders", "orders:3"], 8) == Topics((("orders", 3),), ("orders",)), "the mock makes none twice"


@pytest.mark.parametrize(
    "wrong",
    ["", ":3", "orders:", "orders:0", "orders:many", "orders:1001", f"orders:{'9' * 5000}", "new orders", "^orders-.*"],
)
def test_a_topic_that_cannot_be_read_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="write it such as orders, or orders:8"):
        named([wrong], 8)


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another port"):
        serve(named(["orders"], 1), taken.getsockname()[1], 0, print)


def test_a_broker_that_does_not_come_up_waits_for_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that looks for its broker all the while connects before the mock is there."""

    async def waits(_: object) -> None:
        pytest.fail("from Python 3.12 on this lasts until the last client goes, and Ctrl-C is not heard")

    def fails(*_: object, **__: object) -> NoReturn:
        raise MockUnavailable("there is no mock cluster")

    monkeypatch.setattr(base_events.Server, "wait_closed", waits)
    monkeypatch.setattr(broker, "mock_cluster_process", fails)
    with pytest.raises(ServiceError, match="there is no mock cluster"):
        serve(named(["orders"], 1), 0, 0, print)
