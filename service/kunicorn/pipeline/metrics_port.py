"""Metrics of a job, at `/metrics` of `[http]` while it runs; Spark's own are at its UI's port.

The driver is no asyncio process: each connection has a thread. Nobody who connects and is silent holds up another one,
or the job's end.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from kunicorn.errors import ConfigError
from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared
from kunicorn.observe.port import ServerCertificate
from kunicorn.pipeline.report import Say, Tasks
from kunicorn.pipeline.state import Counts
from kunicorn.settings import HttpSettings


class Exposed:
    """Metrics of a job, served while the block runs. A port that is taken costs the metrics, never the job."""

    def __init__(self, http: HttpSettings, job: str, say: Say) -> None:
        self._http, self._say = http, say
        self._registry = CollectorRegistry()
        self._records, self._left, self._saves, self._tasks = map(self._gauge, (c.RECORDS, c.LEFT, c.SAVES, c.TASKS))
        self._job = job
        self._left_behind: int | None = None
        """Offsets left as of the last count."""
        self._close: Callable[[], None] = lambda: None

    def _gauge(self, declared: Declared) -> Gauge:
        return Gauge(declared.name, declared.meaning, declared.labels, registry=self._registry)

    def __enter__(self) -> Self:
        if not self._http.enabled:
            return self
        certificate, key = self._http.tls_certificate_file, self._http.tls_key_file
        try:
            context = None if certificate is None or key is None else ServerCertificate(certificate, key).context()
            server = _Server(self._http, make_wsgi_app(self._registry), context)
        except ConfigError as error:
            self._say(f"no metrics: {error}")
            return self
        except OSError as error:
            place = f"{self._http.host}:{self._http.port}"
            self._say(f"no metrics: {place} cannot be listened on ({error.strerror}); set http.port")
            return self
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def close() -> None:
            server.shutdown()
            server.server_close()

        self._close = close
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def moved(self, counts: Counts, saves: int, left: int | None) -> None:
        """Show progress that is saved, for that many times; `left` is None where the job has no end."""
        for name, count in asdict(counts).items():
            self._records.labels(self._job, name).set(count)
        self._saves.labels(self._job).set(saves)
        self._left_behind = left
        if left is not None:
            self._left.labels(self._job).set(left)

    def underway(self, tasks: Tasks) -> None:
        """Show the tasks underway. Caller: the thread that watches them."""
        for state in ("done", "running", "failed"):
            self._tasks.labels(self._job, state).set(getattr(tasks, state))
        if self._left_behind is not None and tasks.offsets:
            self._left.labels(self._job).set(self._left_behind - tasks.offsets)


class _Request(WSGIRequestHandler):
    timeout = 10.0
    """Seconds to wait for each of a client's packets, also of its handshake."""

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    # Nobody waits for a connection's thread, neither whoever closes the port nor the interpreter's end.
    daemon_threads = True

    def __init__(self, http: HttpSettings, app: Any, context: ssl.SSLContext | None) -> None:
        """Listens from now on. Raises `OSError`."""
        self._context = context
        self.address_family, *_ = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)[0]
        super().__init__((http.host, http.port), _Request)
        self.set_app(app)

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        if self._context is not None:
            # Its thread shakes hands, as it reads: here a client that never ends its handshake would hold up all
            # others, and `shutdown` for ever.
            request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Of a client: a scanner, one that speaks HTTP in the clear, one that is silent.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
