"""What a story's handler does in its calls, and what becomes of their records because of that."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NoReturn, Protocol

from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.outcome import BatchError, DeadLetter, Halt, Outcome, Send, Skip, Wait
from kunicorn.positions import TopicPartition
from tests.contract.worker.choices import Choices
from tests.contract.worker.plan import DEADLY, SPOILT, Plan
from tests.contract.worker.stepping import NANOSECONDS, STEPS, Over
from tests.contract.worker.supervised import Memory, Partition
from tests.contract.worker.truth import Call, Log, Order, Record, Violation

_LEASE_SLACK = 2_000_000
"""Nanoseconds: a chunk of records may be begun within them."""


class Trouble(Exception):
    """What handlers raise."""


class Around(Protocol):
    """The story, as far as its handler is concerned."""

    choices: Choices
    memory: Memory
    plan: Plan
    quiet: bool
    """Nothing goes wrong any more."""
    registry_away: bool
    """What decoders ask does not answer."""
    logs: dict[TopicPartition, Log]
    partitions: list[Partition]
    calls: list[Call]

    def note(self, text: Callable[[], str]) -> None:
        """For whoever reads the story."""

    def partition(self, tp: TopicPartition) -> Partition:
        """What the supervisor knows of it."""


def keep(check: Callable[[], None]) -> None:
    """End the story where that is violated."""
    try:
        check()
    except Violation as violation:
        STEPS.fail(violation)


class Handling:
    """See `handlers.Told`, whose methods come first."""

    def __init__(self, story: Around) -> None:
        self._story, self._choices, self._plan = story, story.choices, story.plan

    def begin(self, records: Sequence[Any]) -> Call:
        """See `handlers.Told`."""
        STEPS.check()
        mine = [self._known(record) for record in records]
        call = Call(len(self._story.calls), mine)
        self._story.calls.append(call)
        self._story.note(lambda: f"HANDLER begins {_named(mine)} (call {call.number})")
        parts = [*self._parts(call)]
        for each, part in parts:
            self._look_at_beginning(each, part)
        for each, part in parts:
            each.running += part
            for record in part:
                record.begun_under = each.grant
        return call

    def _known(self, record: Any) -> Record:
        return self._story.logs[TopicPartition(record.topic, record.partition)].known[record.offset]

    def _parts(self, call: Call) -> Iterator[tuple[Partition, list[Record]]]:
        """The records of a call by their partitions."""
        for each in self._story.partitions:
            if part := [record for record in call.records if record.tp == each.log.tp]:
                yield each, part

    def _look_at_beginning(self, each: Partition, mine: Sequence[Record]) -> None:
        tp = each.log.tp
        if any(record.refused_under == each.grant for record in mine):
            STEPS.fail(Violation(f"of {tp} one is begun whose letter waits for its topic"))
        if any(record.filtered for record in mine):
            STEPS.fail(Violation(f"of {tp} one is begun that a filter drops"))
        if any(record.spoilt for record in mine):
            STEPS.fail(Violation(f"of {tp} one is begun that cannot be decoded"))
        if problem := self._may_not_begin(each, mine):
            STEPS.fail(Violation(f"{tp}@{mine[0].offset} is begun {problem}"))
        if any(two.offset <= one.offset for one, two in pairwise(mine)):
            STEPS.fail(Violation(f"{tp}: one call has {[record.offset for record in mine]}"))
        keep(lambda: each.order.begin(mine))

    def _may_not_begin(self, each: Partition, records: Sequence[Record]) -> str:
        if not each.grant:
            return "without a grant"
        in_hand = all(record.offset in each.in_hand_then for record in records)
        if each.applied and not in_hand:
            return "after its partition was to be given up"
        if STEPS.now > self._story.memory.ledger.lease_ns + _LEASE_SLACK:
            return f"{(STEPS.now - self._story.memory.ledger.lease_ns) / NANOSECONDS:.3f} s past the lease"
        way = self._plan.way(each.log.tp.topic)
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
        ways = self._plan.ways
        if ways[partition.log.tp.topic].concurrency == 1:
            # The loop's own thread calls them all, one at a time.
            return [each for each in self._story.partitions if ways[each.log.tp.topic].concurrency == 1]
        return [each for each in self._story.partitions if each.log.tp.topic == partition.log.tp.topic]

    def ends(self, call: Call) -> None:
        if call.running:
            call.running = False
            for each, part in self._parts(call):
                each.running = [record for record in each.running if record not in part]

    def work(self, call: Call) -> Any:
        """Likewise."""
        try:
            kind = self.kind(call)
            if kind == "slow":
                STEPS.sleep(self.duration())
            else:
                STEPS.tick()
            return self._do(call, kind)
        except Over:
            raise
        except BaseException as error:
            return self._returned(call, error)
        finally:
            self.ends(call)

    async def work_async(self, call: Call) -> Any:
        """Likewise."""
        try:
            kind = self.kind(call)
            if kind == "slow":
                await asyncio.sleep(self.duration() / NANOSECONDS)
            else:
                STEPS.tick()
            return self._do(call, kind)
        except (Over, GeneratorExit):
            raise
        except BaseException as error:
            return self._returned(call, error)
        finally:
            self.ends(call)

    def yielded(self, call: Call) -> Iterator[Any]:
        """Likewise."""
        try:
            kind = self.kind(call)
            if kind == "slow":
                STEPS.sleep(self.duration())
            slips = kind == "slip"
            sends = self._do(call, "slip" if slips else kind) or []
            yield from sends
            if slips:
                self.raised(call, Trouble())
                return self._slip(call)  # type: ignore[no-any-return]
        except (Over, GeneratorExit):
            raise
        except BaseException as error:
            return self._returned(call, error)  # type: ignore[no-any-return]
        finally:
            self.ends(call)

    def _slip(self, call: Call) -> Any:
        """What a generator may not return that has yielded."""
        if self._plan.returns and len(call.records) > 1:
            return BatchError(done=len(call.records) - 1)
        return Send(value=b"0:0")

    def _returned(self, call: Call, error: BaseException) -> Any:
        """The error, where the handler returns what it could raise. Raises it otherwise."""
        self.raised(call, error)
        if self._plan.returns and isinstance(error, Outcome | BatchError):
            return error
        raise error

    def kind(self, call: Call) -> str:
        plan = self._plan
        if self._story.quiet or not plan.trouble or not self._choices.chance(plan.trouble_percent):
            return ""
        return self._choices.pick(plan.trouble)

    def duration(self) -> int:
        return self._choices.pick((1_000_000, 20_000_000, 200_000_000, 3 * NANOSECONDS))

    def wait(self) -> int:
        """So long a record is to wait that it asks time for."""
        return self.duration()

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
                raise Wait(self.wait() / NANOSECONDS, "not now")
            case "part" if len(call.records) > 1:
                self._in_part(call)
            case "decide" if self._plan.way(call.records[0].tp.topic).mode != "record":
                self._decide(call)
            case "slip" if self._plan.way(call.records[0].tp.topic).entry in ("yielding", "yielding_batch"):
                return self._sends(call, 1 + self._choices.below(2))
        count = self.outputs() if self._plan.delivery is not None else 0
        sends = self._sends(call, count)
        call.left(count)
        self._store(call, call.records[-1].offset + 1)
        self._story.note(lambda: f"handler returns with {count} outputs (call {call.number})")
        return sends or None

    def outputs(self) -> int:
        """How many a call leaves."""
        return self._choices.below(3)

    def _sends(self, call: Call, count: int) -> list[Send]:
        return [Send(value=b"%d:%d" % (call.number, number)) for number in range(count)]

    def _in_part(self, call: Call) -> NoReturn:
        done = self._choices.below(len(call.records))
        self._store(call, call.records[done].offset)
        raise BatchError(done=done) from Trouble("one of them")

    def _decide(self, call: Call) -> NoReturn:
        ends = [Skip("not wanted"), DeadLetter("not understood"), Trouble("one of them")]
        drawn = [self._choices.below(1 + len(ends)) for _ in call.records]
        self._store(call, call.records[-1].offset + 1)
        raise BatchError(outcomes=[(end, [at == each for each in drawn]) for at, end in enumerate(ends)])

    def decoded(self, value: bytes) -> bytes:
        """See `handlers.Told`."""
        if self._story.registry_away:
            raise NotDecodableYet("the registry does not answer")
        if value == SPOILT:
            raise ValueError("it is spoilt")
        if value == DEADLY:
            raise SystemExit("it is deadly")
        return value

    def _store(self, call: Call, offset: int) -> None:
        """Have the handler store that, with what it has done."""
        if self._plan.keeps_offsets:
            each = self._story.partition(call.records[0].tp)
            each.stored = max(offset, each.stored or 0)

    def stored_offsets(self, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See `handlers.Told`. What lies before them is done, whatever else became of it."""
        STEPS.check()
        found = {}
        for each in self._story.partitions:
            if each.log.tp in asked and (stored := each.stored) is not None:
                self._story.note(lambda each=each: f"handler has stored {each.stored} of {each.log.tp}")  # type: ignore[misc]
                for record in each.log.records[: bisect_left(each.log.offsets, stored)]:
                    record.finish("stored")
                each.order = Order(each.log, stored, each.done, "partition")
                found[each.log.tp] = stored
        return found

    def raised(self, call: Call, error: BaseException) -> None:
        self._story.note(lambda: f"handler raises {type(error).__name__} (call {call.number})")
        records = call.records
        if isinstance(error, BatchError) and error.outcomes is not None:
            self._decided(records, error.outcomes)
        elif isinstance(error, BatchError):
            assert isinstance(error.done, int)
            for record in records[: error.done]:
                record.handled = True
                record.finish("handled")
            self.failed(records[error.done : error.done + 1], error)
        elif isinstance(error, DrainDeadline):
            if not any(each.overdue for each, _ in self._parts(call)):
                STEPS.fail(Violation(f"call {call.number} was interrupted for a partition that it has no record of"))
        elif isinstance(error, Wait):
            return
        elif isinstance(error, asyncio.CancelledError):
            if any(offset <= part[-1].offset for each, part in self._parts(call) for offset in each.timed_out):
                self.failed(records, HandlerTimeout())
        elif isinstance(error, Skip | DeadLetter):
            self._decided(records, [(error, [True] * len(records))])
        else:
            self.failed(records, error)

    def _decided(self, records: Sequence[Record], outcomes: Sequence[tuple[BaseException, Sequence[bool]]]) -> None:
        for at, record in enumerate(records):
            match next((end for end, mask in outcomes if mask[at]), None):
                case None:
                    record.handled = True
                    record.finish("handled")
                case Skip():
                    record.finish("skipped")
                case DeadLetter():
                    record.given_up = True
                    record.failures += 1
                case error:
                    self.failed([record], error)

    def failed(self, records: Sequence[Record], error: BaseException) -> None:
        at_once = not isinstance(error, Exception | HandlerTimeout)
        for record in records:
            record.failures += 1
            if at_once or record.failures >= self._plan.attempts:
                # One that cannot be decoded has its end already.
                record.given_up = self._plan.on_failure == "dead_letter" or (record.spoilt and record.given_up)
                if self._plan.on_failure == "skip":
                    record.finish("skipped")


def _named(records: Sequence[Record]) -> str:
    return " ".join(f"{record.tp}@{record.offset}" for record in records)
