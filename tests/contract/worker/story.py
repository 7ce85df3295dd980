"""One story: a supervisor, brokers and a handler that do what chance says around one worker after the other, and look
at what the worker says after each store and each message.

First everything goes wrong that may, for a while. Then nothing does any more, and the worker has to come to rest: every
record finished, or its partition halted before one that its handler gave up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from kunicorn.handler.load import HandlerTimeout
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import (
    CommitAs,
    CommitWanted,
    Drain,
    DrainOver,
    Failed,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    Ping,
    StartFetcher,
    StopFetcher,
    Stopped,
    TimedOut,
    ToWorker,
)
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.worker.assembly import OWN
from tests.contract.worker.assembled import clear, live
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
    topic_id_of,
)
from tests.contract.worker.choices import Choices, by_seed
from tests.contract.worker.fetching import StoryFetcher
from tests.contract.worker.handlers import STAGE
from tests.contract.worker.handling import Handling, Trouble, keep
from tests.contract.worker.plan import (
    DEADLY,
    DECODERS_FROM,
    FILTERED_KEY,
    GATES_FROM,
    OWN_FROM,
    SPOILT,
    STORES_FROM,
    Plan,
    drawn,
    logs_drawn,
    with_decoders,
    with_gates,
    with_stores,
)
from tests.contract.worker.stepping import FOR_EVER, NANOSECONDS, START, STEPS
from tests.contract.worker.supervised import Memory, Partition, Pipe
from tests.contract.worker.truth import Call, Log, Order, Record, Violation, epoch_before

_REST_WITHIN = 60 * NANOSECONDS
"""So long may a worker take that nothing troubles."""
_MOST_TURNS = 10_000
"""Likewise, in chances to interrupt it."""
_MOST_LIVES = 6


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
            if plan.decodes:
                _spoil(log, plan)
        self.partitions = [Partition(log, slot, log.begin) for slot, log in enumerate(self.logs.values())]
        self.calls: list[Call] = []
        self.handling = self._handler()
        self.quiet = self.registry_away = False
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
            if spoilt := [record.offset for record in log.records if record.spoilt]:
                self.note(lambda log=log, spoilt=spoilt: f"{log.tp}: {spoilt} cannot be decoded")  # type: ignore[misc]
        STAGE.story = self.handling
        self.memory.story = self
        while True:
            self.lives += 1
            if self._live() and self._rested:
                break
        self._everything_is_accounted_for()

    def _live(self) -> bool:
        ledger = self.memory.ledger
        clear(ledger)
        ledger.lease_ns = FOR_EVER if self.quiet else STEPS.now + self.plan.lease_ns
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

    def _handler(self) -> Handling:
        return Handling(self)

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
        self._look_at_hands()
        if self.quiet:
            return self._rests()
        if self.choices.chance(50):
            self._act()
            return True
        return False

    def _look_at_hands(self) -> None:
        for each in self.partitions:
            if not each.grant or not self.memory.ledger.marked(each.slot):
                continue
            reading = self.memory.ledger.read(each.slot, each.grant)
            if reading.started and reading.hand_count > len(each.running):
                STEPS.fail(Violation(f"of {each.log.tp} {reading.hand_count} are in hand whose calls have ended"))

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
        self.registry_away = False
        self.memory.ledger.lease_ns = FOR_EVER
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

    def _registry(self) -> None:
        self.registry_away = not self.registry_away
        self.note(lambda: f"-- the registry {'goes away' if self.registry_away else 'comes back'}")

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
        self.handling.failed(call.records[:1], Trouble())

    def _letter_refused(self, record: Record | None) -> None:
        # Behind a refused output all come again, also those that were given up.
        if record is not None and self.plan.delivery is None and record.letter_under == self.partition(record.tp).grant:
            record.refused_under = record.letter_under

    def partition(self, tp: TopicPartition) -> Partition:
        """See `brokers.Teller`."""
        return next(each for each in self.partitions if each.log.tp == tp)

    def never_fits(self, output: Output) -> bool:
        """Likewise."""
        return False

    def letter_arrived(self, record: Record) -> None:
        """Likewise."""
        # A time-out that comes between two records of one go is the next one's, though a filter would have dropped it.
        if record.filtered and not record.failures:
            STEPS.fail(Violation(f"{record.offset} of {record.tp} is a dead letter, and was not for the handler"))
        if not record.failures and not record.how:
            STEPS.fail(Violation(f"{record.offset} of {record.tp} is a dead letter, and never failed"))
        record.finish("dead letter")

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
        each.grant, each.stopping, each.applied, each.lost, each.overdue = self._grant, False, False, False, False
        each.in_hand_then = ()
        tp = each.log.tp
        each.order = Order(each.log, each.position, each.done, self.plan.way(tp.topic).ordering)
        done = bitmap.written(each.position, each.done)
        place = (self._grant, each.slot, tp.topic, tp.partition, each.position, epoch_before(each.position))
        return FetcherStart(*place, done=done, began_with=BEGAN_WITH, topic_id=topic_id_of(tp.topic))

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
                # It may come between two records of one go: the next one has failed then, and was not begun. Or when a
                # batch has just said which of its records failed: the others have failed then, too.
                way = self.plan.way(each.log.tp.topic)
                most = 1 if way.mode == "record" else way.batch_max_records
                following = [record for record in each.log.from_offset(offset, most) if record not in each.running]
                self.handling.failed(following, HandlerTimeout())
                self._pipe.put(TimedOut(each.grant, offset))
                return

    def _interrupt(self) -> None:
        if held := [each for each in self.partitions if each.applied and each.grant]:
            each = self.choices.pick(held)
            each.overdue = True
            self.note(lambda: f"-- DrainOver {each.log.tp} (grant {each.grant}), SIGUSR1")
            self._pipe.put(DrainOver([each.grant]))
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
        keep(lambda: each.log.check_passed(offset, "a transaction"))
        keep(lambda: each.log.check_done(done, "a transaction"))
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
                    self._ended(report, "")
            case Failed(error=error, kind=kind):
                self._ended(message, f"{kind}: {error.splitlines()[0]}")
            case CommitWanted(number=number):
                self._pipe.put(CommitAs(number, self.generation, "member", None))
            case _:
                pass

    def _ended(self, report: Stopped | Failed, halted: str) -> None:
        grant, offset, done = report.grant, report.offset, report.done
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
        keep(lambda: each.log.check_passed(offset, "a report"))
        keep(lambda: each.log.check_epoch(offset, report.leader_epoch, "a report"))
        keep(lambda: each.log.check_done(told, "a report"))
        if each.lost:
            keep(lambda: self._goes_on_at(each, each.committed, each.committed_done))
            each.unsure = self.plan.in_transactions
        else:
            keep(lambda: self._goes_on_at(each, offset, each.done | told))
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
            keep(lambda: each.log.check_passed(offset, "the ledger"))
            keep(lambda: each.log.check_epoch(*reading.consumed[:2], "the ledger"))
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
        keep(lambda: each.log.check_done(done, "the ledger"))

    def _done_ahead(self, each: Partition, offset: int) -> frozenset[int]:
        ledger = self.memory.ledger
        return ledger.done(each.slot).from_offset(offset) if ledger.marked(each.slot) else frozenset()

    def _count_stores(self) -> None:
        if self._kill_in:
            self._kill_in -= 1
            if not self._kill_in:
                self._kill()


def _drop(log: Log) -> None:
    for record in log.records:
        if record.key == FILTERED_KEY:
            record.filtered = True
            record.finish("filtered")


def _spoil(log: Log, plan: Plan) -> None:
    undecodable = plan.on_undecodable or plan.on_failure
    columns = plan.way(log.tp.topic).mode == "arrow"
    ends = {SPOILT: undecodable, DEADLY: undecodable if columns else plan.on_failure}
    for record in log.records:
        if (end := ends.get(record.message.value() or b"")) is not None and not record.filtered:
            record.spoilt = True
            if end == "skip":
                record.finish("not to be decoded")
            elif end == "dead_letter":
                record.given_up, record.failures = True, 1


def tell(
    seed: int,
    number: int,
    memory: Memory,
    trace: list[str] | None = None,
    noted: Sequence[int] | None = None,
) -> Story:
    """One story. Raises what is wrong; its choices are in the error's `choices`."""
    choices = Choices(by_seed(f"{seed}/{number}", noted))
    return tell_as(choices, seed, memory, trace)


def tell_as(choices: Choices, seed: int, memory: Memory, trace: list[str] | None = None) -> Story:
    """Likewise, with these choices. `seed` says which kind of story it is."""
    try:
        plan = drawn(choices)
        if seed >= DECODERS_FROM:
            plan = with_decoders(choices, plan)
        elif seed >= GATES_FROM:
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
