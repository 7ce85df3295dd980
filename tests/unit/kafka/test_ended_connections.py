"""What connections leave behind that end as soon as they are there."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunicorn.kafka.auth import Address, Security, connect
from kunicorn.kafka.errors import ConnectionLost
from kunicorn.kafka.frames import Frames
from kunicorn.kafka.tls import Tls
from tests.kafka.certificates import make_certificates

TRIES = 50
FEW = 20


@pytest.fixture
def hangs_up() -> Iterator[Address]:
    """Accepts, and closes: a balancer before a broker that is away."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                listening.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield Address(*listening.getsockname())
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


@pytest.fixture
def seldom_collected() -> Iterator[None]:
    """As in a worker, whose garbage collector has next to nothing to do there."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())


@pytest.mark.usefixtures("seldom_collected")
def test_a_broker_that_hangs_up_on_each_handshake_fills_no_memory(hangs_up: Address, tmp_path: Path) -> None:
    security = Security("SSL", Tls(str(make_certificates(tmp_path, "hunter2").ca)))

    async def try_often() -> tuple[int, int]:
        for _ in range(TRIES):
            with pytest.raises(ConnectionLost):
                await connect(hangs_up, security, lambda: Frames(lambda frame: True, lambda why: None))
        return alive(Frames), alive(ssl.SSLContext)

    frames, contexts = asyncio.run(try_often())
    assert frames < FEW
    assert contexts < FEW


def test_nothing_is_collected_for_connections_without_tls(hangs_up: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with millions of objects would stand still for a second of every eight while a broker is away."""
    collections: list[None] = []
    monkeypatch.setattr("kunicorn.kafka.auth.gc.collect", lambda: collections.append(None))

    async def try_often() -> None:
        for _ in range(TRIES):
            await connect(hangs_up, Security("PLAINTEXT", Tls()), lambda: Frames(lambda frame: True, lambda why: None))

    asyncio.run(try_often())
    assert collections == []
