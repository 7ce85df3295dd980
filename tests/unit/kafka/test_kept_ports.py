"""Ports that are kept for brokers that are not there yet, or are down: nobody else gets them, and their server may."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest
import uvloop

from kunicorn.commands.demo.ports import free_ports
from tests.kafka.ports import KeptPorts, kept_port


@pytest.fixture
def kept() -> Iterator[KeptPorts]:
    ports = KeptPorts()
    yield ports
    ports.close()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are three ports to choose from, always in the same order."""
    order = free_ports(3)
    monkeypatch.setattr(random, "sample", lambda *_, **__: list(order))


def test_who_looks_for_ports_gets_none_that_are_kept(few: None, kept: KeptPorts) -> None:
    mine = kept.take(2)
    assert not set(free_ports(1)) & set(mine)
    with pytest.raises(OSError, match="no free ports"):
        free_ports(2)


def test_two_clusters_that_choose_the_same_ports_get_different_ones(
    few: None, kept: KeptPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = free_ports(3)
    other = KeptPorts()
    # Chosen by both before either has bound one.
    answers = iter([chosen[:2], chosen[2:]])
    [held] = kept.take(1)
    monkeypatch.setattr("tests.kafka.ports.free_ports", lambda _: next(answers))
    try:
        assert set(other.take(2)) == set(chosen) - {held}
    finally:
        other.close()


async def test_a_server_listens_on_a_port_that_is_kept_and_does_so_again_after_it_was_down(kept: KeptPorts) -> None:
    [port] = kept.take(1)
    for _ in range(2):
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        server.close()
        await server.wait_closed()


def test_nobody_answers_on_a_port_that_is_kept_and_no_longer_kept_it_is_free(few: None, kept: KeptPorts) -> None:
    ports = kept.take(3)
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", ports[0]))
    kept.close()
    assert set(free_ports(3)) == set(ports)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_service_listens_on_a_port_that_its_test_keeps(host: str) -> None:
    port = kept_port()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        server.close()

    uvloop.run(serve())
    with pytest.raises(OSError, match="Address already in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
