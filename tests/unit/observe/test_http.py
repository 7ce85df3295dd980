"""The server beside real sockets: what it says, and that no client can hurt it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import aiohttp
import pytest
import pytest_asyncio

from kunicorn.errors import ConfigError
from kunicorn.observe import http
from kunicorn.observe.http import MOST_CONNECTIONS, Server
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import Status
from kunicorn.settings import HttpSettings
from tests.unit.observe.snapshots import group, partition, status, worker


class Service:
    """What the server looks at."""

    def __init__(self) -> None:
        self.snapshot = status()

    def status(self) -> Status:
        return self.snapshot


@pytest.fixture
def service() -> Service:
    return Service()


@pytest_asyncio.fixture
async def server(service: Service) -> AsyncIterator[Server]:
    server = Server(HttpSettings(host="127.0.0.1", port=0), service.status, Metrics())
    await server.start()
    yield server
    await server.stop()


async def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    url = f"http://127.0.0.1:{server.port}{path}"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, await answer.text(), dict(answer.headers)


async def raw(server: Server, data: bytes) -> bytes:
    """Everything the server says to these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert condition(), what


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/livez?verbose=1"])
async def test_probes_are_green_when_all_is_well(server: Server, path: str) -> None:
    code, body, headers = await ask(server, path)
    assert (code, body) == (200, "ok\n")
    assert headers["Cache-Control"] == "no-store"


async def test_a_red_probe_says_why(server: Server, service: Service) -> None:
    joining = group(joined=False, state="joining")
    service.snapshot = status(loop_lag=7.0, workers=(worker(pong_age=99.0),), group=joining)
    code, body, _ = await ask(server, "/livez")
    assert code == 503
    assert len(body.splitlines()) == 2
    code, body, _ = await ask(server, "/readyz")
    assert (code, body) == (503, "not yet a stable member of group 'shop': joining\n")


async def test_status_is_the_snapshot_as_json(server: Server, service: Service) -> None:
    service.snapshot = status(partitions=(partition(4, state="halted", reason="ValueError at offset 90"),))
    code, body, headers = await ask(server, "/status")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    found = json.loads(body)
    assert found["partitions"][0]["reason"] == "ValueError at offset 90"
    assert found["group"]["last_rebalances"][1]["seconds"] == 1.0
    assert found["settings"] == {"http": {"port": 9400}}


async def test_metrics_come_in_the_format_that_is_accepted(server: Server) -> None:
    code, body, headers = await ask(server, "/metrics")
    assert (code, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'kafka_consumer_records_lag{group="shop",partition="0",topic="orders"} 10.0' in body
    code, body, headers = await ask(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/status"])
async def test_head_is_answered_without_a_body(server: Server, path: str) -> None:
    code, body, headers = await ask(server, path, "HEAD")
    assert (code, body) == (200, "")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    "path", ["/index.html", "/page.html", "/livez/", "/../etc/passwd", "/%2e%2e/x", "/favicon.ico", "//livez"]
)
async def test_another_page_is_not_found_and_the_answer_names_those_there_are(server: Server, path: str) -> None:
    answer = await raw(server, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.endswith(b"no such page; there are /, /livez, /readyz, /metrics, /status, /events\n")


@pytest.mark.parametrize("path", ["/", "/events", "/status", "/metrics"])
async def test_a_client_that_hangs_up_before_it_is_answered_writes_no_traceback(
    server: Server, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who may connect could fill the log otherwise."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    writer.write_eof()
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()
    assert (await ask(server, "/livez"))[0] == 200
    assert [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_nothing_can_be_changed(server: Server, method: str) -> None:
    code, body, headers = await ask(server, "/status", method)
    assert (code, headers["Allow"]) == (405, "GET, HEAD")
    assert body == "read-only: only GET and HEAD are allowed\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(200)) + b"\r\n",
    ],
    ids=["TLS", "long header", "long address", "many headers"],
)
async def test_nonsense_is_refused_and_ends_only_its_own_connection(
    server: Server, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert b" 400 " in (await raw(server, data)).split(b"\r\n")[0]
    assert (await ask(server, "/livez"))[0] == 200
    assert [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


async def test_a_body_that_is_announced_and_never_sent_holds_up_nobody(server: Server) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert (await ask(server, "/livez"))[0] == 200
    writer.close()


async def test_a_thousand_idle_connections_keep_no_probe_out(server: Server) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(1000)]
    began = time.monotonic()
    assert (await ask(server, "/livez"))[0] == 200
    assert time.monotonic() - began < 60.0
    assert server._connections is not None
    await until(lambda: len(server._connections._open) <= MOST_CONNECTIONS, "the oldest connections to be closed")  # type: ignore[union-attr]
    for _, writer in idle:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_clients_that_do_not_read_their_answer_keep_no_probe_out(server: Server, service: Service) -> None:
    service.snapshot = status(partitions=tuple(partition(n) for n in range(5000)))
    slow = []
    for _ in range(20):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", server.port))
        await asyncio.get_running_loop().sock_sendall(connection, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.append(connection)
    assert (await ask(server, "/livez"))[0] == 200
    for connection in slow:
        connection.close()


async def test_an_idle_connection_is_closed_after_a_while(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_IDLE_TIMEOUT", 0.2)
    server = Server(HttpSettings(host="127.0.0.1", port=0), service.status, Metrics())
    await server.start()
    assert await raw(server, b"") == b""
    assert await raw(server, b"GET /livez HT") == b""
    await server.stop()


class SlowMetrics(Metrics):
    """Takes as long to render as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def render(self, status: Status, accept: str, partition_metrics_max: int) -> tuple[bytes, str]:
        self.go_on.wait(60)
        return super().render(status, accept, partition_metrics_max)


async def test_probes_are_answered_while_metrics_are_rendered(service: Service) -> None:
    metrics = SlowMetrics()
    server = Server(HttpSettings(host="127.0.0.1", port=0), service.status, metrics)
    await server.start()
    scrape = asyncio.ensure_future(ask(server, "/metrics"))
    await until(lambda: server._rendering == 1, "the scrape to begin")
    assert (await ask(server, "/livez"))[0] == 200
    assert not scrape.done()
    metrics.go_on.set()
    assert (await scrape)[0] == 200
    await server.stop()


async def test_more_scrapes_than_are_rendered_at_once_are_told_to_come_back(service: Service) -> None:
    metrics = SlowMetrics()
    server = Server(HttpSettings(host="127.0.0.1", port=0), service.status, metrics)
    await server.start()
    scrapes = [asyncio.ensure_future(ask(server, "/metrics")) for _ in range(http._MOST_RENDERINGS)]
    await until(lambda: server._rendering == http._MOST_RENDERINGS, "the scrapes to begin")
    code, body, _ = await ask(server, "/metrics")
    assert (code, body) == (503, "4 scrapes are in progress; come back later\n")
    metrics.go_on.set()
    assert [code for code, _, _ in await asyncio.gather(*scrapes)] == [200] * len(scrapes)
    assert (await ask(server, "/metrics"))[0] == 200
    await server.stop()


async def test_a_port_in_use_is_named(server: Server, service: Service) -> None:
    second = Server(HttpSettings(host="127.0.0.1", port=server.port), service.status, Metrics())
    with pytest.raises(ConfigError, match=rf"http.port = {server.port} on 127.0.0.1: another process listens there"):
        await second.start()
    await second.stop()


async def test_an_address_that_is_not_ours_is_refused(service: Service) -> None:
    server = Server(HttpSettings(host="192.0.2.1", port=0), service.status, Metrics())
    with pytest.raises(ConfigError, match=r"http.port = 0 on 192.0.2.1: .*correct http.host"):
        await server.start()


async def test_a_host_that_cannot_be_resolved_is_refused(service: Service) -> None:
    server = Server(HttpSettings(host="no such host", port=0), service.status, Metrics())
    with pytest.raises(ConfigError, match=r"correct http\.host"):
        await server.start()


async def test_stopping_frees_the_port_and_may_be_done_twice_or_without_a_start(service: Service) -> None:
    server = Server(HttpSettings(host="127.0.0.1", port=0), service.status, Metrics())
    await server.stop()
    await server.start()
    port = server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await server.stop()
    await server.stop()
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    again = Server(HttpSettings(host="127.0.0.1", port=port), service.status, Metrics())
    await again.start()
    await again.stop()


async def test_a_bug_in_the_status_is_logged_and_an_error_of_that_page_alone(
    server: Server, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    good = service.snapshot
    service.snapshot = None  # type: ignore[assignment]
    assert (await ask(server, "/livez"))[0] == 500
    assert "AttributeError" in caplog.text
    service.snapshot = good
    assert (await ask(server, "/livez"))[0] == 200
