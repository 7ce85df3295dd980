"""Tasks of a job, in Spark's executors: functions for `mapInArrow` that take ranges and give back one summary each, and
the handling of a range's records by the live service's rules.

The records never pass through Spark: the task fetches them itself and handles them in the same process. If all of a
range's records are handled, its summary says so, and there is no file. Otherwise its outcome rows go into a file named
after the range. A range that is handled again, by a second attempt of the task or after a crash, has a file in any
case, which replaces what the try before may have written.

Calls, tries, waits and outcomes are those of a worker, and so are the records in hand: of a handler that has one at a
time (`RangeHandler`), a record that is tried again is waited for, and the order is kept; for several see `concurrent`.
A handler's exception never leaves this module, so that Spark does not try the whole range again. Records in hand are
noted as in a worker's ledger, and records that killed earlier tries are kept from the handler.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.clients.range_reader import Window
from kunicorn.handler.call import Calls, Decided, Interruption, OfSome, met
from kunicorn.handler.dead_letters import Cause, given_up_by
from kunicorn.handler.load import HandlerTimeout
from kunicorn.handler.messages import Run, columns
from kunicorn.handler.outcome import as_failure
from kunicorn.handler.record import Record, offset_of
from kunicorn.handler.registry import HandlerRegistry
from kunicorn.handler.retry import End, Policies, TryAgain
from kunicorn.handler.rows import fitting, following_offsets, without
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.concurrent import ConcurrentRanges, Part, SeveralCalls
from kunicorn.pipeline.tasks.executor_process import InTask, SettingsFile, named_by_place, set_up
from kunicorn.pipeline.tasks.in_hand_file import IDLE, IN_HAND, NEXT, ONE, STATE, STOP, InHand, Piece, Suspects, take_up
from kunicorn.pipeline.tasks.limits import NO_LIMITS, TaskLimits
from kunicorn.pipeline.tasks.outcomes import Row, Tiling
from kunicorn.pipeline.tasks.range_outcomes import RangeOutcomes, Summary, of_micro_batch, remove_other_cuts
from kunicorn.pipeline.tasks.tries import Failed, Tries, kept_back, verdict_on
from kunicorn.pipeline.tasks.watchdog import watched
from kunicorn.positions import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


_LOOKS = 10
_NO_SUSPECTS = Suspects()


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings by which a range's records are handled."""

    policies: Policies
    batch_max_records: int | None = None
    """None: the handler takes one record at a time."""
    batch_max_bytes: int | None = None
    timeout_ms: int | None = None


class RangeHandler:
    """Handler of one range after the other. Caller: a task's main thread."""

    def __init__(
        self,
        calls: Calls,
        rules: Rules,
        wait: Callable[[float], None] = time.sleep,
        cells: memoryview | None = None,
        suspects: Suspects = _NO_SUSPECTS,
    ) -> None:
        """`wait` sleeps, in seconds.

        `cells` as `kunicorn.pipeline.tasks.in_hand_file` has them; None where nobody would look at them.
        """
        self._calls = calls
        self._rules = rules
        self._wait = wait
        self._cells = cells or memoryview(bytearray(8 * (STATE + 1))).cast("q")
        self._suspects = suspects
        self._interruptible = False
        """Whether the handler has a record right now: a signal must not hit the code around it."""
        self._interruption: Interruption | None = None
        """Exception raised in the running call from outside."""
        self._number_of_calls = 0

    def handle(self, whole: OffsetRange, fetched: Iterable[Run]) -> Iterator[Row]:
        """Handle the range's records; rows of the outcome table, which tile the range or end with a `halt`."""
        tiling, begin = Tiling(whole), whole.start
        with self._watched(whole.tp):
            for messages in filter(len, fetched):
                if (yield from self._through(messages, begin, tiling)):
                    return
                begin = following_offsets(messages[-1:])[0]
                del messages  # As in reading: not two batches at a time.
            yield from tiling.rest()

    def each(self, messages: Sequence[Message]) -> Iterator[Row]:
        """Handle records that are no range: of any partitions, in any order, with repetitions; a row for each.

        A record that halts holds up no other. Only for a handler that takes one record at a time.
        """
        while messages:
            # Progress is counted in places of the list: offsets that do not ascend would count wrong ones as done.
            taken = self._take(messages, range(1, len(messages) + 1))
            for message in messages[: taken.done]:
                yield from _row_of_one(message, None)
            for message in messages[taken.done : taken.end]:
                yield from _row_of_one(message, taken.failure)
            messages = messages[taken.end :]

    def _through(self, messages: Run, begin: int, tiling: Tiling) -> Generator[Row, None, bool]:
        """Handle some of the range's records; yields the rows of those that failed, and returns whether the partition
        halts.
        """
        for piece in self._suspects.pieces(messages, begin, self._rules.batch_max_records):
            for failing, failure in self._failures(piece, tiling):
                now_ms = time.time_ns() // 1_000_000
                for message in failing:
                    yield from tiling.failed(message, failure.end, failure.cause, now_ms)
                    if failure.end is End.HALT:
                        return True
        return False

    def _failures(self, piece: Piece, tiling: Tiling) -> Iterator[tuple[Sequence[Message], _Failure]]:
        """Handle the piece; yields the records that failed, each in its turn."""
        messages, decided = piece.messages, tuple[Decided, ...]()
        if piece.deaths:
            yield messages, _Failure(*kept_back(offset_of(messages[0]), piece.deaths, self._rules.policies))
            return
        while messages:
            called = _part(messages, 0, fitting(messages, self._rules.batch_max_bytes))
            taken = self._take(called, following_offsets(called), decided)
            decided = taken.decided
            tiling.handled(taken.done)
            failing, behind = called[taken.done : taken.end], messages[taken.end :]
            messages = without(behind, taken.ahead) if taken.ahead else behind
            if taken.failure is not None and taken.failure.end is not End.DONE:
                yield failing, taken.failure
            else:
                tiling.handled(len(failing))
            tiling.handled_ahead(taken.ahead)

    def _take(self, messages: Sequence[Message], following: Sequence[int], decided: Sequence[Decided] = ()) -> _Taken:
        """Call the handler with the messages, as often as the retry rules allow; not with the first ones where it has
        `decided` on them.
        """
        done, end, ahead, left = 0, len(messages), frozenset[int](), tuple[Decided, ...]()
        tries, policies = Tries(), self._rules.policies
        error: BaseException | None
        while True:
            began = now_ns()
            if decided:
                first, *behind = decided
                finished, error, decided = 0, OfSome(first.error, count=first.records, decided=behind), ()
            else:
                finished, error = self._call(_part(messages, done, end), following[done:end])
            done += finished
            if error is None:
                return _Taken(done, done, ahead, decided=left)
            if isinstance(error, OfSome):
                # Tried again alone; what is behind it comes in a batch again, unless that is decided.
                taken = _together(messages[done:], error)
                left = _left(error, taken, end - done, left)
                end, ahead, error = done + taken, ahead.union(error.ahead), error.error
            if finished:
                tries = Tries()
            failed = Failed(as_failure(error), began, now_ns())
            verdict = verdict_on(tries, failed, policies, f"offset {messages[done].offset()}")
            if not isinstance(verdict, TryAgain):
                last = end if self._rules.batch_max_records is not None else done + 1
                failure = _Failure(verdict, given_up_by(failed.error, tries.failures, policies))
                return _Taken(done, last, ahead, failure, left)
            self._wait(verdict.wait_ns / NANOSECONDS)

    def _call(self, messages: Sequence[Message], following: Sequence[int]) -> tuple[int, BaseException | None]:
        """Call the handler once: the number of finished records, and the exception on the next one."""
        cells = self._cells
        self._number_of_calls += 1
        cells[NEXT] = following[0] - 1
        cells[STOP] = ONE if self._rules.batch_max_records is None else following[-1]
        error: BaseException | None = None
        self._interruption = None
        with self._timer():
            try:
                try:
                    cells[STATE] = IN_HAND
                    self._interruptible = True
                    self._calls(messages, following, cells, NEXT, [])
                finally:
                    self._interruptible = False
                    cells[STATE] = IDLE
            except BaseException as raised:
                error = met(raised, self._interruption, cells[NEXT])
        return bisect_right(following, cells[NEXT]), error

    def _watched(self, tp: TopicPartition) -> contextlib.AbstractContextManager[None]:
        """Context in which a call that no interruption ends ends the process."""
        timeout_ms, seen, since = self._rules.timeout_ms, (0, 0), 0.0

        def stuck(without_effect: float) -> str | None:
            nonlocal seen, since
            at = (self._number_of_calls, self._cells[NEXT])
            if at != seen or self._cells[STATE] != IN_HAND:
                seen, since = at, time.monotonic()
            most = (timeout_ms or 0) / 1000 + without_effect
            return None if time.monotonic() - since < most else f"{tp}@{at[1]}"

        return watched(stuck, timeout_ms)

    @contextlib.contextmanager
    def _timer(self) -> Iterator[None]:
        """Look at the record in hand ten times within its time-out, and interrupt the handler once that has passed."""
        if self._rules.timeout_ms is None:
            yield
            return
        seen, looks = self._cells[NEXT], 0

        def look(number: int, frame: FrameType | None) -> None:
            nonlocal seen, looks
            at = self._cells[NEXT]
            seen, looks = at, looks + 1 if at == seen else 0
            if looks > _LOOKS and self._interruptible:
                looks, self._interruptible = 0, False
                self._interruption = Interruption(HandlerTimeout(), at)
                self._calls.interrupt(self._interruption.error)

        before = signal.signal(signal.SIGALRM, look)
        interval = self._rules.timeout_ms / 1000 / _LOOKS
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # Drops one that no thread has taken yet, as where the handler blocks it: the default would end the process.
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, before)


def _part(messages: Sequence[Message], start: int, end: int) -> Sequence[Message]:
    """`messages[start:end]`, without a copy where that is all of them, as mostly: copying costs as much as looking at
    them.
    """
    return messages if end - start == len(messages) else messages[start:end]


def _together(messages: Sequence[Message], some: OfSome) -> int:
    """Number of the leading records that have failed together, up to the first that is done: a row of the outcome table
    stands for each record, in their order.
    """
    failed = messages[: some.count]
    return next((at for at, message in enumerate(failed) if message.offset() in some.ahead), len(failed))


def _left(some: OfSome, taken: int, called: int, before: tuple[Decided, ...]) -> tuple[Decided, ...]:
    """How those end that are behind the first `taken`, none of them done, of a call with so many records; empty where
    the handler has not decided that. `before`: how those behind the call do.
    """
    found = (Decided(some.error, some.count - taken), *some.decided) if some.decided else ()
    all_of_them = taken + sum(each.records for each in found) + len(some.ahead) == called
    return tuple(each for each in (*found, *(before if all_of_them else ())) if each.records)


def _row_of_one(message: Message, failure: _Failure | None) -> Iterator[Row]:
    record = Record.of(message)
    tiling = Tiling(OffsetRange(record.topic, record.partition, record.offset, record.offset + 1))
    if failure is None or failure.end is End.DONE:
        tiling.handled(1)
        yield from tiling.rest()
    else:
        yield from tiling.failed(message, failure.end, failure.cause, time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Outcome of a record that failed."""

    end: End
    cause: Cause


@dataclass(frozen=True, slots=True)
class _Taken:
    """Progress of the handler: `done` records, and those up to `end` ended as `failure` says."""

    done: int
    end: int
    ahead: frozenset[int]
    """Offsets behind those that are done."""
    failure: _Failure | None = None
    decided: tuple[Decided, ...] = ()
    """How those behind `end` end, without those at `ahead`; empty: nobody has decided."""


RANGES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())])
_SUMMARY_SCHEMA = pa.schema(
    [
        *RANGES,
        ("until", pa.int64()),
        ("records", pa.int64()),
        ("skipped", pa.int64()),
        ("dead_letters", pa.int64()),
        ("halted", pa.string()),
        ("file", pa.string()),
        ("seconds", pa.float64()),
        ("filtered", pa.int64()),
    ]
)
_SPARKS = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double"}


def in_sparks_words(schema: pa.Schema) -> str:
    """Plain columns as Spark is told them."""
    return ", ".join(f"{column.name} {_SPARKS[column.type]}" for column in schema)


SUMMARY = in_sparks_words(_SUMMARY_SCHEMA)
"""The columns of a `Summary`, for Spark."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Sequence[OffsetRange]], Iterable[Summary]]
"""Takes ranges, gives a summary each as soon as it has ended."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a driver tells the tasks of one micro-batch, by a property that Spark sends along with them: a stream's
    closure is made once, when it starts, and Spark's cores and the topics' partitions are others by and by.
    """

    limits: TaskLimits = NO_LIMITS
    first: bool = False
    """Whether none was through since the driver began: a driver before it may have tried this one."""
    number: int = 0

    def tell(self, spark: SparkContext) -> None:
        """Caller: the driver's thread that has the tasks run next."""
        spark.setLocalProperty(_MICRO_BATCH, json.dumps(asdict(self)))

    @classmethod
    def told(cls) -> MicroBatch:
        """That of this task. Caller: an executor's Python process."""
        from pyspark import TaskContext

        context = TaskContext.get()
        told = json.loads((context and context.getLocalProperty(_MICRO_BATCH)) or "{}")
        return cls(TaskLimits(**told.get("limits", {})), told.get("first", False), told.get("number", 0))


_MICRO_BATCH = "kunicorn.micro_batch"


@dataclass(frozen=True, slots=True)
class FromSource:
    """Task over the rows of the source `kunicorn` with `rows` = `ranges`, a range each. Called by Spark."""

    task: HandleRanges

    def __call__(self, batches: Batches) -> Batches:
        """Function for `mapInArrow`."""
        told = MicroBatch.told()
        # Of a topic that is created anew a range may be one of a former micro-batch, whose file this one replaces.
        driver = of_micro_batch(self.task.driver, told.number)
        task = replace(self.task, limits=told.limits, may_have_died=told.first, driver=driver)
        for batch in batches:
            for row in batch.to_pylist():
                whole = OffsetRange(row["topic"], row["partition"], row["start"], row["stop"])
                yield from map(summary_batch, task([whole]))


Done = Mapping[TopicPartition, Collection[int]]
"""Offsets that were handled before, of partitions that have any."""
NOTHING_DONE: Done = MappingProxyType({})


def ranges_text(ranges: Iterable[OffsetRange], done: Done = NOTHING_DONE) -> str:
    """Ranges as a row has them, each with what is done of it."""
    return json.dumps([[*each, bitmap.written(each.start, done.get(each.tp, ()))] for each in ranges])


def _told(text: str) -> tuple[list[OffsetRange], dict[TopicPartition, frozenset[int]]]:
    """Ranges in a text of `ranges_text`, and what is done of them."""
    rows = [(OffsetRange(*place), marks) for *place, marks in json.loads(text)]
    return [each for each, _ in rows], {each.tp: bitmap.read(each.start, marks) for each, marks in rows if marks}


@dataclass(frozen=True, slots=True)
class FromRows:
    """Task over rows that have ranges as `ranges_text` writes them. Called by Spark.

    The source would start two more Python processes each time, only to be told what the driver knows.
    """

    task: Task
    told: Accumulator[Any]

    def __call__(self, batches: Batches) -> Batches:
        """Function for `mapInArrow`: tells the driver by the accumulator, and gives no row."""
        for batch in batches:
            for text in batch.column(0).to_pylist():
                ranges, done = _told(text)
                task = replace(self.task, done=done) if isinstance(self.task, HandleRanges) else self.task
                for summary in task(ranges):
                    self.told.add([summary])
        return iter(())


def driver_id() -> str:
    """Id for what this driver begins now; it sorts behind those of a driver that this one has replaced.

    By the clock: a stream has nothing else that orders its drivers. Where the clock is behind the former driver's by
    more than passed between the two, a try goes by what the former one left: it is true, but was not counted.
    """
    return f"{time.time_ns():020}-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class HandleRanges:
    """Task that handles the records of ranges. Runs in an executor's Python process."""

    file: SettingsFile
    outcomes: Directory
    window: Window | None = None
    """Which of their records; None: all."""
    done: Done = field(default_factory=dict)
    """Those of its own ranges, as its row tells: with all of a job's in the closure, each task would be sent them."""
    again: bool = False
    """Whether the ranges may have been begun before, by a run that was cut off."""
    may_have_died: bool = False
    """Whether processes of a driver before may have died with records of the ranges in hand; `again` says so, too."""
    limits: TaskLimits = NO_LIMITS
    driver: str = field(default_factory=driver_id)
    """For whom the ranges are handled."""

    def __call__(self, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        """One summary a range. What the handler raises is in there; what is raised here makes Spark try again."""
        with ExitStack() as held:
            held_back: list[_Try] = []
            with set_up(self.file) as handlings:
                for several in _turns(handlings, ranges):
                    with ExitStack() as now:
                        tries = self._handled(handlings, several, held if handlings.holds_back else now)
                        summaries = [] if handlings.holds_back else _ended(tries)
                    held_back += tries if handlings.holds_back else ()
                    yield from summaries
            # What was held back is written now. Before that no file may be there: the next try would go by it.
            summaries = _ended(held_back)
        yield from summaries

    def _handled(
        self, handlings: HandlerRegistry[InTask], ranges: Sequence[OffsetRange], stack: ExitStack
    ) -> list[_Try]:
        """Handle ranges of one handler, up to its `flush`; several only where it has several records in hand. `stack`
        closes the tries."""
        handling = handlings.of(ranges[0].topic)
        tries = [self._begun(whole, stack) for whole in ranges]
        with _named(tries):
            if isinstance(handling.calls, SeveralCalls):
                self._side_by_side(handling.calls, handling.policies, tries)
            else:
                rules = Rules(
                    handling.policies,
                    handling.batch_max_records,
                    handling.batching.batch_max_bytes,
                    self._timeout_ms(ranges[0]),
                )
                self._one_by_one(handling.calls, rules, *tries)
            handling.flush()
        return tries

    def _begun(self, whole: OffsetRange, stack: ExitStack) -> _Try:
        with named_by_place((whole, {NEXT: whole.start})):
            hand = stack.enter_context(self._take_up(whole))
            return _Try(whole, hand, stack.enter_context(self._outcomes(whole)))

    def _one_by_one(self, calls: Calls, rules: Rules, one: _Try) -> None:
        handler = RangeHandler(calls, rules, cells=one.hand.cells, suspects=self._suspects(one.hand))
        for row in handler.handle(one.whole, one.hand.noted(self._records([one.whole]))):
            one.outcomes.add(row)

    def _side_by_side(self, calls: SeveralCalls, policies: Policies, tries: Sequence[_Try]) -> None:
        ranges = [each.whole for each in tries]
        parts = [
            Part(each.whole, each.outcomes.add, each.hand.cells, self._suspects(each.hand), each.hand.notes)
            for each in tries
        ]
        handler = ConcurrentRanges(calls, policies, self._timeout_ms(ranges[0]))
        handler.handle(parts, self._records(ranges, handler.aside))
        over = time.monotonic()
        for part, each in zip(parts, tries, strict=True):
            each.outcomes.waited = 0.0 if part.moved_at is None else over - part.moved_at

    def _take_up(self, whole: OffsetRange) -> InHand:
        return take_up(whole, self.outcomes, attempt=_attempt(), again=self.again, may_have_died=self.may_have_died)

    def _records(self, ranges: Sequence[OffsetRange], aside: Collection[TopicPartition] = ()) -> Iterator[Run]:
        """Records of ranges of one handler; empty runs while there are none. `aside` as `RangeReader.read` has it."""
        fetched = self.limits.paced(self.file.records(self.limits).read(*ranges, aside=aside))
        if self.window is not None:
            fetched = self.window.chosen(fetched)
        done = {whole.tp: found for whole in ranges if (found := self.done.get(whole.tp))}
        return fetched if not done else _without(fetched, done)

    def _suspects(self, hand: InHand) -> Suspects:
        return Suspects(hand.died_with, self.file.settings().workers.max_crashes)

    def _timeout_ms(self, whole: OffsetRange) -> int | None:
        return self.file.settings().handler_of(whole.topic).handler_timeout_ms

    def _outcomes(self, whole: OffsetRange) -> RangeOutcomes:
        # A try for the driver before, on an executor that it has lost, may end after this one: it would find no file.
        again = self.again or self.may_have_died or _attempt() > 0
        if self.may_have_died:
            remove_other_cuts(self.outcomes, whole, self.driver)
        return RangeOutcomes(self.file, self.outcomes, whole, self.driver, again=again)


@dataclass(frozen=True, slots=True)
class _Try:
    """A range that a task has taken up."""

    whole: OffsetRange
    hand: InHand
    outcomes: RangeOutcomes


def _turns(handlings: HandlerRegistry[InTask], ranges: Sequence[OffsetRange]) -> Iterator[Sequence[OffsetRange]]:
    """The ranges by turns: one, or those of a handler that has several records in hand, which come last."""
    together: dict[int, list[OffsetRange]] = {}
    for whole in ranges:
        calls = handlings.of(whole.topic).calls
        if isinstance(calls, SeveralCalls):
            together.setdefault(id(calls), []).append(whole)
        else:
            yield [whole]
    yield from together.values()


def _named(tries: Sequence[_Try]) -> contextlib.AbstractContextManager[None]:
    return named_by_place(*((each.whole, each.hand.cells) for each in tries))


def _ended(tries: Sequence[_Try]) -> list[Summary]:
    if not tries:
        return []
    with _named(tries):
        return [each.outcomes.end() for each in tries]


def _attempt() -> int:
    """How often Spark has tried this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _without(fetched: Iterator[Run], done: Mapping[TopicPartition, Collection[int]]) -> Iterator[Run]:
    for run in fetched:
        if len(run) and columns(run) is not None:
            yield without(run, done.get(_place(run[0]), ()))
        else:
            yield [each for each in run if each.offset() not in done.get(_place(each), ())]


def _place(message: Message) -> TopicPartition:
    record = Record.of(message)
    return TopicPartition(record.topic, record.partition)


def summary_batch(summary: Summary) -> pa.RecordBatch:
    """Summary as Arrow, on its way to the driver."""
    values: dict[str, Any] = {name: getattr(summary, name) for name in _SUMMARY_SCHEMA.names}
    return pa.RecordBatch.from_pylist([values], schema=_SUMMARY_SCHEMA)


def summaries(rows: Iterable[Any]) -> list[Summary]:
    """Summaries in Spark's rows, in the driver."""
    return [Summary(**row.asDict()) for row in rows]
