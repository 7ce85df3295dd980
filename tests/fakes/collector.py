"""An OpenTelemetry collector: takes metrics and spans by OTLP over HTTP, decodes the protobuf, and misbehaves as a test
says."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Manner = Literal["good", "silent", "endless", "elsewhere"]
"""What it does with a request: answer; never answer; answer without end; send it on to /elsewhere."""


class Collector:
    """What came, and how the next request is answered."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.body = b""
        """Of an answer that is no success."""
        self.manner: Manner = "good"
        self.rejects = 0
        """Of the values; the answer says so."""
        self.requests: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.over = threading.Event()

    def take(self, path: str, body: bytes) -> None:
        """Note a request."""
        self.paths.append(path)
        if path.endswith("/v1/traces"):
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        else:
            self.requests.append(ExportMetricsServiceRequest.FromString(body))

    def latest(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        return metrics_in(self.requests[-1])


def metrics_in(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    """Its metrics by name."""
    return {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def attributes_of(item: Any) -> dict[str, str]:
    """Attributes of a data point or a resource."""
    return {pair.key: pair.value.string_value for pair in item.attributes}


def total(metric: Any, **attributes: str) -> float:
    """Sum of the metric's points that have these attributes, with `__` for a dot."""
    wanted = {name.replace("__", "."): value for name, value in attributes.items()}.items()
    found: float = sum(
        point.as_double or point.as_int for point in metric.sum.data_points if wanted <= attributes_of(point).items()
    )
    return found


def _answer_of(of: Collector) -> bytes:
    if of.status != 200:
        return of.body
    answer = ExportMetricsServiceResponse()
    if of.rejects:
        answer.partial_success.rejected_data_points = of.rejects
        answer.partial_success.error_message = "too old"
    body: bytes = answer.SerializeToString()
    return body


def _handler(of: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            of.headers.append(dict(self.headers.items()))
            of.take(self.path, body)
            {"silent": self._wait, "endless": self._endless, "elsewhere": self._redirect, "good": self._answer}[
                of.manner
            ]()

        def _wait(self) -> None:
            of.over.wait(120)

        def _redirect(self) -> None:
            self.send_response(307)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def _answer(self) -> None:
            body = _answer_of(of)
            self.send_response(of.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _endless(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not of.over.is_set():
                try:
                    self.wfile.write(b"x" * 4096)
                except OSError:
                    return

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    return Handler


@contextmanager
def collector() -> Iterator[Collector]:
    """One that runs, on a port of its own."""
    found = Collector()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        server.shutdown()
        server.server_close()
        thread.join(60)
