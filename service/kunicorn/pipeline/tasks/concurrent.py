"""Ranges of a task with several records in hand, by the scheduler and the executors that a worker has: the same lanes
(partition, key, none), the same threads and event loop, the same slots over all partitions of the task.

1. Rows come in offset order, whatever has ended first: of a range a row is made once nothing before it is unfinished.
2. A record that waits for another try holds up its lane, and nothing else.
3. A record that halts ends its range: nothing of it is begun any more, and what is in hand is waited for. Records
   beyond that one that are done by then are handled again when the partition goes on.
4. A range has in hand what lies between its lowest unfinished record and the highest that was begun. If the process
   dies, these are suspects; they are handled with nothing beside them once that has happened `max_crashes` times.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

from confluent_kafka import Message

from kunicorn.handler.call import Calls, OfSome, ReturnCheck, arguments_of, calls_for
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.dead_letters import Cause, given_up_by
from kunicorn.handler.load import Handler, HandlerTimeout
from kunicorn.handler.messages import Run
from kunicorn.handler.outcome import Wait, as_failure
from kunicorn.handler.record import offset_of
from kunicorn.handler.registry import concurrency_of
from kunicorn.handler.retry import End, Policies, TryAgain, timed_out
from kunicorn.handler.rows import apart
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.pipeline.tasks.in_hand_file import IDLE, IN_HAND, NEXT, ONE, STATE, STOP, Suspects
from kunicorn.pipeline.tasks.in_hand_notes import InHandNotes
from kunicorn.pipeline.tasks.outcomes import Row, Tiling
from kunicorn.pipeline.tasks.tries import Failed, kept_back, verdict_on
from kunicorn.pipeline.tasks.watchdog import watched
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.worker.executors.executor import Executor
from kunicorn.worker.executors.tasks import AsyncioExecutor
from kunicorn.worker.executors.threads import ThreadExecutor
from kunicorn.worker.fetching.fetched import headers_bytes
from kunicorn.worker.progress import InFlight, Interrupts, OffsetTracker, Slots, record_bytes
from kunicorn.worker.scheduler import Scheduler

_AHEAD_BYTES = 16 * 1024 * 1024
"""Of records that are kept, and not in hand, of all ranges of the task together; beyond it, of each range its share."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SeveralCalls:
    """A handler with several records in hand, set up in this process."""

    executor: Executor
    slots: Slots

    def run(self, returned: Any) -> Any:
        """See `kunicorn.handler.call.Hooked`."""
        return self.executor.run(returned)

    def close(self) -> None:
        """See `kunicorn.handler.call.Hooked`."""
        self.executor.close()


def calls_in_task(handler: Handler, config: HandlerConfig) -> Calls | SeveralCalls:
    """How a task calls this handler: with as many records in hand as a worker has. Raises like `calls_of`."""
    slots = slots_of(handler, config)
    return calls_for(handler, config) if slots.most == 1 else SeveralCalls(executor_for(handler, config), slots)


def executor_for(handler: Handler, config: HandlerConfig) -> Executor:
    """Executor of a handler that has several records in hand. Raises like `calls_of`."""
    handle = arguments_of(handler, config.mode, config.decoding, config.tracing)
    check = ReturnCheck(config.entrypoint)

    def returned(flight: InFlight, value: Any) -> None:
        check(value)

    call = handle.adapted(handler.call)
    if handler.is_async:
        return AsyncioExecutor(call, handle, returned)
    return ThreadExecutor(call, handle, slots_of(handler, config).most, returned)


def slots_of(handler: Handler, config: HandlerConfig) -> Slots:
    """Slots of a handler in a task, as in a worker."""
    most = concurrency_of(handler.is_async, config.mode, config.ordering, config.concurrency)
    return Slots(config.ordering, most)


class Failure(NamedTuple):
    """How a record ended that is not done."""

    message: Message
    end: End
    cause: Cause
    size: int
    """Of the record in memory."""


@dataclass(slots=True, eq=False)
class Part:
    """One range of the task: what is known of it, and where its rows go."""

    whole: OffsetRange
    add: Callable[[Row], None]
    cells: memoryview
    """As `kunicorn.pipeline.tasks.in_hand_file` has them."""
    suspects: Suspects
    notes: InHandNotes | None = None
    """Of what is in hand, beyond this machine."""
    tiling: Tiling = field(init=False)
    tracker: OffsetTracker = field(init=False)
    failures: dict[int, Failure] = field(default_factory=dict)
    """By offset, until their rows are made."""
    failed_bytes: int = 0
    """Of these."""
    halted_at: int | None = None
    begin: int = 0
    """Where the records that have arrived end."""
    moved_at: float | None = None
    """When (`time.monotonic`) records were last found to have ended; None: it has had none."""

    def __post_init__(self) -> None:
        self.tiling = Tiling(self.whole)
        self.begin = self.whole.start

    @property
    def kept_bytes(self) -> int:
        """Of the records that wait: for a free slot, for another try, or for a row that one before them holds up."""
        kept = self.tracker.bytes + self.tracker.parked_bytes + self.failed_bytes
        return kept if self.halted_at is None else 0

    def fail(self, offset: int, failure: Failure) -> None:
        """Note that the record has ended so."""
        self.failures[offset] = failure
        self.failed_bytes += failure.size

    def note_in_hand(self) -> None:
        """Note in the file what is in hand: a process that dies with it leaves that behind."""
        running = self.tracker.running
        first = min((flight.offset for flight in running), default=self.tracker.consumed)
        last = max((flight.end for flight in running), default=0)
        if self.notes is not None and running:
            self.notes.before(first, max(last, first + 1))
        self.cells[NEXT] = first
        self.cells[STOP] = ONE if len(running) == 1 else last
        self.cells[STATE] = IN_HAND if running else IDLE


class Table:
    """Records of the task's ranges, as executors see them (`worker.executors.executor.Supply`, `Told`)."""

    def __init__(self, slots: Slots) -> None:
        self.interrupts = Interrupts()
        self.full = False
        self.lock = threading.Lock()
        self.scheduler = Scheduler()
        self.failures: deque[tuple[InFlight, BaseException]] = deque()
        self.stirred = threading.Event()
        self.parts: dict[TopicPartition, Part] = {}
        self._slots = slots

    def start_next(self, slots: Slots) -> InFlight | None:
        with self.lock:
            return self._started()

    def _started(self) -> InFlight | None:
        flight = self.scheduler.start(self._slots, now_ns())
        if flight is not None:
            self.parts[flight.tp].note_in_hand()
        return flight

    def opens_in(self, slots: Slots) -> None:
        """There is no gate."""

    def startable(self, slots: Slots) -> bool:
        return self.scheduler.startable(slots)

    def finish(self, flight: InFlight) -> InFlight | None:
        with self.lock:
            self.end(flight)
            following = self._started()
        self.stirred.set()
        return following

    def end(self, flight: InFlight) -> None:
        """Note that the record has ended. Caller: has the lock."""
        self.scheduler.finish(flight)
        self.parts[flight.tp].note_in_hand()

    def fail(self, flight: InFlight, error: BaseException, calls: int = 1) -> None:
        self.failures.append((flight, error))
        self.stirred.set()

    def finished(self) -> None:
        """Does nothing: `finish` has told."""

    def start_beside(self, slots: Slots, records: int, nbytes: int) -> InFlight | None:
        raise NotImplementedError("calls have one record each")

    def failed_together(self, flights: Sequence[InFlight], error: BaseException, took_ns: int) -> None:
        raise NotImplementedError("calls have one record each")

    def returned(
        self, flight: InFlight, finished: int, nanoseconds: int, calls: int, ahead: Collection[int] = ()
    ) -> None:
        raise NotImplementedError("calls have one record each")

    def failed(self, flight: InFlight, finished: int, took_ns: int, some: OfSome) -> InFlight | None:
        raise NotImplementedError("calls have one record each")


class ConcurrentRanges:
    """Handles a task's ranges side by side. Caller: the task's main thread."""

    def __init__(self, calls: SeveralCalls, policies: Policies, timeout_ms: int | None = None) -> None:
        self.aside: set[TopicPartition] = set()
        """Partitions of which enough is kept for now: whoever fetches leaves them out."""
        self._executor, self._slots, self._policies = calls.executor, calls.slots, policies
        self._timeout_ms = timeout_ms
        self._table = Table(calls.slots)
        self._waits: list[tuple[int, int, InFlight]] = []
        """Heap: when, and the record that is to be tried again then."""
        self._arrived_bytes = 0
        """Of all records, since what is queued was copied."""
        self._overdue: dict[InFlight, int] = {}
        """When a call was interrupted."""

    def handle(self, parts: Sequence[Part], fetched: Iterator[Run]) -> None:
        """Handle the records of these ranges, all fetched together; returns when each has its last row. `fetched` gives
        an empty run now and then while none come: retries and time-outs are seen to between two. Raises what fetching,
        and `add` of a part, raise, with calls still underway and nothing more begun; what the handler raises is in the
        rows.
        """
        for number, part in enumerate(parts):
            part.tracker = OffsetTracker(
                part.whole.tp, number, self._slots, part.whole.start, following=part.whole.start
            )
            part.tracker.alone_until = _alone_until(part.suspects)
            self._table.parts[part.whole.tp] = part
        self._executor.begin(self._table, self._slots, self._table)
        try:
            with self._watched():
                self._to_the_end(parts, fetched)
        except BaseException:
            self._begin_nothing_more(parts)
            raise

    def _begin_nothing_more(self, parts: Sequence[Part]) -> None:
        with self._table.lock:
            for part in parts:
                self._table.scheduler.close(part.tracker)
                # The task fails, and its process lives: a call that ends from now on must not note what others have.
                part.notes = None

    def _to_the_end(self, parts: Sequence[Part], fetched: Iterator[Run]) -> None:
        more = True
        while more or self._busy():
            if more and not self._all_halt(parts) and self._takes_more(parts):
                more = self._fetch(fetched)
            elif self._all_halt(parts):
                more = False
            self._turn()
            if not more or not self._takes_more(parts):
                self._sleep()
        for part in parts:
            self._make_rows(part)
            for row in part.tiling.rest() if part.halted_at is None else self._halt_before(part):
                part.add(row)

    def _takes_more(self, parts: Sequence[Part]) -> bool:
        """Whether to fetch: while there is room, or for ranges that have less than their share. Those with more are set
        aside then: a record that waits for another try, and all that is behind it, must not hold up the others.
        """
        share = _AHEAD_BYTES // len(parts)
        if sum(part.kept_bytes for part in parts) < _AHEAD_BYTES:
            if self.aside:
                self.aside -= {part.whole.tp for part in parts if part.kept_bytes <= share // 2}
            return True
        short = any(
            part.halted_at is None and part.begin < part.whole.stop and part.kept_bytes < share for part in parts
        )
        if short:
            self.aside |= {part.whole.tp for part in parts if part.kept_bytes >= share}
        return short

    def _all_halt(self, parts: Sequence[Part]) -> bool:
        return all(part.halted_at is not None for part in parts)

    def _busy(self) -> bool:
        with self._table.lock:
            trackers = [part.tracker for part in self._table.parts.values()]
            return any(each.running or (each.order and not each.closed) for each in trackers) or bool(
                self._table.failures
            )

    def _fetch(self, fetched: Iterator[Run]) -> bool:
        """Take in the next records; whether there may be more."""
        messages = next(fetched, None)
        if messages is None:
            return False
        by_partition: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            by_partition.setdefault(TopicPartition(message.topic() or "", message.partition() or 0), []).append(message)
        for tp, some in by_partition.items():
            part = self._table.parts[tp]
            # Behind a halt nothing is begun, and the scheduler counts no bytes: kept, it would fill the memory.
            if part.halted_at is None:
                self._arrive(part, some)
        self._executor.wake()
        return True

    def _arrive(self, part: Part, messages: list[Message]) -> None:
        table, tracker = self._table, part.tracker
        headers = headers_bytes(messages[0])
        with table.lock:
            for piece in part.suspects.pieces(messages, part.begin, None):
                for message in piece.messages:
                    offset, key = offset_of(message), message.key()
                    size = record_bytes(key, len(message.value() or b""), headers)
                    self._arrived_bytes += size
                    if piece.deaths:
                        end, cause = kept_back(offset, piece.deaths, self._policies)
                        part.fail(offset, Failure(message, end, cause, size))
                        tracker.done_before.add(offset)
                        if end is End.HALT:
                            self._halt(part, offset)
                    table.scheduler.arrive(tracker, offset, -1, key, message, size)
            part.begin = offset_of(messages[-1]) + 1

    def _turn(self) -> None:
        """What has failed, waited long enough, or ended."""
        while self._table.failures:
            self._judge(*self._table.failures.popleft())
        now, woken = now_ns(), False
        while self._waits and self._waits[0][0] <= now:
            _, _, flight = heappop(self._waits)
            with self._table.lock:
                if not flight.tracker.closed:
                    self._table.scheduler.queue_again(flight)
                    woken = True
        if woken:
            self._executor.wake()
        if self._timeout_ms is not None:
            self._interrupt_overdue(now, self._timeout_ms * 1_000_000)
        if self._waits and self._arrived_bytes > 2 * _AHEAD_BYTES:
            self._copy_out()
        for part in self._table.parts.values():
            self._make_rows(part)

    def _copy_out(self) -> None:
        """Copy what is queued, maybe behind a record that waits, out of the answers that it came with: each keeps the
        whole of its own.
        """
        self._arrived_bytes = 0
        for part in self._table.parts.values():
            # One at a time: whoever has handled a record waits for this.
            with self._table.lock:
                self._table.scheduler.copy_out(part.tracker)

    def _sleep(self) -> None:
        table = self._table
        due = (self._waits[0][0] - now_ns()) / NANOSECONDS if self._waits else _LOOK_SECONDS
        if self._timeout_ms is not None:
            due = min(due, self._timeout_ms / 1000 / 10)
        table.stirred.wait(max(0.0, min(due, _LOOK_SECONDS)))
        table.stirred.clear()

    def _judge(self, flight: InFlight, error: BaseException) -> None:
        error = timed_out(error) if isinstance(error, HandlerTimeout) else error
        self._overdue.pop(flight, None)
        failed = Failed(as_failure(error), flight.since_ns, now_ns())
        verdict = verdict_on(flight, failed, self._policies, f"{flight.tp}@{flight.offset}")
        if isinstance(verdict, TryAgain):
            waits_for = "wait" if isinstance(failed.error, Wait) else "retry"
            self._wait(flight, waits_for, failed.ended_ns + verdict.wait_ns)
            return
        part = self._table.parts[flight.tp]
        if verdict is not End.DONE:
            cause = given_up_by(failed.error, flight.failures, self._policies)
            (message,) = apart(flight.messages)
            part.fail(flight.offset, Failure(message, verdict, cause, flight.size))
        with self._table.lock:
            if verdict is End.HALT:
                self._halt(part, flight.offset)
            self._table.end(flight)
        self._executor.wake()

    def _wait(self, flight: InFlight, waits_for: str, until: int) -> None:
        with self._table.lock:
            # A row would keep the whole answer that it came with, however long it waits, and each answer may have one.
            flight.messages = apart(flight.messages)
            self._table.scheduler.wait(flight, waits_for, "")
            self._table.parts[flight.tp].note_in_hand()
        heappush(self._waits, (until, flight.number, flight))
        self._executor.wake()  # Its slot is free.

    def _halt(self, part: Part, offset: int) -> None:
        part.halted_at = offset if part.halted_at is None else min(part.halted_at, offset)
        # The first record that has not ended gets a row.
        self._table.scheduler.close(part.tracker, keeps_records=True)

    def _halt_before(self, part: Part) -> Iterator[Row]:
        """The row of a range that halts, if a record before the one that has it halt waited for another try then."""
        if part.halted_at not in part.failures:
            return
        _, end, cause, _ = part.failures[part.halted_at]
        first = part.tracker.order[0].messages[0]
        why = replace(cause, message=f"offset {part.halted_at} halts, and this one has not ended: {cause.message}")
        yield from part.tiling.failed(first, end, why, time.time_ns() // 1_000_000)

    def _interrupt_overdue(self, now: int, timeout_ns: int) -> None:
        with self._table.lock:
            running = [flight for part in self._table.parts.values() for flight in part.tracker.running]
        for flight in running:
            if now - flight.since_ns > timeout_ns and flight not in self._overdue:
                self._overdue[flight] = now
                self._executor.interrupt(flight, HandlerTimeout(), flight.offset)
        self._overdue = {flight: since for flight, since in self._overdue.items() if flight in running}

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        """Context in which a call that no interruption ends ends the process."""

        def stuck(without_effect: float) -> str | None:
            """Caller: another thread."""
            most_ns = without_effect * NANOSECONDS
            overdue = [flight for flight, since in self._overdue.copy().items() if now_ns() - since > most_ns]
            # What has ended may not be looked at yet, while the main thread waits for brokers.
            ended = {flight for flight, _ in self._table.failures.copy()}
            with self._table.lock:
                left = [each for each in overdue if each in each.tracker.running and each not in ended]
            return next((f"{each.tp}@{each.offset}" for each in left), None)

        return watched(stuck, self._timeout_ms)

    def _make_rows(self, part: Part) -> None:
        """Rows of the records that have nothing unfinished before them."""
        with self._table.lock:
            passed, part.tracker.passed = part.tracker.passed, []
        if passed:
            part.moved_at = time.monotonic()
        now_ms = time.time_ns() // 1_000_000
        for offset in passed:
            if part.halted_at is not None and offset > part.halted_at:
                return
            failure = part.failures.pop(offset, None)
            if failure is None:
                part.tiling.handled(1)
                continue
            part.failed_bytes -= failure.size
            for row in part.tiling.failed(failure.message, failure.end, failure.cause, now_ms):
                part.add(row)


def _alone_until(suspects: Suspects) -> int:
    """Before which offset records are handled with nothing beside them: those that processes died with too often."""
    stops = sorted((hand.stop for hand in suspects.hands), reverse=True)
    return stops[suspects.max_crashes - 1] if len(stops) >= suspects.max_crashes else -1
