"""What one task may take of a job's limits: records and bytes a second, and how soon its process connects.

1. The driver gives each task a share of the rates when it begins it: an equal one for as many tasks as can run at once
   then. A job's partitions only become fewer, so that what each has only grows, and all stay within the rates. If
   executors come while a job runs, what was begun before keeps its larger share until its range ends; in a stream,
   until its micro-batch does.
2. A rate is one of reading: records that filters or a time window pass by count, too. What a client has fetched ahead
   is bounded by its own queue.
3. Of hundreds of processes that begin at once each connects at a moment of its own, so that brokers are not met by all
   of them in one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kunicorn.handler.messages import Run, columns
from kunicorn.handler.rows import fitting
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.settings import PipelineSettings
from kunicorn.worker.limits.token_bucket import TokenBucket

_LOOK_SECONDS = 0.2
_FEW_PROCESSES = 32
"""Connect at once: no broker minds so many."""
_PROCESSES_A_SECOND = 100
_MOST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits of one task; None: none. Travel to the executors."""

    records_per_second: float | None = None
    bytes_per_second: float | None = None
    connect_seconds: float = 0.0
    """Over so long its process's first connection is spread."""

    def spread(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Wait for this process's moment to connect. Caller: whoever makes its first client."""
        if self.connect_seconds:
            wait(random.random() * self.connect_seconds)

    def paced(
        self, fetched: Iterator[Run], now: Callable[[], int] = now_ns, wait: Callable[[float], None] = time.sleep
    ) -> Iterator[Run]:
        """The records, no faster than the rates allow, and a second's worth at a time; while it waits, empty runs, so
        that the caller can see to what it has in hand. Blocks for a fifth of a second at most, but for `fetched`.
        """
        if self.records_per_second is None and self.bytes_per_second is None:
            return fetched
        return self._paced(fetched, now, wait)

    def _paced(self, fetched: Iterator[Run], now: Callable[[], int], wait: Callable[[float], None]) -> Iterator[Run]:
        prices: list[tuple[TokenBucket, Callable[[Run], int]]] = []
        # Without a store: what a task did not use while its handler was slow it does not catch up with.
        if self.records_per_second is not None:
            prices.append((TokenBucket(self.records_per_second, 1.0, now()), len))
        if self.bytes_per_second is not None:
            prices.append((TokenBucket(self.bytes_per_second, 1.0, now()), _bytes))
        for run in fetched:
            if not len(run):
                yield run
            at = 0
            while at < len(run):
                piece = self._second_of(run[at:])
                for bucket, price in prices:
                    bucket.take(price(piece), now())
                at += len(piece)
                yield piece
                # Also behind the last one: the range's end would otherwise cost nothing, and of short ranges all.
                while due := max(bucket.wait_ns(now()) for bucket, _ in prices):
                    wait(min(_LOOK_SECONDS, due / NANOSECONDS))
                    yield []

    def _second_of(self, run: Run) -> Run:
        most = len(run)
        if self.records_per_second is not None:
            most = min(most, math.ceil(self.records_per_second))
        if self.bytes_per_second is not None:
            most = min(most, fitting(run, math.ceil(self.bytes_per_second)))
        return run[:most]


NO_LIMITS = TaskLimits()


def _bytes(run: Run) -> int:
    """Of keys and values."""
    if (rows := columns(run)) is not None:
        return rows.value_bytes() + sum(map(len, filter(None, rows.keys())))
    return sum(len(message.value() or b"") + len(message.key() or b"") for message in run)


def limits_of(settings: PipelineSettings, partitions: int, cores: int) -> TaskLimits:
    """Limits of a task that begins when so many partitions are left and Spark has so many cores. Pure."""
    pieces = settings.min_partitions or 0
    # Ranges are cut into whole pieces: of each there is one more than its share where that is a fraction.
    tasks = partitions + pieces - 1 if pieces > partitions else partitions
    at_once = max(1, min(cores, tasks))

    def share(rate: int | None) -> float | None:
        return None if rate is None else rate / at_once

    spread = 0.0 if cores <= _FEW_PROCESSES else min(_MOST_SECONDS, cores / _PROCESSES_A_SECOND)
    return TaskLimits(share(settings.max_records_per_second), share(settings.max_bytes_per_second), spread)
