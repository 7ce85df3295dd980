"""One partition that is ours, or is still being let go of.

What is known of the time of the oldest record that one partition has not handled. Pure.

`kunicorn.supervisor.partitions.lag` has the rules, and asks the brokers for what no worker tells.
"""

from __future__ import annotations

from uuid import UUID

from kunicorn.group.states import PartitionEvent, PartitionState, advance
from kunicorn.ipc import bitmap, clock
from kunicorn.ipc.ledger import NOT_STARTED, SlotReading
from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.supervisor.partitions.poison import NOTHING_HELD, Held, Suspicions
from kunicorn.supervisor.workers.process import WorkerProcess
from kunicorn.text import topic_id_text


class Age:
    """The age of the oldest unhandled record, in milliseconds since 1970; outlives the partition's grants."""

    def __init__(self) -> None:
        self._taken_ms = NO_TIMESTAMP
        self._caught_up_ms = NO_TIMESTAMP
        self._found = (NO_OFFSET, NO_TIMESTAMP)
        self._furthest = NO_OFFSET

    def taken(self, timestamp_ms: int) -> None:
        """Note the time of a record that a worker has taken in hand."""
        if timestamp_ms != NO_TIMESTAMP:
            self._taken_ms = timestamp_ms

    def end_seen(self, position: int, end: int, at_ms: int) -> None:
        """Note that the log ended at `end`, at `at_ms` or later."""
        if position < self._furthest:
            self._caught_up_ms = NO_TIMESTAMP  # Set back: what is unhandled now was written before.
        if position >= end:
            self._caught_up_ms = at_ms
        self._furthest = position

    def found(self, position: int, timestamp_ms: int) -> None:
        """Note the log's word for the time of the record at `position`; `NO_TIMESTAMP`: it cannot say."""
        self._found = (position, timestamp_ms)

    def known_at(self, position: int) -> bool:
        """Whether the log was asked about the record at that position."""
        return self._found[0] == position

    def oldest_ms(self, position: int | None, *, in_hand: bool) -> int:
        """The time of the record at `position`; `NO_TIMESTAMP` while unknown."""
        if in_hand and self._taken_ms != NO_TIMESTAMP:
            return self._taken_ms
        at, timestamp_ms = self._found
        if at == position and timestamp_ms != NO_TIMESTAMP:
            return timestamp_ms
        return max(self._taken_ms, self._caught_up_ms)


class Partition:
    """State, position and grant of a partition that is ours. Positions are the next offset to handle.

    Its methods alone write to it; whoever has it from the table may read it.
    """

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.state, self.since = PartitionState.RESOLVING, clock.now()
        self.reason: str | None = None
        self.starts = 0
        """How many it was given: a look-up from before the newest one has nothing to say any more."""
        self.position: Position | None = None
        """Consumed up to here; while a worker holds the partition, as of the last look into its ledger."""
        self.committed: int | None = None
        self.committed_done = ""
        """What the broker was told with it of records that are done beyond it."""
        self.stop, self._short_since = NO_OFFSET, float("inf")
        """Records from that offset on are not ours to handle; `NO_OFFSET`: there is no end. And since when the log has
        ended before it, by the brokers' word (seconds of `clock.now`)."""
        self.lost = self.disowned = False
        """Another member may own it, or its topic is gone: nothing is committed any more. Disowned: for no more than
        that its topic seems to be gone, which a broker that is behind may have said."""
        self.topic_id: UUID | None = None
        """Which topic of that name it belongs to; None where the brokers are too old to say."""
        self.fresh = False
        """Its topic was created anew while we owned it, or before anybody has begun with it: it starts at its
        beginning, whatever is committed, or stored by a handler that keeps offsets. Taken back once a worker has begun,
        as what is stored then is the new topic's."""
        self.grant, self.slot = 0, -1
        self.worker: WorkerProcess | None = None
        self.last_worker: int | None = None
        self.age, self.blame = Age(), Suspicions()
        self.reset = False
        """Its position was not in the log: a handler that keeps offsets is told the new one, not asked for its own."""
        self.done = bitmap.NONE_AHEAD
        """Offsets from the position on that are done already, as told under grants that are over."""
        self.began_with: int | None = None
        """How many partitions the topic had when the group began to consume it; None: not known. Every commit says it,
        so that whoever finds a partition without an offset knows whether that partition was added since."""
        self.denied = False
        """It was halted because this user may not read the topic, not for another reason since."""
        self.denied_until = float("-inf")
        """That was told; it is told anew when it happens later than that (seconds of `clock.now`)."""
        self.by_handler = False
        """Halted by a record that the handler could not handle: other code may."""
        self.log_end: int | None = None
        self.demand = 0.0
        """What it takes of a worker's capacity, as last measured (`supervisor.partitions.balance`)."""
        self.reading: SlotReading = NOT_STARTED
        self.undelivered = False
        """Something was handled under its last grant that nobody delivers any more, or whose transaction is aborted."""

    def advance(self, event: PartitionEvent, reason: str | None = None) -> None:
        """Advance the state; `reason` is what `/status` says of the new one."""
        state = advance(self.state, event)
        if state is self.state is PartitionState.PAUSED:
            return  # Why it is paused outlives the worker that let go of it.
        if state is not self.state:
            self.state, self.since = state, clock.now()
        self.reason = reason

    def entered(self, topic_id: UUID | None, *, fresh: bool = False) -> None:
        """Note which topic of that name it belongs to, and whether it starts at its beginning whatever is committed."""
        self.topic_id, self.fresh = topic_id, fresh

    def end_at(self, offset: int) -> None:
        """Leave what comes from `offset` on to others: no record of it is handled here."""
        self.stop = offset

    def finish(self) -> None:
        """Put the position to the end: a marker of a transaction may be all that is left before it."""
        self.position = Position(self.stop)
        self.reason = f"handled up to its end, offset {self.stop}"

    def halt(self, reason: str, *, by_handler: bool = False, denied: bool = False) -> None:
        """Halt it: nothing of it is handled until a person acts, or until this user may read the topic (`denied`)."""
        self.by_handler, self.denied = by_handler, denied
        if self.beside_the_log and not denied:
            # No position takes the place of that one. Told as one, it would replace what a person has stored since.
            self.reset = False
        self.advance(PartitionEvent.HALT, reason)

    def lose(self) -> None:
        """Commit nothing of it any more: another member may own it, or its topic is gone."""
        self.lost, self.disowned = True, False

    def disown(self) -> None:
        """Commit nothing of it for as long as another topic has its topic's name."""
        self.disowned = self.disowned or not self.lost
        self.lost = True

    def own_again(self) -> None:
        """Its topic has its name after all."""
        self.lost = self.disowned = False

    def wait_for_start(self, reason: str) -> None:
        """Note why its start offset is not known yet."""
        self.reason = reason

    def out_of_range(self, error: str) -> None:
        """Look its start offset up anew: the position is not in the log."""
        self.advance(PartitionEvent.OUT_OF_RANGE, error)
        self.found_cut()

    def found_cut(self) -> None:
        """Note that the log does not hold its position. Where there is none, there is none to replace."""
        self.reset = self.position is not None

    def forgive(self) -> None:
        """Forget whom its workers died of: its records get as many tries as new ones."""
        self.blame = Suspicions()

    def commit_seen(self, offset: int, done: str = "") -> None:
        """Note what the brokers have: the committed offset, and its metadata of records done beyond it."""
        self.committed, self.committed_done = offset, done

    def put_at(self, offset: int) -> None:
        """Begin at the offset that a person asks for; its record gets as many tries as a new one.

        What is committed is not known until it is answered: a commit of that offset may count and its answer be lost,
        and handling may come back to what was committed before, which would look committed.
        """
        self.begin_at(Position(offset))
        self.forgive()
        self.fresh = False
        self.committed, self.committed_done = None, ""

    def measured(self, demand: float) -> None:
        """Note what it takes of a worker's capacity."""
        self.demand = demand

    def denial_told(self, quiet_until: float) -> None:
        """Note that its denial is in the log; it is not told again before `quiet_until` (seconds of `clock.now`)."""
        self.denied_until = quiet_until

    def read_ledger(self) -> None:
        """Read the ledger: a started fetcher shows there, and so does what it has consumed."""
        if self.worker is None:
            return
        self.reading = self.worker.ledger.read(self.slot, self.grant)
        if not self.reading.started:
            return
        self.position = self.reading.consumed
        self.reset = self.fresh = False
        self.age.taken(self.reading.timestamp_ms)
        if self.state is PartitionState.STARTING:
            self.advance(PartitionEvent.FETCHED)

    def end_seen(self, end: int | None, at_ms: int) -> None:
        """Note the broker's word for the log's end; None: it did not say. `at_ms`: when it was asked."""
        self.log_end = end
        self.read_ledger()
        if end is not None and self.position is not None:
            self.age.end_seen(self.position.offset, end, at_ms)

    def cut_short(self, for_seconds: float) -> int | None:
        """Have it end where its log does, if that has ended before its stop for so long; what it was to end at before,
        None where nothing changes. Its position is in the log by then: one that is not is looked up first.

        Caller: after `end_seen`.
        """
        end, now = self.log_end, clock.now()
        if end is None or self.position is None or not self.position.offset <= end < self.stop:
            self._short_since = float("inf")
            return None
        self._short_since = min(self._short_since, now)
        if now - self._short_since < for_seconds:
            return None
        self._short_since, before, self.stop = float("inf"), self.stop, end
        return before

    @property
    def seems_short(self) -> bool:
        """Whether its log seems to end before its stop."""
        return self._short_since < float("inf")

    def record_seen(self, offset: int) -> None:
        """Note that there is a record at that offset: a lag of 0 until brokers are asked again would hide it."""
        if self.log_end is not None and self.log_end <= offset:
            self.log_end = offset + 1

    @property
    def lag(self) -> int | None:
        """Number of offsets up to the log's end, or to where ours ends, by what is known; None: it is not."""
        if self.log_end is None or self.position is None:
            return None
        end = self.log_end if self.stop == NO_OFFSET else min(self.log_end, self.stop)
        return max(0, end - self.position.offset)

    @property
    def beside_the_log(self) -> bool:
        """Whether its position is not in the log, and another one is being looked up."""
        return self.reset and self.state is PartitionState.RESOLVING

    @property
    def waits_for_the_right(self) -> bool:
        """Whether it is halted until this user may read the topic."""
        return self.denied and self.state is PartitionState.HALTED

    @property
    def comes_back(self) -> bool:
        """Whether it is with no worker only for the moment, and goes on in the one it was with."""
        looked_up = self.state is PartitionState.RESOLVING
        return (looked_up or self.waits_for_the_right) and self.last_worker is not None

    @property
    def busy(self) -> bool:
        """Whether its worker has a record of it in hand at this moment."""
        self.read_ledger()
        return self.reading.in_hand != NO_OFFSET

    def begin_at(self, start: Position) -> None:
        """Set the position. Offsets known as done ahead of the old one are dropped, as they may be other records by
        now, or are to be handled again. Poison counts are kept: with transactions, this follows every crash. But where
        the log was cut before the position they are of records that are gone, and would keep their successors from the
        handler."""
        if self.position is not None and start.offset < self.position.offset:
            self.forgive()
        self.position = start._replace(done="")
        self.starts += 1
        self.done = bitmap.read_committed(start.offset, start.done, topic_id_text(self.topic_id))
        if (began_with := bitmap.partitions(start.done)) is not None:
            self.began_with = began_with

    def reached(self) -> Position | None:
        """The position, and the metadata it is committed with: what is done beyond it, and `began_with`."""
        if self.position is None:
            return None
        ahead = self._done_beyond(self.position.offset)
        # At each look for every partition, and mostly there are none: the id is written out only where there are.
        text = ahead.text(topic_id_text(self.topic_id)) if ahead.bits else ""
        return self.position._replace(done=bitmap.with_partitions(self.began_with, text))

    def _done_beyond(self, offset: int) -> bitmap.Ahead:
        told = self.done.beginning(offset)
        if self.worker is not None and self.reading.started and self.worker.ledger.marked(self.slot):
            return told.with_those(self.worker.ledger.done(self.slot).ahead(offset))
        return told

    def held(self, *, batches: bool) -> Held:
        """The records that may have killed its worker. Caller: after `read_ledger`, once the worker is dead and its
        ledger final.

        `batches`: a call of the handler has all that is in hand, not one after the other.
        """
        if self.worker is None or not self.reading.started:
            return NOTHING_HELD
        reading, ledger = self.reading, self.worker.ledger
        consumed, first = reading.consumed.offset, reading.in_hand
        if ledger.marked(self.slot):
            every = ledger.in_hand(self.slot).from_offset(consumed) - self._done_beyond(consumed).offsets()
            return Held(every, every & {first})
        in_hand = range(0) if first == NO_OFFSET else range(first, reading.hand_end)
        if not batches or reading.hand_count == 1:
            in_hand = in_hand[:1]  # Also of a batch: behind a single record may lie offsets that are done already.
        if not ledger.delivers(self.slot) or reading.hand_offset <= consumed:
            # Within a run a call stores where the last record ended, and the next one may lie behind a gap.
            gapless = reading.hand_end - reading.hand_offset == reading.hand_count
            exact = gapless or first in (NO_OFFSET, reading.hand_offset)
            return Held(in_hand, in_hand, before=NO_OFFSET if exact else reading.hand_end)
        return Held(range(consumed, max(reading.hand_offset, in_hand.stop)), in_hand)

    def note_undelivered(self) -> None:
        """Note whether its worker leaves something handled that is not delivered. Caller: after `read_ledger`, once the
        worker delivers nothing of it any more."""
        if self.worker is None or not self.reading.started:
            return
        reading, ledger = self.reading, self.worker.ledger
        if ledger.marked(self.slot):
            self.undelivered = len(self.held(batches=False).every) > reading.hand_count
        else:
            self.undelivered = ledger.delivers(self.slot) and reading.hand_offset > reading.consumed.offset

    def hand_to(self, worker: WorkerProcess, grant: int) -> None:
        """Hand it to the worker under this grant, from `position` on."""
        self.grant, self.slot, self.worker = grant, worker.take_slot(), worker
        self.undelivered = False
        self.last_worker = worker.number
        self.reason = f"handed to worker {worker.number}"

    def move_to(self, number: int) -> None:
        """Have it go on in worker `number` once the one that has it has let go of it."""
        self.last_worker = number

    def forget_position(self) -> None:
        """Drop the position: only the brokers know whether the last transaction counts."""
        self.position = None

    def reported(self, position: Position) -> None:
        """Set the position to what its worker reported with its last word."""
        self.position = position._replace(done="")
        told = bitmap.read_ahead(position.offset, position.done)
        self.done = self.done.beginning(position.offset).with_those(told)

    def take_back(self) -> None:
        """End the grant: no worker of ours has the partition any more."""
        if self.position is not None:
            first = self.position.offset
            self.done = self._done_beyond(first)
            self.blame.passed(first)
        if self.worker is not None:
            self.worker.free_slot(self.slot)
        self.grant, self.slot, self.worker, self.reading = 0, -1, None, NOT_STARTED


def is_at_its_end(partition: Partition) -> bool:
    """Whether the partition is handled up to its `stop`."""
    partition.read_ledger()
    position = partition.position
    return position is not None and partition.stop != NO_OFFSET and position.offset >= partition.stop
