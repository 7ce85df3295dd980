"""Handling the records of one range by the live service's rules: the same calls, tries, waits and ends.

Nothing else waits behind a record here, as the task has one range: a record that is tried again is waited for, and the
order is kept. An exception of the handler's never leaves this module, so that Spark does not try the whole range again.
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from confluent_kafka import Message

from kunicorn.handlers import HandlerTimeout
from kunicorn.handling.calls import Calls, following_offsets
from kunicorn.handling.deadletters import Cause, cause_of
from kunicorn.handling.partial import OfOne, fitting
from kunicorn.handling.retry import End, Policies, TryAgain
from kunicorn.pipeline.outcome_table import Row, Tiling
from kunicorn.pipeline.ranges import OffsetRange

log = logging.getLogger("kunicorn.pipeline")

_NANOSECONDS = 1_000_000_000
_LOOKS = 10


class RangeHandler:
    """One handler, one range after the other. Caller: a task's main thread."""

    def __init__(
        self,
        calls: Calls,
        policies: Policies,
        batch_max_records: int | None,
        timeout_ms: int | None = None,
        wait: Callable[[float], None] = time.sleep,
        batch_max_bytes: int | None = None,
    ) -> None:
        """`batch_max_records`: None where the handler takes one record at a time. `wait` sleeps, in seconds."""
        self._calls = calls
        self._policies = policies
        self._batch_max_records = batch_max_records
        self._batch_max_bytes = batch_max_bytes
        self._timeout_ms = timeout_ms
        self._wait = wait
        self._cells = memoryview(bytearray(8)).cast("q")
        """The next offset to handle, as in a worker's ledger."""
        self._interruptible = False
        """The handler has a record right now: a signal must not hit the code around it."""

    def handle(self, whole: OffsetRange, fetched: Iterable[list[Message]]) -> Iterator[Row]:
        """Handle the range's records; rows of the outcome table, which tile the range or end with a `halt`."""
        tiling = Tiling(whole)
        for chunk in self._chunks(fetched):
            messages: Sequence[Message] = chunk
            while messages:
                taken = self._take(messages, following_offsets(messages))
                tiling.handled(taken.done)
                failing = messages[taken.done : taken.end]
                rest = [message for message in messages[taken.end :] if message.offset() not in taken.ahead]
                passed, messages = len(messages) - taken.end - len(rest), rest
                if taken.failure is not None and taken.failure.end is End.DONE:
                    tiling.handled(len(failing))
                elif taken.failure is not None:
                    now_ms = time.time_ns() // 1_000_000
                    for message in failing:
                        yield from tiling.failed(message, taken.failure.end, taken.failure.cause, now_ms)
                        if taken.failure.end is End.HALT:
                            return
                tiling.handled(passed)
        yield from tiling.rest()

    def _chunks(self, fetched: Iterable[list[Message]]) -> Iterator[list[Message]]:
        if (most := self._batch_max_records) is None:
            yield from fetched
            return
        for messages in fetched:
            at = 0
            while at < len(messages):
                size = fitting(messages[at : at + most], self._batch_max_bytes)
                yield messages[at : at + size]
                at += size

    def _take(self, messages: Sequence[Message], following: Sequence[int]) -> _Taken:
        """Let the handler have them, as often as the rules allow."""
        done, failures, since = 0, 0, 0
        end, ahead = len(messages), frozenset[int]()
        while True:
            finished, error = self._call(messages[done:end], following[done:end])
            done += finished
            if error is None:
                return _Taken(done, done, ahead)
            now = time.monotonic_ns()
            failures = 1 if finished else failures + 1
            since = now if failures == 1 else since
            if isinstance(error, OfOne):
                # Tried again alone; what is behind it comes in a batch again.
                end, ahead, error = done + 1, ahead.union(error.ahead), error.error
            verdict = self._policies.verdict(error, failures, now - since, random.random())
            if not isinstance(verdict, TryAgain):
                last = end if self._batch_max_records is not None else done + 1
                return _Taken(done, last, ahead, _Failure(verdict, cause_of(error, failures)))
            log.warning(
                f"the handler failed on offset {following[done] - 1} ({verdict.counted(failures)}), again in "
                f"{verdict.wait_ns / _NANOSECONDS:.3f} s: {type(error).__name__}"
            )
            self._wait(verdict.wait_ns / _NANOSECONDS)

    def _call(self, messages: Sequence[Message], following: Sequence[int]) -> tuple[int, BaseException | None]:
        """One go: how many were finished, and what the handler raised on the next one."""
        self._cells[0] = following[0] - 1
        error: BaseException | None = None
        with self._timer():
            try:
                try:
                    self._interruptible = True
                    self._calls(messages, following, self._cells, 0, [])
                finally:
                    self._interruptible = False
            except HandlerTimeout as timeout:
                # A failure like others that may pass: worth another try.
                error = TimeoutError("in hand for longer than handler_timeout_ms").with_traceback(timeout.__traceback__)
            except BaseException as raised:
                error = raised
        return bisect_right(following, self._cells[0]), error

    @contextlib.contextmanager
    def _timer(self) -> Iterator[None]:
        """Look at the record in hand ten times within its time-out, and interrupt the handler behind it."""
        if self._timeout_ms is None:
            yield
            return
        seen, looks = self._cells[0], 0

        def look(number: int, frame: FrameType | None) -> None:
            nonlocal seen, looks
            at = self._cells[0]
            seen, looks = at, looks + 1 if at == seen else 0
            if looks > _LOOKS and self._interruptible:
                looks, self._interruptible = 0, False
                self._calls.interrupt(HandlerTimeout())

        before = signal.signal(signal.SIGALRM, look)
        interval = self._timeout_ms / 1000 / _LOOKS
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a record ends that the handler did not take."""

    end: End
    cause: Cause


@dataclass(frozen=True, slots=True)
class _Taken:
    """How far the handler came: `done` records, and those up to `end` ended as `failure` says."""

    done: int
    end: int
    ahead: frozenset[int]
    """Offsets behind those that are done."""
    failure: _Failure | None = None
