"""The HTTP server for probes, scrapers, the status page and actions, on the supervisor's event loop. On that loop on
purpose: `/livez` must not answer for a loop that does not run.

1. Nothing here waits for a client: a page is complete before its first byte is sent.
2. Connections are bounded. The one beyond the bound takes the place of the longest open one, so that idle or slow
   clients can neither use up descriptors that brokers and workers need nor shut out the kubelet.
3. Only `/metrics` takes time, so it is rendered in a thread from a frozen snapshot; so is what `/events` sends
   (server-sent events, WHATWG HTML 9.2: one snapshot for all who listen).
4. What acts asks for a token (`actions`), except on the socket of our own user (`kunicorn.observe.requests`); every
   other page only reads.
5. Pages that show records' places and settings answer only under names that are ours. A page of evil.example whose name
   resolves, at the second look, to 127.0.0.1 or to a pod's address may read whatever answers there (DNS rebinding): its
   browser believes that it is evil.example's own. Only the Host header tells.
6. The status page works without a network: all its files are the package's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources

import orjson
from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from kunicorn.observe import health, logs, requests
from kunicorn.observe.actions import PREFIX, Actions, Desk
from kunicorn.observe.health import Verdict
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.port import Port
from kunicorn.observe.status import Status
from kunicorn.settings import HttpSettings

INTERVAL = 1.0
"""Seconds between two events."""
_PARTITIONS_A_SECOND = 1000
"""With more partitions events come less often: a snapshot looks at each of them, on the event loop."""
MOST_LISTENERS = 32
_STALLED_SECONDS = 20.0
"""A listener that reads nothing for so long is let go."""
_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events:
    """Stream of snapshots for the status page. Renders only while somebody listens. Caller: the HTTP server, on the
    loop.
    """

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._listeners = 0
        self._latest = b""
        self._changed = asyncio.Event()
        self._rendering: asyncio.Task[None] | None = None

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Stream until the client goes, or reads nothing."""
        if self._listeners >= MOST_LISTENERS:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{MOST_LISTENERS} pages listen already\n")
        stream = web.StreamResponse(headers=_HEADERS)
        await stream.prepare(request)
        if request.method == "HEAD":
            return stream
        self._listeners += 1
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.ensure_future(self._render())
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._send(stream)
        finally:
            self._listeners -= 1
        return stream

    def stop(self) -> None:
        """Stop rendering; the server closes the connections."""
        if self._rendering is not None:
            self._rendering.cancel()

    async def _send(self, stream: web.StreamResponse) -> None:
        """Send each new event that the client has time for; what it was too slow to read is skipped, not kept for
        it.
        """
        seen = None
        while True:
            if self._latest and self._latest is not seen:
                seen = self._latest
                async with asyncio.timeout(_STALLED_SECONDS):
                    await stream.write(seen)
            else:
                await self._changed.wait()

    async def _render(self) -> None:
        """Render one event after the other while there are listeners."""
        while self._listeners:
            status = self._status()
            self._latest = await asyncio.to_thread(_event, status)
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(max(INTERVAL, len(status.partitions) / _PARTITIONS_A_SECOND))
        self._latest = b""


def _event(status: Status) -> bytes:
    return b"data: " + orjson.dumps(status, default=str) + b"\n\n"


_PAGE_HEADERS = {
    # Nothing but our own files; no inline script, so that no text in a status can ever become one.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file of the status page."""

    body: bytes
    content_type: str
    etag: str

    def answer(self, request: web.BaseRequest) -> web.Response:
        """The file, or that it has not changed."""
        headers = {**_PAGE_HEADERS, "ETag": self.etag}
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=self.body, content_type=self.content_type, charset="utf-8", headers=headers)


def load() -> dict[str, Asset]:
    """The static files by path. Blocks on the disk; called before anything is served."""
    return {path: _asset(name) for path, name in _PATHS.items()}


_PATHS = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}


def _asset(name: str) -> Asset:
    body = resources.files("kunicorn.observe").joinpath(name).read_bytes()
    return Asset(body, _TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:20]}"')


NOBODYS = (".localhost", ".local", ".internal", ".svc", ".home.arpa", ".test")
"""Ends of names that the public DNS does not have, and in which nobody registers anything. The rest of .arpa has
owners: whoever has addresses has the names for them in .in-addr.arpa and .ip6.arpa, and may point those anywhere."""


def is_ours(host: str | None, allowed: Collection[str] = ()) -> bool:
    """Whether a Host header is a name for us that no stranger can have made: an address, a name without a dot, one that
    only a network's own resolver knows, this machine's name, or one of `allowed`. Browsers always send a name.
    """
    if host is None:
        return True
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if "." not in name and ":" not in name:
        return name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return _is_address(name) or name.endswith(NOBODYS) or name == socket.gethostname().lower() or name in allowed


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


log = logs.get("kunicorn.http")

MOST_CONNECTIONS = 128
_IDLE_TIMEOUT = 30.0
"""Seconds without a complete request; longer than the usual scrape interval costs only a new connection."""
_MOST_HEADERS, _LONGEST_HEADER = 64, 4096
_MOST_RENDERINGS = 4
"""Scrapes in progress; more are told to come back."""
_STOP_TIMEOUT = 1.0

_FOR_ALL = frozenset({"/livez", "/readyz", "/metrics"})
"""Whatever name they are asked for under: a probe's or a scraper's is nobody's concern."""

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server:
    """The HTTP server; `status` is called on the event loop for every request and must be cheap."""

    def __init__(
        self,
        settings: HttpSettings,
        status: Callable[[], Status],
        metrics: Metrics,
        actions: Actions | None = None,
        port: Port | None = None,
    ) -> None:
        """`port`: one that was bound before."""
        self._port = port or Port(settings)
        self._settings = settings
        self._status = status
        self._metrics = metrics
        self._rendering = 0
        self._connections: _Connections | None = None
        self._local: asyncio.Server | None = None
        self._local_address: requests.Address = b""
        self._local_connections: _Connections | None = None
        self._events = Events(status)
        self._desk = Desk(settings, actions, metrics)
        self._assets = load()
        self._pages: Mapping[str, Page] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics_page,
            "/status": self._status_page,
            "/events": self._events.answer,
        }

    @property
    def port(self) -> int:
        """The port listened on; after `start` a real one where 0 was asked for."""
        return self._port.number

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the address cannot be had."""
        await self._port.bind()
        self._connections = _Connections(self._answer)
        await self._port.serve(self._connections)
        await self._take_orders_here()
        log.info(f"serving {', '.join(self._pages)} on {self._port.scheme}://{self._port.host}:{self.port}")

    async def _take_orders_here(self) -> None:
        self._local_connections = _OwnConnections(self._answer_here)
        try:
            sock = requests.listen(self.port)
            self._local = await asyncio.get_running_loop().create_unix_server(self._local_connections, sock=sock)
        except OSError as error:
            log.warning(f"commands on this machine need http.token: the socket for them cannot be had: {error}")
            return
        self._local_address = sock.getsockname()
        if isinstance(self._local_address, bytes):
            log.info("commands on this machine come by a socket without a file: neither /tmp nor TMPDIR takes one")

    async def stop(self) -> None:
        """Close the port and every connection, answers in progress after a second. May be called without `start`."""
        self._events.stop()
        requests.forget(self._local_address)
        self._port.close()
        if self._local is not None:
            self._local.close()
        for connections in (self._connections, self._local_connections):
            if connections is not None:
                await connections.shutdown(_STOP_TIMEOUT)

    async def _answer_here(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(PREFIX):
            return await self._desk.answer(request, here=True)
        return _text(HTTPStatus.NOT_FOUND, f"only orders are taken here; pages are at port {self.port}")

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path not in _FOR_ALL and not is_ours(request.headers.get("Host"), self._settings.allowed_hosts):
            return _text(
                HTTPStatus.FORBIDDEN, "not a name of this service: ask by its address, or see http.allowed_hosts"
            )
        if request.path.startswith(PREFIX):
            return await self._desk.answer(request)
        page, asset = self._pages.get(request.path), self._assets.get(request.path)
        if page is None and asset is None:
            return _text(HTTPStatus.NOT_FOUND, f"no such page; there are /, {', '.join(self._pages)}")
        if request.method not in {"GET", "HEAD"}:
            answer = _text(HTTPStatus.METHOD_NOT_ALLOWED, "read-only: only GET and HEAD are allowed")
            answer.headers["Allow"] = "GET, HEAD"
            return answer
        if asset is not None:
            return asset.answer(request)
        assert page is not None
        return await page(request)

    async def _livez(self, _: web.BaseRequest) -> web.Response:
        return _verdict(health.live(self._status()))

    async def _readyz(self, _: web.BaseRequest) -> web.Response:
        return _verdict(health.ready(self._status()))

    async def _status_page(self, _: web.BaseRequest) -> web.Response:
        body = orjson.dumps(self._status(), default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, content_type="application/json", headers=_UNCACHED)

    async def _metrics_page(self, request: web.BaseRequest) -> web.Response:
        if self._rendering >= _MOST_RENDERINGS:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._rendering} scrapes are in progress; come back later")
        self._rendering += 1
        try:
            body, content_type = await asyncio.to_thread(
                self._metrics.render,
                self._status(),
                request.headers.get("Accept", ""),
                self._settings.partition_metrics_max,
            )
        finally:
            self._rendering -= 1
        return web.Response(body=body, headers={"Content-Type": content_type, **_UNCACHED})


_THEIRS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Nonsense, a body that is none, and a client that hangs up before it is answered."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Log filter without the noise of port scanners and TLS clients: it would fill the log with tracebacks at their
    will.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], _THEIRS)


_errors_of_ours = logging.getLogger("kunicorn.http.requests")
_errors_of_ours.addFilter(_is_ours)


# Else every answer, those to nonsense included, names the versions of Python and aiohttp.
web_response.SERVER_SOFTWARE = "kunicorn"  # type: ignore[attr-defined]


class _Connections(web.Server):
    """aiohttp's low-level server with a bound on open connections."""

    def __init__(self, answer: Page) -> None:
        super().__init__(
            answer,
            access_log=None,
            logger=_errors_of_ours,
            keepalive_timeout=_IDLE_TIMEOUT,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            max_headers=_MOST_HEADERS,
        )
        self._open: dict[RequestHandler, asyncio.Transport] = {}
        """In the order of their arrival."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Caller: aiohttp, for every new connection."""
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if len(self._open) > MOST_CONNECTIONS:
            # Abort, not close: close() waits until the client has read what was sent, which may be never.
            self._open.pop(next(iter(self._open))).abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Caller: aiohttp, when a connection is over."""
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)


class _OwnConnections(_Connections):
    """Server on the local socket: connections of our own user and of root; others are closed."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Caller: aiohttp, for every new connection."""
        super().connection_made(handler, transport)
        # The loop's own socket object does not take questions.
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as sock:
            if not requests.may_deal_with_us(sock):
                # Not at once: aiohttp has yet to begin with the connection, and would log a traceback. Nothing is read
                # before, as whatever the loop is told of by the kernel comes behind this.
                asyncio.get_running_loop().call_soon(transport.abort)


_UNCACHED = {"Cache-Control": "no-store"}


def _verdict(verdict: Verdict) -> web.Response:
    if verdict.ok:
        return _text(HTTPStatus.OK, "ok")
    return _text(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(verdict.reasons))


def _text(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=_UNCACHED)
