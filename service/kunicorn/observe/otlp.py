"""The service's metrics to an OpenTelemetry collector (an extra): OTLP over HTTP, beside `/metrics`.

The supervisor alone exports: workers' counts are in its one registry already. A snapshot is taken on the event loop;
everything else happens in one thread of this module's own. Whatever a collector does (it is away, slow, endless,
hostile) holds up the next export and nothing else.

1. Counts are totals since the start (cumulative). A failed export loses none: the next one has them.
2. A failure is logged once, until exports work again. No header's value is ever in a text.
3. Of an answer at most so many bytes are read, in so much time, and no redirect is followed: it would take the headers
   elsewhere.
4. A family that OTLP cannot have (a handler's own collector is free) is left out, and told once: the wire format would
   refuse the whole export for it.
5. The last export is sent when the service has drained, and is waited for no longer than the stop has time.

Only the wire format and the sending are OpenTelemetry's. Its `MetricsData` is made here, of the registry: no instrument
of its SDK takes buckets that are counted already. Nothing of this is imported where [otlp] is off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

from kunicorn import __version__
from kunicorn.ipc import clock
from kunicorn.observe import catalogue as c
from kunicorn.observe import logs
from kunicorn.observe.conventions import SCHEMA, Convention, attributes_of, convention_of
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import Status
from kunicorn.settings.otlp import OtlpSettings
from kunicorn.text import without

log = logs.get("kunicorn.otlp")

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_INFINITE = "+Inf"
_LARGEST_COUNT = (1 << 64) - 1
"""The wire format has no larger one, and none below 0."""
_KNOWN: Mapping[str, Convention] = {declared.name: convention_of(declared) for declared in c.every()}
_THEIR_OWN = Convention("")

# -- as OTLP has it ----------------------------------------------------------------------------------------------------


def metrics_of(
    families: Iterable[Family], start: int, now: int, left_out: Callable[[Family, Exception], None]
) -> Iterator[Metric]:
    """The families as OTLP has them. Times are nanoseconds since 1970; counts are since `start`.

    Families that are not ours (a handler's own, those of the process) keep their names and labels. `left_out` is told
    of each that OTLP cannot have, with the reason.
    """
    for family in families:
        try:
            made = list(_of_family(family, start, now))
        except Exception as error:  # A handler's collector may say anything: without `le`, not a number, negative.
            left_out(family, error)
        else:
            yield from made


def _of_family(family: Family, start: int, now: int) -> Iterator[Metric]:
    convention = _KNOWN.get(family.name)
    if family.type == "histogram":
        yield _histogram(family, convention, start, now)
        return
    for name, samples in _by_name(family):
        # A counter's name is that of its family; a summary has a count and a sum, of names of their own.
        own = name if family.type == "summary" else family.name
        points = [
            NumberDataPoint(_attributes(sample.labels, convention), start, now, sample.value) for sample in samples
        ]
        summed = family.type in {"counter", "summary"}
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if summed else Gauge(points)
        found = convention or _THEIR_OWN
        yield Metric(found.name or own, family.documentation, found.unit, data)


def _by_name(family: Family) -> Iterator[tuple[str, list[Any]]]:
    by_name: dict[str, list[Any]] = {}
    for sample in family.samples:
        if "quantile" not in sample.labels and not sample.name.endswith("_created"):
            by_name.setdefault(sample.name, []).append(sample)
    yield from by_name.items()


def _attributes(labels: Mapping[str, str], convention: Convention | None) -> dict[str, str]:
    return dict(labels) if convention is None else attributes_of(labels, convention)


def _histogram(family: Family, convention: Convention | None, start: int, now: int) -> Metric:
    upto: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        series = tuple(sorted(labels.items()))
        if sample.name.endswith("_bucket"):
            upto.setdefault(series, {})[sample.labels["le"]] = sample.value
        elif sample.name.endswith("_sum"):
            sums[series] = sample.value
    kept = None if convention is None or not convention.buckets else frozenset(convention.buckets)
    points = [
        _point(_attributes(dict(series), convention), counts, sums.get(series, 0.0), kept, (start, now))
        for series, counts in upto.items()
    ]
    found = convention or _THEIR_OWN
    return Metric(found.name or family.name, family.documentation, found.unit, Histogram(points, _CUMULATIVE))


def _point(
    attributes: Mapping[str, str],
    upto: Mapping[str, float],
    total: float,
    kept: frozenset[float] | None,
    times: tuple[int, int],
) -> HistogramDataPoint:
    """`upto`: how many were at most so long, by the bound. `kept`: the bounds to tell of; None: all."""
    bounds = sorted(float(bound) for bound in upto if bound != _INFINITE)
    by_bound = {float(bound): count for bound, count in upto.items()}
    told = [bound for bound in bounds if kept is None or bound in kept]
    counts = [int(by_bound[bound]) for bound in told]
    count = int(by_bound.get(float("inf"), counts[-1] if counts else 0))
    steps = [high - low for low, high in zip([0, *counts], [*counts, count], strict=True)]
    if not all(0 <= step <= _LARGEST_COUNT for step in steps):
        raise ValueError(f"the counts {[*counts, count]} of its buckets fall, or are too large")
    nothing: Any = None  # How long the shortest and the longest were is not known; the wire format has it optional.
    return HistogramDataPoint(attributes, *times, count, total, steps, told, nothing, nothing)


def resource_of(settings: OtlpSettings, group_id: str) -> Resource:
    """Who we are: the settings, before OpenTelemetry's own variables, before what is known without either."""
    known = {
        "service.name": group_id,
        # Two members whose series are one would overwrite one another's totals.
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    named = Resource.create(dict(settings.resource))
    told = dict(named.attributes)
    if "service.name" not in settings.resource and str(told.get("service.name", "")).startswith("unknown_service"):
        del told["service.name"]
    return Resource({**known, **told}, SCHEMA)


# -- sending -----------------------------------------------------------------------------------------------------------

_LARGEST_ANSWER = 64 * 1024


class _Session(requests.Session):
    """A session that believes no server: answers are small and in time, or they are none. It knows why a request
    failed, which the exporter does not say.
    """

    def __init__(self, longest: float) -> None:
        super().__init__()
        self._longest = longest
        self.failure = ""
        """Of the last request; empty: it was taken."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        # OpenTelemetry tries once more behind the last moment: no reason of that try's own may hide the collector's.
        if self.failure and options.get("timeout") == 0:
            raise requests.Timeout(self.failure)
        due = clock.now() + self._longest
        options |= {"stream": True, "allow_redirects": False}
        try:
            response = super().request(*arguments, **options)
            response._content = _read(response, due)  # As requests itself keeps what it has read.
            if response.is_redirect:
                raise requests.TooManyRedirects("it sends us to another address, which is not followed")
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise
        self.failure = _refused(response)
        return response


def _read(response: requests.Response, due: float) -> bytes:
    body = b""
    with response:
        for part in response.iter_content(4096):
            body += part
            if len(body) > _LARGEST_ANSWER or clock.now() > due:
                raise requests.exceptions.ContentDecodingError("its answer has no end")
    return body


def _refused(response: requests.Response) -> str:
    """What the collector has against it; empty: nothing."""
    if not response.ok:
        text = response.content.decode(errors="replace")
        return f"the collector answers {response.status_code} ({response.reason}) {text}"
    try:
        partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
    except DecodeError:
        return ""  # Some answer with a word of their own.
    if not partial.rejected_data_points:
        return ""
    return f"the collector rejects {partial.rejected_data_points} values: {partial.error_message}"


_LONGEST_REASON = 300
_BLANKS = re.compile(r"\s+")
_CREDENTIALS = re.compile(r"//[^\s@]*@")
_QUERY = re.compile(r"\?[^\s'\")]+")
"""Of the address, which OpenTelemetry's own variables may have with a key in it."""


class Endpoint:
    """A collector. Caller: the export's thread, for everything; every call may take as long as the settings allow."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._headers: dict[str, str] | None = None
        self._exporter: OTLPMetricExporter | None = None
        self._session = _Session(settings.timeout_ms / 1000)
        # It logs each try; we say it once.
        theirs = logging.getLogger("opentelemetry.exporter")
        theirs.addHandler(logging.NullHandler())
        theirs.propagate = False
        logging.getLogger("urllib3").setLevel(logging.WARNING)

    def send(self, data: MetricsData) -> str:
        """Send; empty, or why it was not taken, without secrets."""
        self._session.failure = ""
        try:
            result = self._made().export(data)
        except Exception as error:  # Whatever it is, it must not end the service.
            return self._harmless(f"{type(error).__name__}: {error}")
        failure = self._session.failure
        if result is not MetricExportResult.SUCCESS:
            failure = failure or "the exporter does not say why"
        return self._harmless(failure)

    def shut(self) -> None:
        """End a try that is under way. Caller: any thread."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def _made(self) -> OTLPMetricExporter:
        """The exporter, made anew where the headers' file has changed. Raises whatever its settings make it raise."""
        settings, headers = self._settings, self._settings.secret_headers()
        if self._exporter is None or headers != self._headers:
            self._headers = headers
            self._exporter = OTLPMetricExporter(
                endpoint=settings.endpoint,
                certificate_file=settings.ssl_ca_location,
                client_key_file=settings.ssl_key_location,
                client_certificate_file=settings.ssl_certificate_location,
                headers=headers or None,
                timeout=settings.timeout_ms / 1000,
                compression=Compression.Gzip if settings.compression == "gzip" else Compression.NoCompression,
                session=self._session,
            )
        return self._exporter

    def _harmless(self, reason: str) -> str:
        """One short line without a header's value, and no secret of an address: a server may send ours back, a library
        may quote them."""
        secrets = {*(self._headers or {}).values(), *_values_of(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))}
        secrets |= set(_values_of(os.environ.get("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "")))
        harmless = _QUERY.sub("?…", _CREDENTIALS.sub("//…@", without(secrets, reason)))
        return _BLANKS.sub(" ", harmless).strip()[:_LONGEST_REASON]


def _values_of(headers: str) -> Iterator[str]:
    """Values of OpenTelemetry's variable, as it has them and as they are sent."""
    for pair in headers.split(","):
        value = pair.partition("=")[2].strip()
        yield from (value, unquote(value).strip())


# -- the service's part ------------------------------------------------------------------------------------------------


class OtlpExport:
    """The export of the service. Runs on the event loop; what takes time happens in a thread of its own."""

    def __init__(
        self, settings: OtlpSettings, endpoint: Endpoint, metrics: Metrics, status: Callable[[], Status], most: int
    ) -> None:
        """`most`: with more partitions the series of single ones are left out."""
        self._settings = settings
        self._endpoint = endpoint
        self._metrics = metrics
        self._status = status
        self._most = most
        self._started_ns = time.time_ns()
        self._thread = _thread()
        self._failing = False
        self._left_out = logs.Complaints(log)

    async def export_every(self) -> None:
        """Export at the interval, for ever. Caller: the service, as a task."""
        interval, longest = self._settings.interval_ms / 1000, self._settings.timeout_ms / 1000
        while True:
            began = clock.now()
            export = asyncio.ensure_future(self.export())
            # A server that sends a byte now and then is within every time-out of a socket.
            done, _ = await asyncio.wait({export}, timeout=2 * longest)
            if not done:
                self._tell(f"the collector has not answered for {2 * longest:g} s")
            await export
            await asyncio.sleep(max(0.0, began + interval - clock.now()))

    async def last(self, within: float) -> None:
        """Export for the last time, so that a stop takes no counts along; given up after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self.export()
        except TimeoutError:
            log.warning(f"the last export of metrics is given up after {within:.1f} s")
        self._endpoint.shut()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def export(self) -> None:
        """Export once."""
        status = self._status()
        try:
            failure = await asyncio.get_running_loop().run_in_executor(self._thread, self._send, status)
        except RuntimeError as error:
            # A container at its limit has no thread for it. The next try shall not find this one before it.
            failure = f"{type(error).__name__}: {error}"
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = _thread()
        self._metrics.count(c.OTLP_EXPORTS, result="failed" if failure else "ok")
        self._tell(failure)

    def _tell(self, failure: str) -> None:
        if failure and self._failing:
            log.debug(f"metrics are still not exported: {failure}")
        elif failure:
            interval = self._settings.interval_ms / 1000
            log.warning(f"metrics are not exported: {failure}; tried again every {interval:g} s, and told no more")
        elif self._failing:
            log.info("metrics are exported again")
        self._failing = bool(failure)

    def _send(self, status: Status) -> str:
        try:
            data = self._data(status)
        except Exception as error:  # As in `Endpoint.send`: an export may fail, the service not.
            return f"{type(error).__name__}: {error}"
        return self._endpoint.send(data)

    def _data(self, status: Status) -> MetricsData:
        now = time.time_ns()
        # Set back since the start, the clock would give points that are older than their start, which are refused.
        self._started_ns = min(self._started_ns, now)
        families = self._metrics.families(status, self._most)
        metrics = list(metrics_of(families, self._started_ns, now, self._leave_out))
        return _whole(resource_of(self._settings, status.group_id), metrics)

    def _leave_out(self, family: Family, error: Exception) -> None:
        self._left_out.tell(
            family.name,
            f"the {family.type} {family.name} is left out of what is exported: {type(error).__name__}: {error}; "
            f"correct the handler's collector",
        )


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="otlp")


def _whole(resource: Resource, metrics: Sequence[Metric]) -> MetricsData:
    scope = InstrumentationScope("kunicorn", __version__, SCHEMA)
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, SCHEMA)], SCHEMA)])
