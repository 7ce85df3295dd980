"""An HTTP server whose answers a test decides. Small, as it is one function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Answer(NamedTuple):
    """What is sent back."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, bytes], Answer]) -> Iterator[str]:
    """The address of one on a free port. `answer` gets each request and its body, in a thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(given.body)

        do_GET = do_POST  # noqa: N815 - as the server calls it

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
