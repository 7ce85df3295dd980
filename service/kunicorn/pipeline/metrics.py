"""What the driver tells Prometheus of its job, at `/metrics` of `[http]`; Spark's own metrics are at its UI's port."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from kunicorn.observe import job_catalogue as c
from kunicorn.observe.catalogue import Declared
from kunicorn.pipeline.progress import Say
from kunicorn.pipeline.state import Counts
from kunicorn.pipeline.underway import Tasks
from kunicorn.settings import HttpSettings

_STATUS = ("records", "skipped", "dead_letters")


class Exposed:
    """A job's counters, served while the block runs. A port that is taken costs the metrics, never the job."""

    def __init__(self, http: HttpSettings, job: str, say: Say) -> None:
        self._http, self._say = http, say
        self._registry = CollectorRegistry()
        self._records, self._left, self._rounds, self._tasks = map(self._gauge, (c.RECORDS, c.LEFT, c.ROUNDS, c.TASKS))
        self._job = job
        self._left_behind: int | None = None
        """Offsets left as of the last round."""
        self._close: Callable[[], None] = lambda: None

    def _gauge(self, declared: Declared) -> Gauge:
        return Gauge(declared.name, declared.meaning, declared.labels, registry=self._registry)

    def __enter__(self) -> Self:
        if not self._http.enabled:
            return self
        try:
            server, _ = start_http_server(self._http.port, self._http.host, self._registry)
        except OSError as error:
            place = f"{self._http.host}:{self._http.port}"
            self._say(f"no metrics: {place} cannot be listened on ({error.strerror}); set http.port")
            return self

        def close() -> None:
            server.shutdown()
            server.server_close()

        self._close = close
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def moved(self, counts: Counts, rounds: int, left: int | None) -> None:
        """A round is through; `left` is None where nobody knows an end."""
        for name in _STATUS:
            self._records.labels(self._job, name).set(getattr(counts, name))
        self._rounds.labels(self._job).set(rounds)
        self._left_behind = left
        if left is not None:
            self._left.labels(self._job).set(left)

    def underway(self, tasks: Tasks) -> None:
        """The round underway, or with no tasks that there is none. Caller: the thread that watches it."""
        for state in ("done", "running", "failed"):
            self._tasks.labels(self._job, state).set(getattr(tasks, state))
        if self._left_behind is not None and tasks.offsets:
            self._left.labels(self._job).set(self._left_behind - tasks.offsets)
