"""One story: a supervisor, brokers and a handler that do what chance says around one worker after the other, and look
at what the worker says after each store and each message.

First everything goes wrong that may, for a while. Then nothing does any more, and the worker has to come to rest: every
record finished, or its partition halted before one that its handler gave up.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.outcome import BatchError, DeadLetter, Halt, Outcome, Send, Skip, Wait
from kunicorn.ipc import bitmap
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitAs,
    CommitWanted,
    Drain,
    Failed,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    Ping,
    StartFetcher,
    StopFetcher,
    TimedOut,
    ToWorker,
)
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.worker.assembly import OWN
from tests.contract.worker.assembled import clear, live, watched
from tests.contract.worker.brokers import (
    ACK,
    AWAY,
    BEGAN_WITH,
    HOPELESS,
    PASSING,
    Broker,
    Output,
    StoryConsumer,
    StoryProducer,
)
from tests.contract.worker.choices import Choices
from tests.contract.worker.fetching import StoryFetcher
from tests.contract.worker.handlers import STAGE
from tests.contract.worker.plan import (
    FILTERED_KEY,
    GATES_FROM,
    OWN_FROM,
    STORES_FROM,
    Plan,
    drawn,
    logs_drawn,
    with_gates,
    with_stores,
)
from tests.contract.worker.stepping import NANOSECONDS, START, STEPS, Over, Strand, nanoseconds
from tests.contract.worker.truth import Call, Log, Order, Record, Violation

_FOR_EVER = 1 << 62
_REST_WITHIN = 60 * NANOSECONDS
"""So long may a worker take that nothing troubles."""
_MOST_TURNS = 10_000
"""Likewise, in chances to interrupt it."""
_MOST_LIVES = 6
_LEASE_SLACK = 2_000_000
"""Nanoseconds: a chunk of records may be begun within them."""


class Trouble(Exception):
    """What handlers raise."""


class Partition:
    """What the supervisor knows of one."""

    def __init__(self, log: Log, slot: int, position: int) -> None:
        self.log, self.slot, self.position = log, slot, position
        self.committed, self.committed_done = position, frozenset[int]()
        self.stored: int | None = None
        """By a handler that keeps its offsets."""
        self.unsure = False
        """Where it goes on the brokers know."""
        self.done: frozenset[int] = frozenset()
        self.grant = 0
        self.order: Order
        self.stopping = self.applied = self.lost = False
        self.in_hand_then: Collection[int] = ()
        """What was in hand when the worker had been told to stop."""
        self.halted = ""
        self.running: list[Record] = []
        self.timed_out: set[int] = set()

    @property
    def free(self) -> bool:
        """Nobody handles it, and somebody may."""
        return not self.grant and not self.halted


class Memory:
    """The ledger of every worker in turn: mapped once."""

    def __init__(self) -> None:
        self.ledger = Ledger.create(6)
        self.story: Story
        self.theirs = watched(self.ledger, self._storing, self._moved, self._marked)

    def _storing(self, at: int) -> None:
        self.story.storing(at)

    def _moved(self, slot: int) -> None:
        self.story.moved(slot)

    def _marked(self, at: int) -> None:
        self.story.marked()


class Pipe:
    """Between the story and one worker. See `assembled.Pipe`."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._queue: list[ToWorker] = []
        self._taken: list[ToWorker] = []
        self._waiting: Strand | None = None

    def put(self, message: ToWorker) -> None:
        """To the worker."""
        self._queue.append(message)
        if self._waiting is not None:
            STEPS.wake(self._waiting)

    def receive(self, timeout: float | None = None) -> ToWorker | None:
        for message in self._taken:
            self._story.applied(message)
        self._taken.clear()
        if not self._queue:
            self._waiting = STEPS.current
            try:
                STEPS.wait(None if timeout is None else STEPS.now + nanoseconds(timeout))
            finally:
                self._waiting = None
        else:
            STEPS.tick()
        if not self._queue:
            return None
        self._taken.append(self._queue.pop(0))
        return self._taken[0]

    def send(self, message: FromWorker) -> None:
        STEPS.check()
        self._story.heard(message)


class Story:
    """Told once, by `tell`."""

    def __init__(
        self,
        choices: Choices,
        memory: Memory,
        plan: Plan,
        logs: dict[TopicPartition, Log],
        trace: list[str] | None = None,
    ) -> None:
        STEPS.now = START
        self.choices, self.memory, self.trace = choices, memory, trace
        self.below = choices.below
        self.plan = plan
        self.keeps_positions = plan.keeps_positions
        self.logs = logs
        for log in logs.values():
            if plan.way(log.tp.topic).filters:
                _drop(log)
        self.partitions = [Partition(log, slot, log.begin) for slot, log in enumerate(self.logs.values())]
        self.calls: list[Call] = []
        self.quiet = False
        self.generation = 1
        self.lives = 0
        self._broker = Broker(self)
        self._pipe = Pipe(self)
        self._consumer = self._source()
        self._grant = 0
        self._budget = self.plan.budget
        self._left = choices.stride(self.plan.act_every)
        self._kill_in = 0
        self._draining = self._rested = False
        self._quiet_at = self._turns = 0

    # -- told ----------------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Raises `Violation`, or whatever the worker broke by."""
        self.note(lambda: f"{self.plan}")
        for log in self.logs.values():
            self.note(lambda log=log: f"{log.tp}: {log.offsets}, {log.visible} written, ends at {log.end}")  # type: ignore[misc]
        STAGE.story = self
        self.memory.story = self
        while True:
            self.lives += 1
            if self._live() and self._rested:
                break
        self._everything_is_accounted_for()

    def _live(self) -> bool:
        ledger = self.memory.ledger
        clear(ledger)
        ledger.lease_ns = _FOR_EVER if self.quiet else STEPS.now + self.plan.lease_ns
        self._pipe, self._consumer, self._draining = Pipe(self), self._source(), False
        self._kill_in = 0
        self._start(self._free())
        drained = STEPS.live(self._be, self, self.below, lambda: self.choices.stride(self.plan.interrupted_every))
        if drained:
            left = [str(each.log.tp) for each in self.partitions if each.grant]
            if left:
                raise Violation(f"the worker has ended, and never reported {left}")
            # It waits for nothing of a lost partition: its successor ends the transaction that this leaves open.
            self._broker.forget()
        else:
            self._bury()
        if self.lives >= _MOST_LIVES and not self.quiet:
            self._calm()
        return drained

    def _source(self) -> StoryConsumer | StoryFetcher:
        return StoryFetcher(self) if self.plan.fetcher == OWN else StoryConsumer(self)

    def _be(self) -> None:
        live(self.plan.configure(), self.memory.theirs, self._pipe, self._consumer, self._producer)

    def _producer(self, transactional: bool) -> StoryProducer:
        return StoryProducer(self._broker, transactional)

    def note(self, text: Callable[[], str]) -> None:
        """See `brokers.Teller`."""
        if self.trace is not None:
            who = STEPS.current.name if not STEPS.dead else "-"
            self.trace.append(f"{(STEPS.now - START) / NANOSECONDS:9.4f} {who:>9}  {text()}")

    # -- chance --------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """See `stepping.World`."""
        if self.quiet:
            self._turns += 1
            if self._turns > _MOST_TURNS:
                STEPS.fail(
                    Violation(f"it takes more than {_MOST_TURNS} turns though nothing troubles it: {self._left_over()}")
                )
            return
        self._left -= 1
        if self._left <= 0:
            self._act()

    def idle(self) -> bool:
        """See `stepping.World`."""
        if self.quiet:
            return self._rests()
        if self.choices.chance(50):
            self._act()
            return True
        return False

    def _act(self) -> None:
        self._left = self.choices.stride(self.plan.act_every)
        self._budget -= 1
        if self._budget <= 0:
            self._calm()
        else:
            getattr(self, f"_{self.choices.pick(self.plan.acts)}")()

    def _calm(self) -> None:
        self.note(lambda: "-- nothing goes wrong any more")
        self.quiet, self._quiet_at, self._kill_in = True, STEPS.now, 0
        self.memory.ledger.lease_ns = _FOR_EVER
        for log in self.logs.values():
            log.visible = len(log.records)
        self._broker.answer(1000, lambda output: ACK)
        self._consumer.arrived()

    def _rests(self) -> bool:
        if not self._draining:
            if free := self._free():
                self._start(free)
                return True
            if all(self._is_through(each) for each in self.partitions):
                self._rested = True
                self._reload()
                return True
        if STEPS.now - self._quiet_at > _REST_WITHIN:
            self._never_rests()
        return False

    def _never_rests(self) -> NoReturn:
        STEPS.fail(Violation(f"it does not come to rest, though nothing troubles it: {self._left_over()}"))

    def _is_through(self, partition: Partition) -> bool:
        if partition.halted:
            return True
        reading = self.memory.ledger.read(partition.slot, partition.grant)
        return reading.consumed.offset == partition.log.end and not partition.stopping

    def _left_over(self) -> str:
        read = self.memory.ledger.read
        return (
            "; ".join(
                f"{each.log.tp} consumed {read(each.slot, each.grant).consumed.offset} of {each.log.end}, the first "
                f"unfinished record is {each.log.unfinished}"
                for each in self.partitions
                if not self._is_through(each)
            )
            or "everything is handled, but it does not end"
        )

    def _everything_is_accounted_for(self) -> None:
        for each in self.partitions:
            unfinished = each.log.unfinished
            if each.halted:
                if each.position > unfinished:
                    raise Violation(f"{each.log.tp} is halted at {each.position}, and {unfinished} is not finished")
            elif each.position != each.log.end or unfinished < each.log.end:
                raise Violation(f"{each.log.tp} ends at {each.position}, its log at {each.log.end}")

    # -- the brokers -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        self._broker.answer(1 + self.below(8), self._fate)

    def _fate(self, output: Output) -> int | None:
        chance = self.below(100)
        is_letter = output.letter_of is not None
        refused = self.plan.letters_refused_percent if is_letter else self.plan.refused_percent
        if chance >= 100 - refused:
            return self.choices.pick(AWAY if is_letter else HOPELESS)
        return self.choices.pick(PASSING) if chance >= 100 - refused - 5 else ACK

    def _arrive(self) -> None:
        log = self.choices.pick(list(self.logs.values()))
        log.visible = min(len(log.records), log.visible + 1 + self.below(4))
        self.note(lambda: f"-- {log.tp}: {log.visible} written")
        self._consumer.arrived()

    def _compact(self) -> None:
        log = self.choices.pick(list(self.logs.values()))
        if len(log.records) > 1 and (at := self.below(len(log.records) - 1)) is not None:
            record = log.compact(at)
            record.finish("compacted away")
            self.note(lambda: f"-- {log.tp}@{record.offset} is compacted away")

    def refused(self, output: Output) -> None:
        """See `brokers.Teller`."""
        call = output.call
        if call is None:
            self._letter_refused(output.letter_of)
            return
        call.refused()
        # A batch's counts as a try of its first record: nobody knows whose output it was.
        self._failed(call.records[:1], Trouble())

    def _letter_refused(self, record: Record | None) -> None:
        # Of several that have failed together nobody knows whose it was, and behind a refused output all come again.
        if record is not None and self.plan.delivery is None and record.alone_under == self.partition(record.tp).grant:
            record.refused_under = record.alone_under

    def partition(self, tp: TopicPartition) -> Partition:
        """What the supervisor knows of it."""
        return next(each for each in self.partitions if each.log.tp == tp)

    def never_fits(self, output: Output) -> bool:
        """Likewise."""
        return False

    def letter_arrived(self, record: Record) -> None:
        """Likewise."""
        if record.filtered and not self._ends_calls:
            STEPS.fail(Violation(f"{record.offset} of {record.tp} is a dead letter, and was not for the handler"))
        if not record.failures and not record.how:
            STEPS.fail(Violation(f"{record.offset} of {record.tp} is a dead letter, and never failed"))
        record.finish("dead letter")

    @property
    def _ends_calls(self) -> bool:
        """Whether calls end otherwise than by what a handler says: then all that was gathered for one has failed."""
        return "exit" in self.plan.trouble or "time_out" in self.plan.acts

    # -- the supervisor ----------------------------------------------------------------------------------------------

    def _start(self, partitions: Sequence[Partition] | None = None) -> None:
        if partitions is None:
            free = self._free()
            partitions = [self.choices.pick(free)] if free and not self._draining else []
        starts = [self._granted(each) for each in partitions]
        if starts:
            self.note(lambda: f"-- StartFetcher {[(s.grant, s.partition, s.offset, s.done) for s in starts]}")
            self._pipe.put(StartFetcher(starts))

    def _free(self) -> list[Partition]:
        return [
            each
            for each in self.partitions
            if each.free and not (each.unsure and not self._broker.is_stable(each.log.tp))
        ]

    def _granted(self, each: Partition) -> FetcherStart:
        self._grant += 1
        if each.unsure:
            each.position, each.done, each.unsure = each.committed, each.committed_done, False
        each.grant, each.stopping, each.applied, each.lost = self._grant, False, False, False
        each.in_hand_then = ()
        tp = each.log.tp
        each.order = Order(each.log, each.position, each.done, self.plan.way(tp.topic).ordering)
        done = bitmap.written(each.position, each.done)
        return FetcherStart(
            self._grant, each.slot, tp.topic, tp.partition, each.position, 0, done=done, began_with=BEGAN_WITH
        )

    def _stop(self, *, lost: bool = False) -> None:
        held = [each for each in self.partitions if each.grant and not each.stopping]
        if not held or self._draining:
            return
        each = self.choices.pick(held)
        each.stopping, each.lost = True, lost
        self.note(lambda: f"-- StopFetcher {each.log.tp} (grant {each.grant}){', lost' if lost else ''}")
        self._pipe.put(StopFetcher([each.grant], None, lost))

    def _lose(self) -> None:
        self.generation += 1
        self._stop(lost=True)

    def _renew(self) -> None:
        self.memory.ledger.lease_ns = STEPS.now + self.plan.lease_ns
        self.note(lambda: "-- the lease is renewed")

    def _time_out(self) -> None:
        for each in self.partitions:
            offset = self.memory.ledger.read(each.slot, each.grant).in_hand if each.grant else NO_OFFSET
            if offset != NO_OFFSET:
                self.note(lambda each=each, offset=offset: f"-- TimedOut {each.log.tp}@{offset}")  # type: ignore[misc]
                each.timed_out.add(offset)
                # It may come between two records of one go: the next one has failed then, and was not begun.
                following = [record for record in each.log.from_offset(offset)[:1] if record not in each.running]
                self._failed(following, HandlerTimeout())
                self._pipe.put(TimedOut(each.grant, offset))
                return

    def _interrupt(self) -> None:
        if any(each.applied for each in self.partitions):
            self.note(lambda: "-- SIGUSR1")
            STEPS.signal()

    def _ping(self) -> None:
        self._pipe.put(Ping(1))

    def _reload(self) -> None:
        if not self._draining:
            self.note(lambda: "-- Drain")
            self._draining = True
            for each in self.partitions:
                each.stopping = each.stopping or bool(each.grant)
            self._pipe.put(Drain(0.0))

    def _kill(self) -> None:
        self.note(lambda: "-- SIGKILL")
        STEPS.kill()

    def _kill_at_store(self) -> None:
        self._kill_in = 1 + self.below(12)

    def _commit(self) -> None:
        for each in self.partitions:
            if each.grant and not each.lost and not self.plan.in_transactions:
                each.committed = max(each.committed, self.memory.ledger.read(each.slot, each.grant).consumed.offset)

    def committed(self, place: TopicPartition, offset: int, done: frozenset[int]) -> None:
        """See `brokers.Teller`."""
        each = self.partition(place)
        self._keep(lambda: each.log.check_passed(offset, "a transaction"))
        self._keep(lambda: each.log.check_done(done, "a transaction"))
        each.committed, each.committed_done = offset, done

    def twice(self, record: Record) -> None:
        """Likewise."""
        STEPS.fail(Violation(f"outputs of two calls with {record.offset} of {record.tp} were committed"))

    def chance(self, percent: int) -> bool:
        """Likewise."""
        return not self.quiet and self.choices.chance(percent)

    def _bury(self) -> None:
        ledger = self.memory.ledger
        self._broker.forget()
        for each in self.partitions:
            if not each.grant:
                continue
            reading = ledger.read(each.slot, each.grant)
            if each.lost:
                self._goes_on_at(each, each.committed, each.committed_done)
            elif reading.started:
                done = self._done_ahead(each, reading.consumed.offset)
                self._goes_on_at(each, reading.consumed.offset, each.done | done)
            else:
                self._goes_on_at(each, each.position, each.done)
            each.running.clear()
            each.unsure = self.plan.in_transactions
        for call in self.calls:
            call.running = False

    def _goes_on_at(self, each: Partition, offset: int, done: frozenset[int]) -> None:
        each.log.check_passed(offset, "the supervisor")
        each.log.check_done(done, "the supervisor")
        each.grant, each.position = 0, offset
        each.done = frozenset(each for each in done if each >= offset)
        self.note(lambda: f"   {each.log.tp} goes on at {offset}, done {sorted(each.done)}")

    # -- what the worker says ----------------------------------------------------------------------------------------

    def applied(self, message: ToWorker) -> None:
        """The worker has done as it was told."""
        ledger = self.memory.ledger
        for each in self.partitions:
            told = isinstance(message, Drain) or (isinstance(message, StopFetcher) and each.grant in message.grants)
            if told and each.grant and not each.applied:
                each.applied = True
                if ledger.marked(each.slot):
                    first = ledger.read(each.slot, each.grant).consumed.offset
                    each.in_hand_then = ledger.in_hand(each.slot).from_offset(max(first, 0))

    def heard(self, message: FromWorker) -> None:
        """It reports."""
        match message:
            case FetcherStopped(partitions=stopped):
                for report in stopped:
                    self._ended(report.grant, report.offset, report.done, "")
            case Failed(grant=grant, offset=offset, done=done, error=error, kind=kind):
                self._ended(grant, offset, done, f"{kind}: {error.splitlines()[0]}")
            case CommitWanted(number=number):
                self._pipe.put(CommitAs(number, self.generation, "member", None))
            case _:
                pass

    def _ended(self, grant: int, offset: int, done: str, halted: str) -> None:
        each = next((each for each in self.partitions if each.grant == grant), None)
        self.note(lambda: f"reports grant {grant} at {offset} {done and sorted(bitmap.read(offset, done))} {halted}")
        if each is None:
            STEPS.fail(Violation(f"grant {grant} is reported, and it is over"))
        if each.running:
            STEPS.fail(Violation(f"{each.log.tp} is reported while its handler has a record of it"))
        consumed = self.memory.ledger.read(each.slot, grant).consumed.offset
        if not halted and consumed != NO_OFFSET and offset > consumed:
            STEPS.fail(Violation(f"{each.log.tp} is reported at {offset}, and the ledger says {consumed}"))
        told = bitmap.read(offset, done)
        self._keep(lambda: each.log.check_passed(offset, "a report"))
        self._keep(lambda: each.log.check_done(told, "a report"))
        if each.lost:
            self._keep(lambda: self._goes_on_at(each, each.committed, each.committed_done))
            each.unsure = self.plan.in_transactions
        else:
            self._keep(lambda: self._goes_on_at(each, offset, each.done | told))
            each.halted = halted

    def storing(self, at: int) -> None:
        """The worker is about to store that word of the ledger."""

    def moved(self, slot: int) -> None:
        """The worker has stored how far it is."""
        if not 0 <= slot < len(self.partitions):
            return
        each = self.partitions[slot]
        reading = self.memory.ledger.read(slot, each.grant)
        if each.grant and reading.started:
            offset = reading.consumed.offset
            self.note(lambda: f"stores {offset} of {each.log.tp}")
            self._keep(lambda: each.log.check_passed(offset, "the ledger"))
            self._look_at_marks(each, offset)
        self._count_stores()

    def marked(self) -> None:
        """It has stored what is done beyond that, or in hand."""
        for each in self.partitions:
            if each.grant and (reading := self.memory.ledger.read(each.slot, each.grant)).started:
                self._look_at_marks(each, reading.consumed.offset)
        self._count_stores()

    def _look_at_marks(self, each: Partition, offset: int) -> None:
        done = self._done_ahead(each, offset)
        self._keep(lambda: each.log.check_done(done, "the ledger"))

    def _done_ahead(self, each: Partition, offset: int) -> frozenset[int]:
        ledger = self.memory.ledger
        return ledger.done(each.slot).from_offset(offset) if ledger.marked(each.slot) else frozenset()

    def _count_stores(self) -> None:
        if self._kill_in:
            self._kill_in -= 1
            if not self._kill_in:
                self._kill()

    def _keep(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            STEPS.fail(violation)

    # -- the handler -------------------------------------------------------------------------------------------------

    def begin(self, records: Sequence[Any]) -> Call:
        """See `handlers.Told`."""
        STEPS.check()
        mine = [self._known(record) for record in records]
        call = Call(len(self.calls), mine)
        self.calls.append(call)
        self.note(lambda: f"HANDLER begins {_named(mine)} (call {call.number})")
        parts = [*self._parts(call)]
        for each, part in parts:
            self._look_at_beginning(each, part)
        for each, part in parts:
            each.running += part
        return call

    def _known(self, record: Any) -> Record:
        return self.logs[TopicPartition(record.topic, record.partition)].known[record.offset]

    def _parts(self, call: Call) -> Iterator[tuple[Partition, list[Record]]]:
        """The records of a call by their partitions."""
        for each in self.partitions:
            if part := [record for record in call.records if record.tp == each.log.tp]:
                yield each, part

    def _look_at_beginning(self, each: Partition, mine: Sequence[Record]) -> None:
        tp = each.log.tp
        if any(record.refused_under == each.grant for record in mine):
            STEPS.fail(Violation(f"of {tp} one is begun whose letter waits for its topic"))
        if any(record.filtered for record in mine):
            STEPS.fail(Violation(f"of {tp} one is begun that a filter drops"))
        if problem := self._may_not_begin(each, mine):
            STEPS.fail(Violation(f"{tp}@{mine[0].offset} is begun {problem}"))
        if any(two.offset <= one.offset for one, two in pairwise(mine)):
            STEPS.fail(Violation(f"{tp}: one call has {[record.offset for record in mine]}"))
        self._keep(lambda: each.order.begin(mine))

    def _may_not_begin(self, each: Partition, records: Sequence[Record]) -> str:
        if not each.grant:
            return "without a grant"
        in_hand = all(record.offset in each.in_hand_then for record in records)
        if each.applied and not in_hand:
            return "after its partition was to be given up"
        if STEPS.now > self.memory.ledger.lease_ns + _LEASE_SLACK:
            return f"{(STEPS.now - self.memory.ledger.lease_ns) / NANOSECONDS:.3f} s past the lease"
        way = self.plan.way(each.log.tp.topic)
        running = [record for other in self._beside(each) for record in other.running]
        if any(record in running for record in records):
            return "while its handler has it"
        if way.ordering == "partition" and each.running:
            return f"beside {each.running[0].offset}"
        if way.ordering == "key" and any(record.key == records[0].key for record in each.running):
            return "beside another one of its key"
        if len(running) >= (way.concurrency if way.mode == "record" else 1):
            return f"beside {len(running)} others"
        return ""

    def _beside(self, partition: Partition) -> Sequence[Partition]:
        """All whose records count among those that its handler may have in hand."""
        ways = self.plan.ways
        if ways[partition.log.tp.topic].concurrency == 1:
            # The loop's own thread calls them all, one at a time.
            return [each for each in self.partitions if ways[each.log.tp.topic].concurrency == 1]
        return [each for each in self.partitions if each.log.tp.topic == partition.log.tp.topic]

    def _ends(self, call: Call) -> None:
        if call.running:
            call.running = False
            for each, part in self._parts(call):
                each.running = [record for record in each.running if record not in part]

    def work(self, call: Call) -> Any:
        """Likewise."""
        try:
            kind = self._kind(call)
            if kind == "slow":
                STEPS.sleep(self._duration())
            else:
                STEPS.tick()
            return self._do(call, kind)
        except Over:
            raise
        except BaseException as error:
            self._raised(call, error)
            if self._is_returned(error):
                return error
            raise
        finally:
            self._ends(call)

    async def work_async(self, call: Call) -> Any:
        """Likewise."""
        try:
            kind = self._kind(call)
            if kind == "slow":
                await asyncio.sleep(self._duration() / NANOSECONDS)
            else:
                STEPS.tick()
            return self._do(call, kind)
        except (Over, GeneratorExit):
            raise
        except BaseException as error:
            self._raised(call, error)
            if self._is_returned(error):
                return error
            raise
        finally:
            self._ends(call)

    def yielded(self, call: Call) -> Iterator[Any]:
        """Likewise."""
        try:
            kind = self._kind(call)
            if kind == "slow":
                STEPS.sleep(self._duration())
            slips = kind == "slip"
            sends = self._do(call, "slip" if slips else kind) or []
            yield from sends
            if slips:
                self._raised(call, Trouble())
                return self._slip(call)  # type: ignore[no-any-return]
        except (Over, GeneratorExit):
            raise
        except BaseException as error:
            self._raised(call, error)
            if self._is_returned(error):
                return error  # type: ignore[return-value]
            raise
        finally:
            self._ends(call)

    def _slip(self, call: Call) -> Any:
        """What a generator may not return that has yielded."""
        if self.plan.returns and len(call.records) > 1:
            return BatchError(done=len(call.records) - 1)
        return Send(value=b"0:0")

    def _is_returned(self, error: BaseException) -> bool:
        return self.plan.returns and isinstance(error, Outcome | BatchError)

    def _kind(self, call: Call) -> str:
        plan = self.plan
        if self.quiet or not plan.trouble or not self.choices.chance(plan.trouble_percent):
            return ""
        return self.choices.pick(plan.trouble)

    def _duration(self) -> int:
        return self.choices.pick((1_000_000, 20_000_000, 200_000_000, 3 * NANOSECONDS))

    def _do(self, call: Call, kind: str) -> Any:
        """What it returns; or raises."""
        match kind:
            case "raise":
                raise Trouble("no")
            case "skip":
                raise Skip("not wanted")
            case "letter":
                raise DeadLetter("not understood")
            case "halt":
                raise Halt("a person has to look")
            case "exit":
                raise SystemExit(1)
            case "wait":
                raise Wait(self._duration() / NANOSECONDS, "not now")
            case "part" if len(call.records) > 1:
                self._in_part(call)
            case "decide" if self.plan.way(call.records[0].tp.topic).mode != "record":
                self._decide(call)
            case "slip" if self.plan.way(call.records[0].tp.topic).entry in ("yielding", "yielding_batch"):
                return self._sends(call, 1 + self.below(2))
        count = self._outputs() if self.plan.delivery is not None else 0
        sends = self._sends(call, count)
        call.left(count)
        self._store(call, call.records[-1].offset + 1)
        self.note(lambda: f"handler returns with {count} outputs (call {call.number})")
        return sends or None

    def _outputs(self) -> int:
        """How many a call leaves."""
        return self.below(3)

    def _sends(self, call: Call, count: int) -> list[Send]:
        return [Send(value=b"%d:%d" % (call.number, number)) for number in range(count)]

    def _in_part(self, call: Call) -> NoReturn:
        done = self.below(len(call.records))
        self._store(call, call.records[done].offset)
        raise BatchError(done=done) from Trouble("one of them")

    def _decide(self, call: Call) -> NoReturn:
        ends = [Skip("not wanted"), DeadLetter("not understood"), Trouble("one of them")]
        drawn = [self.below(1 + len(ends)) for _ in call.records]
        self._store(call, call.records[-1].offset + 1)
        raise BatchError(outcomes=[(end, [at == each for each in drawn]) for at, end in enumerate(ends)])

    def _store(self, call: Call, offset: int) -> None:
        """Have the handler store that, with what it has done."""
        if self.plan.keeps_offsets:
            each = self.partition(call.records[0].tp)
            each.stored = max(offset, each.stored or 0)

    def stored_offsets(self, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See `handlers.Told`. What lies before them is done, whatever else became of it."""
        STEPS.check()
        found = {}
        for each in self.partitions:
            if each.log.tp in asked and (stored := each.stored) is not None:
                self.note(lambda each=each: f"handler has stored {each.stored} of {each.log.tp}")  # type: ignore[misc]
                for record in each.log.records[: bisect_left(each.log.offsets, stored)]:
                    record.finish("stored")
                each.order = Order(each.log, stored, each.done, "partition")
                found[each.log.tp] = stored
        return found

    def _raised(self, call: Call, error: BaseException) -> None:
        self.note(lambda: f"handler raises {type(error).__name__} (call {call.number})")
        records = call.records
        if isinstance(error, BatchError) and error.outcomes is not None:
            self._decided(records, error.outcomes)
        elif isinstance(error, BatchError):
            assert isinstance(error.done, int)
            for record in records[: error.done]:
                record.handled = True
                record.finish("handled")
            self._failed(records[error.done : error.done + 1], error)
        elif isinstance(error, DrainDeadline | Wait):
            return
        elif isinstance(error, asyncio.CancelledError):
            if any(offset <= part[-1].offset for each, part in self._parts(call) for offset in each.timed_out):
                self._failed(records, HandlerTimeout())
        elif isinstance(error, Skip | DeadLetter):
            self._decided(records, [(error, [True] * len(records))])
        else:
            self._failed(records, error)

    def _decided(self, records: Sequence[Record], outcomes: Sequence[tuple[Exception, Sequence[bool]]]) -> None:
        for at, record in enumerate(records):
            end, mask = next(((end, mask) for end, mask in outcomes if mask[at]), (None, [False]))
            record.alone_under = self.partition(record.tp).grant if sum(mask) == 1 else 0
            match end:
                case None:
                    record.handled = True
                    record.finish("handled")
                case Skip():
                    record.finish("skipped")
                case DeadLetter():
                    record.given_up = True
                    record.failures += 1
                case error:
                    self._failed([record], error)

    def _failed(self, records: Sequence[Record], error: BaseException) -> None:
        at_once = not isinstance(error, Exception | HandlerTimeout)
        for record in records:
            record.failures += 1
            if at_once or record.failures >= self.plan.attempts:
                record.given_up = self.plan.on_failure == "dead_letter"
                if self.plan.on_failure == "skip":
                    record.finish("skipped")


def _named(records: Sequence[Record]) -> str:
    return " ".join(f"{record.tp}@{record.offset}" for record in records)


def _drop(log: Log) -> None:
    for record in log.records:
        if record.key == FILTERED_KEY:
            record.filtered = True
            record.finish("filtered")


def tell(
    seed: int,
    number: int,
    memory: Memory,
    trace: list[str] | None = None,
    noted: Sequence[int] | None = None,
) -> Story:
    """One story. Raises what is wrong; its choices are in the error's `choices`."""
    choices = Choices(f"{seed}/{number}", noted)
    try:
        plan = drawn(choices)
        if seed >= GATES_FROM:
            plan = with_gates(choices, plan)
        elif seed >= OWN_FROM:
            plan = replace(plan, fetcher=OWN)
        elif seed >= STORES_FROM:
            plan = with_stores(choices, plan)
        story = Story(choices, memory, plan, logs_drawn(choices, plan), trace)
        story.tell()
    except BaseException as error:
        error.choices = choices.made  # type: ignore[attr-defined]
        raise
    return story
