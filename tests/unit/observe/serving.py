"""A server beside real sockets, and what is behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp

from kunicorn.observe.http import Server
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.requests import Done, Goal, SeekMove
from kunicorn.observe.status import Status
from kunicorn.settings import HttpSettings
from tests.unit.observe.snapshots import status

TOKEN = "correct-horse-battery"


class Service:
    """What the server looks at, and a record of what it was asked to do."""

    def __init__(self) -> None:
        self.snapshot = status()
        self.looks = 0
        self.done: list[tuple[str, Any]] = []
        self.metrics = Metrics()

    def status(self) -> Status:
        self.looks += 1
        return self.snapshot

    def pause(self, partitions: Sequence[str]) -> Done:
        return self._note("pause", list(partitions))

    def resume(self, partitions: Sequence[str]) -> Done:
        return self._note("resume", list(partitions))

    def recycle(self, worker: int | None) -> Done:
        return self._note("recycle", worker) if worker == 0 else Done(ok=False, said=f"there is no worker {worker}")

    async def reload(self) -> Done:
        return self._note("reload", None)

    def drain(self) -> Done:
        return self._note("drain", None)

    async def seek(self, partitions: Sequence[str], goal: Goal, *, execute: bool) -> Done:
        move = SeekMove("orders", 1, 10, 8, 5, 0, 20, "")
        return replace(self._note("seek", (list(partitions), goal, execute)), moves=[move])

    def _note(self, action: str, what: Any) -> Done:
        self.done.append((action, what))
        return Done(ok=True, said=f"{action} is done")


@asynccontextmanager
async def serving(service: Service, **settings: Any) -> AsyncIterator[Server]:
    """On a free port of this machine."""
    http = HttpSettings(host="127.0.0.1", port=0, **settings)
    server = Server(http, service.status, service.metrics, service)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(
    server: Server, path: str, method: str = "GET", data: bytes | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Status code, body and headers; `_` in a header's name stands for a hyphen."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.request(method, f"http://127.0.0.1:{server.port}{path}", data=data, headers=named) as answer,
    ):
        return answer.status, await answer.text(), dict(answer.headers)
