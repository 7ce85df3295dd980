"""The page and its stream."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from dataclasses import replace

import aiohttp
import pytest

from kunicorn.observe import http
from kunicorn.observe.status import Status
from tests.unit.observe.serving import Service, ask, serving
from tests.unit.observe.snapshots import partition, status


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "INTERVAL", 0.05)


async def next_event(stream: aiohttp.ClientResponse) -> dict[str, object]:
    async with asyncio.timeout(60):
        line = await stream.content.readuntil(b"\n\n")
    assert line.startswith(b"data: ")
    found: dict[str, object] = json.loads(line.removeprefix(b"data: "))
    return found


async def test_the_page_is_whole_and_takes_nothing_from_elsewhere() -> None:
    async with serving(Service()) as server:
        code, page, headers = await ask(server, "/")
        assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for path in re.findall(r'(?:src|href)="([^"]+)"', page):
            assert (await ask(server, path))[0] == 200, path
        for path in ("/", "/page.css", "/page.js"):
            body = (await ask(server, path))[1]
            assert "//" not in re.sub(r"(?m)^\s*//.*|http://www.w3.org/\S+|; // .*", "", body), path
            assert "innerHTML" not in body
        assert (await ask(server, "/page.js", If_None_Match=(await ask(server, "/page.js"))[2]["Etag"]))[0] == 304


class Numbered(Service):
    """Of which each look finds another uptime."""

    def status(self) -> Status:
        return replace(super().status(), uptime=float(self.looks))


async def test_each_listener_gets_what_is_so_now_and_one_look_serves_all() -> None:
    service = Numbered()
    async with serving(service) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/events"
        async with session.get(url) as one, session.get(url) as two:
            assert one.headers["Content-Type"] == "text/event-stream"
            first = await next_event(one)
            assert first["group_id"] == "shop"
            service.snapshot = status(partitions=(partition(7, state="halted", reason="too bad"),))
            for stream in (one, two):
                while (await next_event(stream))["partitions"][0]["state"] != "halted":  # type: ignore[index]
                    pass
            looks = set[object](), set[object]()
            async with asyncio.timeout(60):
                while not looks[0] & looks[1]:
                    for stream, seen in zip((one, two), looks, strict=True):
                        seen.add((await next_event(stream))["uptime"])


async def test_nothing_is_looked_at_for_nobody() -> None:
    service = Service()
    async with serving(service) as server, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{server.port}/events") as stream:
            await next_event(stream)
        async with asyncio.timeout(60):
            while server._events._listeners or not server._events._rendering.done():  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        looks = service.looks
        await asyncio.sleep(0.2)
        assert service.looks == looks


async def test_a_listener_that_reads_nothing_is_let_go_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_STALLED_SECONDS", 3.0)
    service = Service()
    service.snapshot = status(partitions=tuple(partition(n) for n in range(4000)))
    monkeypatch.setattr(http, "_PARTITIONS_A_SECOND", 1e9)
    async with serving(service) as server, aiohttp.ClientSession() as session:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", server.port))
        await asyncio.get_running_loop().sock_sendall(deaf, b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        async with session.get(f"http://127.0.0.1:{server.port}/events") as stream:
            async with asyncio.timeout(60):
                while server._events._listeners != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while server._events._listeners != 1:
                    assert await stream.content.readany(), "the one that reads is let go as well"
        deaf.close()


async def test_more_listeners_than_are_served_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_LISTENERS", 1)
    async with (
        serving(Service()) as server,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/events") as stream,
    ):
        await next_event(stream)
        assert (await ask(server, "/events"))[0] == 503


async def test_stopping_does_not_wait_for_listeners() -> None:
    async with aiohttp.ClientSession() as session:
        async with serving(Service()) as server:
            stream = await session.get(f"http://127.0.0.1:{server.port}/events")
            await next_event(stream)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 60
        stream.close()
