"""The table of partitions on a client that the test plays, with handlers and senders that the test plays, too."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.handler.retry import End
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FromWorker
from kunicorn.positions import NO_EPOCH, TopicPartition
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT, ON_RETURN, Completion, Deliveries
from kunicorn.worker.failures import LetterBox
from kunicorn.worker.partitions import Partitions
from kunicorn.worker.produce.outbox import GivenUp, Limits, Outbox
from kunicorn.worker.produce.sender import reached
from kunicorn.worker.progress import Attempt, Grant, InFlight, Lane, Slots
from tests.fakes.parts import parts
from tests.unit.worker.produce.output_batches import taken

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LATER = 10_000_000_000
OUTPUT = Outgoing("out", b"v", None, None, -1, 0)


class PlayedClient:
    """What is assigned to it; `told` is the position that it says of every partition, with its leader epoch."""

    def __init__(self) -> None:
        self.assigned: dict[TopicPartition, tuple[int, int | None]] = {}
        """Offset and leader epoch."""
        self.told = OFFSET_INVALID
        self.told_epoch = NO_EPOCH
        self.refusal: KafkaException | None = None

    def position(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
        at = self.told, "", self.told_epoch
        return [ClientPartition(each.topic, each.partition, *at) for each in partitions]

    def incremental_assign(self, partitions: list[ClientPartition]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.assigned |= {TopicPartition(p.topic, p.partition): (p.offset, p.leader_epoch) for p in partitions}

    def seek(self, partition: ClientPartition) -> None:
        assert self.assigned[TopicPartition(partition.topic, partition.partition)][0] == partition.offset

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        for each in partitions:
            del self.assigned[TopicPartition(each.topic, each.partition)]


class Table:
    """One handler's partitions (or several handlers'), what they reported, and whose outputs were refused."""

    def __init__(
        self,
        slots: Slots | None = None,
        completion: Completion = ON_RETURN,
        ahead_bytes: int = 1_000_000,
        delays: Mapping[str, int] | None = None,
        outbox_records: int = 1000,
        others: Mapping[str, Slots] | None = None,
    ) -> None:
        """`slots`: of runs, one call at a time, unless said otherwise. `others`: of other handlers, by topic. Letters
        go apart from outputs where these are sent at least once."""
        self.now = 0.0
        self.client: Any = PlayedClient()
        self.ledger = Ledger.create(64)
        self.ledger.lease_ns = 2**62
        self.reports: list[FromWorker] = []
        self.refused: list[InFlight] = []
        self.slots = slots or Slots("partition", 1, runs=True)
        self.outbox = Outbox(Limits(outbox_records, 1 << 20, 0.0), lambda: self.now)
        made = parts(self.client, self.ledger, self.reports.append, ahead_bytes, delays)
        self.counters = made.counters
        self.letters = Outbox(Limits(outbox_records, 1 << 20, 0.0), lambda: self.now)
        apart = self.letters if completion is ON_ACKNOWLEDGEMENT else None
        deliveries = Deliveries(completion, None if completion is ON_RETURN else self.outbox, apart)
        self.table = Partitions(made, lambda topic: (others or {}).get(topic, self.slots), deliveries, self)

    def wake(self) -> None:
        """The test starts what may start."""

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Its outputs are refused."""
        self.refused.append(flight)

    def start(self, tp: TopicPartition = P0, grant: int = 1, offset: int = 0, **more: Any) -> None:
        self.table.start([FetcherStart(grant, grant, *tp, offset, NO_EPOCH, **more)])

    def fetch(self, tp: TopicPartition, *offsets: int, epoch: int = 0, now: int = 0, keys: str = "") -> None:
        """The client has given these out."""
        self.table.feed(tp, epoch, messages(tp, *offsets, keys=keys), now)

    def begin(self, tp: TopicPartition = P0, *offsets: int, **more: Any) -> None:
        """Hand the partition out, from the first of these on, and fetch them."""
        grant = tp.partition + 1
        self.start(tp, grant, offsets[0] if offsets else 0, **more)
        self.table.begin_turn(0)
        if offsets:
            self.fetch(tp, *offsets)

    def turn(self) -> None:
        """The loop goes round."""
        self.table.balance(0)
        self.table.begin_turn(0)

    def take(self) -> InFlight:
        """What a free slot gets."""
        flight = self.table.start_next(self.slots)
        assert flight is not None
        return flight

    def started(self) -> list[InFlight]:
        """All that may start now."""
        found = []
        while (flight := self.table.start_next(self.slots)) is not None:
            found.append(flight)
        return found

    def handle_all(self, *, sends: bool = False) -> list[int]:
        """One after the other, all that may start; their offsets."""
        handled = []
        while (flight := self.table.start_next(self.slots)) is not None:
            handled += offsets_of(flight)
            self.handle(flight, sends=sends)
        return handled

    def handle_until_fetched_again(self) -> list[int]:
        """What is kept of a partition that was set aside, until that is mostly done; the offsets."""
        handled = []
        while not self.client.assigned:
            flight = self.take()
            handled += offsets_of(flight)
            self.handle(flight)
            self.turn()
        return handled

    def handle(self, flight: InFlight, count: int | None = None, *, sends: bool = False) -> None:
        """The handler has returned, for so many records of a run; nothing else is started by that."""
        handled = flight.messages[:count]
        for message in handled if sends else ():
            offset = message.offset() or 0
            flight.leave(offset, offset + 1, [OUTPUT])
        if self.slots.runs:
            if handled:
                self.ledger.cells[flight.tracker.cell] = (handled[-1].offset() or 0) + 1
            self.table.returned(flight, len(handled), 10, len(handled))
        else:
            lease, self.ledger.lease_ns = self.ledger.lease_ns, 0
            self.table.finish(flight)
            self.ledger.lease_ns = lease

    def deliver(self, outbox: Outbox | None = None) -> None:
        """Everything that is in the outbox: that of outputs, or this one."""
        outbox = outbox or self.outbox
        batch = taken(outbox)
        self.table.delivered(reached(outbox.live(batch)))
        outbox.done(batch)

    def give_up(self, flight: InFlight) -> None:
        """It has failed, and a letter takes its place."""
        cause = Cause("ValueError", "no", "", 1)
        LetterBox("letters", "g").put(flight, GivenUp(dead_letters("letters"), cause))
        self.table.pass_over(Attempt(flight), End.DEAD_LETTER, "handler")

    def consumed(self, grant: int = 1) -> int:
        """By the ledger."""
        return self.ledger.read(grant, grant).consumed.offset


@contextmanager
def nothing_stays_in_memory() -> Iterator[None]:
    """Records that come into flight within are out of memory behind it, with what they left, their lanes, and grants
    that have ended. No collector of garbage has a part in that: it comes seldom, and entries are none of its own."""

    def alive() -> list[Any]:
        found = [each for each in gc.get_objects() if type(each) in (InFlight, Lane, Grant)]
        return [each for each in found if type(each) is not Grant or each.tracker.closed]

    before = alive()
    gc.disable()
    try:
        yield
        assert [type(each) for each in alive() if not any(each is other for other in before)] == []
    finally:
        gc.enable()


def messages(tp: TopicPartition, *offsets: int, size: int = 1, keys: Sequence[str] = "") -> list[Message]:
    """Records with these offsets, and keys where they are given."""
    return [
        Message(
            topic=tp.topic,
            partition=tp.partition,
            offset=offset,
            key=keys[at].encode() if keys else None,
            value=b"x" * size,
            timestamp=(1, 1000),
            leader_epoch=0,
        )
        for at, offset in enumerate(offsets)
    ]


def offsets_of(flight: InFlight) -> list[int]:
    return [message.offset() or 0 for message in flight.messages]
