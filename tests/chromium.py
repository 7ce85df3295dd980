"""A real Chromium without a window, driven by its own DevTools protocol over a WebSocket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
_START_SECONDS = 60.0
_ANSWER_SECONDS = 30.0


class Tab:
    """One page. `requests` are the addresses it asked for, `complaints` what its console says."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def open(self, url: str) -> None:
        """Go there."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self._do(f"{domain}.enable")
        await self._do("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """What the expression is, in the page."""
        answer = await self._do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str, within: float = 30.0) -> Any:
        """Until the expression is true there."""
        async with asyncio.timeout(within):
            while not (found := await self.value(script)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found

    async def press(self, selector: str) -> None:
        """Click on it."""
        await self.value(f"document.querySelector({selector!r}).click()")

    async def look(self, *, dark: bool = False, width: int = 1200, height: int = 1000) -> None:
        """As on a screen of that size, by night or by day."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._do("Emulation.setEmulatedMedia", features=[scheme])
        await self._do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self, file: Path) -> None:
        """What is to be seen now, as PNG."""
        answer = await self._do("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(answer["data"]))

    async def close(self) -> None:
        self._reading.cancel()
        await self._socket.close()

    async def _do(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        waiting = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = await waiting
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if (waiting := self._answers.pop(told.get("id"), None)) is not None:
                waiting.set_result(told)
            elif told.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.complaints.append(str(told["params"]))


@asynccontextmanager
async def chromium(directory: Path) -> AsyncIterator[Tab]:
    """A browser with one empty tab and a profile of its own in `directory`; it is gone afterwards."""
    found = shutil.which("chromium")
    assert found is not None, "there is no chromium: `make chromium` installs it"
    profile = directory / "profile"
    browser = subprocess.Popen(  # noqa: ASYNC220
        [found, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "HOME": str(directory)},
    )
    try:
        async with aiohttp.ClientSession() as session:
            port = await _port(profile, browser)
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (address,) = [tab["webSocketDebuggerUrl"] for tab in await answer.json() if tab["type"] == "page"]
            tab = Tab(await session.ws_connect(address, max_msg_size=0))
            yield tab
            await tab.close()
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait(10)


async def _port(profile: Path, browser: subprocess.Popen[bytes]) -> int:
    file = profile / "DevToolsActivePort"
    async with asyncio.timeout(_START_SECONDS):
        while not _written(file):
            assert browser.poll() is None, "chromium does not start"
            await asyncio.sleep(0.05)
    return int(_written(file)[0])


def _written(file: Path) -> list[str]:
    """The port and the browser's own path, once it has both."""
    lines = file.read_text().splitlines() if file.exists() else []
    return lines if len(lines) > 1 else []
