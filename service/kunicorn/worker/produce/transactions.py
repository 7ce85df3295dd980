"""Exactly once: a batch's outputs and its offsets are committed in one Kafka transaction (KIP-98, KIP-447).

Nothing is open at the brokers while the handler works: outputs are sent when the batch is complete, its transaction
lives for milliseconds. One that is aborted is sent again from memory; the handler is not asked again.
1. The supervisor is asked, right before, as whom to commit: offsets under a generation that is over are refused.
2. What was lost to another member meanwhile is left out: checked after that answer, which the supervisor sends behind
   the order to stop what is lost.
3. Several producers take turns, each in a thread of its own: while one waits for the brokers to commit, the next one
   produces. Nothing overtakes (`steps.BEHIND`). And the brokers accept nothing more from a producer before its last
   transaction's markers are written; the client would wait 20 ms to ask again (CONCURRENT_TRANSACTIONS).
4. A fatal error ends the worker, and so does a call of the client that never ends (`CallWatch`). Its successor has the
   same transactional ids and ends what was left open before it gets partitions; where they begin, the broker says.

As whom offsets are committed in a transaction: asked of the supervisor, told to the brokers (KIP-447).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted, FromWorker
from kunicorn.librdkafka.errors import fault_of
from kunicorn.observe import catalogue as c
from kunicorn.worker.produce.outbox import (
    ENDS,
    OPEN,
    STEPS,
    DeliveryListener,
    Entry,
    Outbox,
    OutputBatch,
    Result,
    Step,
    TransactionOrder,
    Turn,
    result_of,
)
from kunicorn.worker.produce.request_sizes import RequestSizes
from kunicorn.worker.produce.sender import BACKOFF, Fenced, outputs_in, put, reached, refusal
from kunicorn.worker.produce.telemetry import Output, SendOperation, SendTelemetry


def metadata_bytes(group: str, identity: CommitAs) -> bytes:
    """Group metadata of this member as librdkafka passes it about (`rd_kafka_consumer_group_metadata_write`): no
    consumer of ours has joined, so that its own would name nobody.
    """
    instance = b"\1" if identity.instance_id is None else b"\0" + identity.instance_id.encode() + b"\0"
    generation = identity.generation.to_bytes(4, "little", signed=True)
    return b"CGMDv2:" + generation + group.encode() + b"\0" + identity.member_id.encode() + b"\0" + instance


class GroupMetadata:
    """Group metadata for transactions: questions to the supervisor as which member to commit, and its answers, by
    number.

    Each of a worker's transactions asks for itself. From its question until `release` it has a window, for which the
    supervisor lets JoinGroup wait a while.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._answers: dict[int, CommitAs | None] = {}
        """Of each open window; None until it is there."""

    def request(self, tell: Callable[[FromWorker], None]) -> int:
        """Open a window; its number. Caller: a sender's thread."""
        with self._changed:
            self._last = number = self._last + 1
            self._answers[number] = None
        tell(CommitWanted(number))
        return number

    def answered(self, answer: CommitAs) -> None:
        """Caller: the control thread."""
        with self._changed:
            if answer.number in self._answers:
                self._answers[answer.number] = answer
                self._changed.notify_all()

    def wait(self, number: int, seconds: float) -> CommitAs | None:
        """Answer to that question; None if there is none for so long. Caller: the sender's thread that asked."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers[number] is not None, seconds)
            return self._answers[number]

    def release(self, number: int, tell: Callable[[FromWorker], None]) -> None:
        """Close the window: its transaction is committed or aborted. Caller: the same thread."""
        with self._changed:
            del self._answers[number]
        tell(CommitOver(number))


log = logging.getLogger("kunicorn.worker")

_CALL_SECONDS = 5.0
"""How long one call of the client may take; it is repeated until it has an end."""
_WAIT_SECONDS = 0.5
"""Likewise for what others have to do first."""
_AGAIN_SECONDS = 0.02
"""A call that ran into another one's end says so at once."""
_HANGS_SECONDS = 2 * _CALL_SECONDS
"""A call that lasts longer does not keep to its time-out."""
_LOOK_SECONDS = 2.0
"""Of the time between two looks at a call no more counts: a process that stood still has none that hangs."""


class CallWatch:
    """How long a call of the client has lasted, as seen by somebody else.

    `send_offsets_to_transaction` ignores its time-out while the group's coordinator is away, and may never end once it
    is back (confluentinc/librdkafka 5456 and 5511): the thread that is in it can tell nobody.
    """

    def __init__(self) -> None:
        self._step: tuple[Step] | None = None
        """Of the call that is under way: another object for each."""
        self._seen: tuple[Step] | None = None
        self._looked_at = self._lasted = 0.0

    def begun(self, step: Step) -> None:
        """Caller: the thread that is about to call, in that step."""
        self._step = (step,)

    def ended(self) -> None:
        """Caller: the same thread."""
        self._step = None

    def look(self, now: float) -> tuple[Step, float] | None:
        """Which step the call is of that is under way, and for how many seconds it was seen; None without one. `now`:
        seconds. Caller: the control thread, each second.
        """
        step = self._step
        if step is None or step is not self._seen:
            self._lasted = 0.0
        else:
            self._lasted += min(now - self._looked_at, _LOOK_SECONDS)
        self._seen, self._looked_at = step, now
        return None if step is None else (step[0], self._lasted)


class Table(DeliveryListener, Protocol):
    """The table of partitions, as transactions see it."""

    def places(self, batch: OutputBatch, live: Sequence[Entry], cluster_id: str) -> list[TopicPartition]:
        """Offsets to commit for the partitions of `live`, once these of the batch, and all before it, are delivered.
        `cluster_id`: empty where it is not known. Caller: a sender's thread.
        """

    def deny(self, topic: str, error: KafkaError) -> None:
        """End the partitions of a topic that this user may not read: the client may say so never, as it is not asked
        for more while what there is waits for a transaction. Caller: a sender's thread.
        """


class Shared(NamedTuple):
    """Parts that the transactions of one worker share."""

    group: str
    outbox: Outbox
    table: Table
    telemetry: SendTelemetry
    group_metadata: GroupMetadata
    order: TransactionOrder
    tell: Callable[[FromWorker], None]
    """Sends to the supervisor."""
    timeout: float
    """Seconds after which the brokers end a transaction; it waits no more than half of them for the one before."""
    sizes: RequestSizes


class Transactions:
    """`Sender` that delivers in transactions of one producer. Caller: its sender's thread."""

    often = True

    def __init__(self, producer: Producer, shared: Shared) -> None:
        self._producer = producer
        self._shared = shared
        self._number = 0
        """Of the window at the supervisor; 0: none is open."""
        self._identity: CommitAs | None = None
        self._batch = OutputBatch([])
        self._live: Sequence[Entry] = ()
        self._piece: Sequence[Output] = ()
        """What was produced last, all at once."""
        self._failed: list[tuple[Output, KafkaError]] = []
        """Of that."""
        self._sending: SendOperation | None = None
        self._topic_by_topic = False
        """Offsets are sent so, as those of one topic are refused, and the client does not say which."""
        self._rewound: dict[int, int] = {}
        """Refusals that this sender met, by origin; see `DeliveryListener.rewind`."""
        self._began_at = self._opened_at = 0.0
        self._why = ""
        self._watch = CallWatch()
        self._steps: Mapping[Step, Callable[[], Result]] = {
            Step.ASK: self._ask,
            Step.BEGIN: self._begin,
            Step.PRODUCE: self._produce,
            Step.FLUSH: self._flush,
            Step.OFFSETS: self._send_offsets,
            Step.COMMIT: self._commit,
            Step.ABORT: self._abort,
            Step.REST: lambda: Result.OK,
            Step.EMPTY: lambda: Result.OK,
        }

    def deliver(self, batch: OutputBatch) -> None:
        step = self.start(batch)
        while step not in ENDS:
            step = self.advance(step)
        self.end(step)

    def start(self, batch: OutputBatch) -> Step:
        """Begin with a batch; the first step."""
        self._batch, self._rewound, self._topic_by_topic = batch, {}, False
        self._began_at = time.monotonic()
        return Step.ASK

    def advance(self, step: Step) -> Step:
        """Try that step, for seconds at most; the step that follows."""
        result = self._attempt(step)
        if step is Step.ABORT and result is Result.OK:
            log.warning(f"a transaction of {len(self._live)} entries was aborted, it is sent again: {self._why}")
            time.sleep(BACKOFF.seconds(self._batch.aborts, random.random()))
        return STEPS[step, result]

    def end(self, step: Step) -> None:
        """End with the batch: tell table, order and counters how it went, and close the window. Raises `Fenced`."""
        self._close_window()
        if step is Step.FENCED:
            raise Fenced(
                f"its producer is of no use any more, a successor takes over: {self._why}. Fenced again and again: "
                f"another member has the same producing.transactional_id_prefix; make it unique"
            )
        telemetry, table = self._shared.telemetry, self._shared.table
        if self._live:
            telemetry.counters.count(c.TRANSACTIONS, 1, "committed")
            telemetry.counters.observe(c.TRANSACTION_SECONDS, time.monotonic() - self._began_at)
            telemetry.count_sent(self._live)
        table.delivered(reached(self._live))
        if self._rewound:
            table.rewind(self._rewound)
        self._shared.order.delivered(self._batch)
        # Else they would stay until the next batch, be it hours.
        self._live, self._piece = (), ()

    def serve(self) -> None:
        """Keep the client's login fresh."""
        self._producer.poll(0)

    def hangs(self, now: float) -> str | None:
        """Why a call of its client will never end, as it looks; None as far as is known. `now`: seconds. Caller: the
        control thread, each second.
        """
        seen = self._watch.look(now)
        # Brokers that come back before they have ended the transaction may yet let the call end.
        if seen is None or seen[1] < max(self._shared.timeout, _HANGS_SECONDS):
            return None
        step, lasted = seen
        return (
            f"a call of the client, for the step {step.value!r} of a transaction, has not ended for {lasted:.0f} s, "
            "longer than the brokers keep that open: a successor takes over. Where the group's coordinator was away "
            "the client may wait for ever (confluentinc/librdkafka 5456)"
        )

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _attempt(self, step: Step) -> Result:
        order = self._shared.order
        turn = order.wait(self._batch, step, _WAIT_SECONDS)
        if turn is not Turn.OURS:
            return self._held_up(step, turn)
        if step is not Step.PRODUCE:  # Outputs are waited for as long as `delivery.timeout.ms` says, piece by piece.
            self._watch.begun(step)
        try:
            result = self._steps[step]()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            remedy = "" if error.retriable() else f"; {fault_of(error.code()).remedy()}"
            self._why = f"{step.value}: {error.name()}: {error.str()}{remedy}"
            self._shared.outbox.note_trouble(self._why)
            if (result := result_of(error)) is Result.AGAIN:
                time.sleep(_AGAIN_SECONDS)
        finally:
            self._watch.ended()
        if result is Result.OK:
            order.passed(self._batch, step)
        return result

    def _held_up(self, step: Step, turn: Turn) -> Result:
        self._producer.poll(0)
        if turn is Turn.BROKEN:
            self._why = "the one before it was aborted"
            return Result.ABORTABLE
        if step in OPEN and time.monotonic() - self._opened_at > self._shared.timeout / 2:
            self._why = "the one before it takes too long"
            return Result.ABORTABLE
        return Result.AGAIN

    def _ask(self) -> Result:
        shared = self._shared
        shared.order.begin(self._batch)
        self._live = shared.outbox.live(self._batch)
        if not self._live:
            return Result.EMPTY
        self._number = self._number or shared.group_metadata.request(shared.tell)
        self._identity = shared.group_metadata.wait(self._number, _WAIT_SECONDS)
        if self._identity is None:
            shared.outbox.note_trouble("the member may not commit: its group rebalances, or no coordinator answers")
            return Result.AGAIN
        self._live = shared.outbox.live(self._batch)
        return Result.OK if self._live else Result.EMPTY

    def _begin(self) -> Result:
        self._failed, self._piece = [], ()
        self._producer.begin_transaction()
        return Result.OK

    def _produce(self) -> Result:
        self._opened_at = time.monotonic()
        outputs = outputs_in(self._live)
        self._sending = self._shared.telemetry.begun(outputs)
        for piece in self._shared.sizes.pieces(outputs):
            if self._piece and not self._is_answered():
                return Result.ABORTABLE
            if self._failed:
                break  # It is aborted anyway.
            self._piece = piece
            put(self._producer, piece, self._note)
        return Result.ABORTABLE if self._refuse() else Result.OK

    def _is_answered(self) -> bool:
        """Wait for the brokers' answers, which come within `delivery.timeout.ms`, good or bad. False where the client
        does not wait for them: this step is not tried again, as its outputs would be in the transaction twice.
        """
        try:
            while self._producer.flush(_CALL_SECONDS):
                pass
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if result_of(error) is not Result.AGAIN:
                raise
            self._why = f"flush: {error.name()}: {error.str()}"
            return False
        return True

    def _flush(self) -> Result:
        if self._producer.flush(_CALL_SECONDS):
            return Result.AGAIN
        self._told_of_sending()
        return Result.ABORTABLE if self._refuse() or self._failed else Result.OK

    def _send_offsets(self) -> Result:
        shared = self._shared
        assert self._identity is not None
        offsets = shared.table.places(self._batch, self._live, self._identity.cluster_id)
        # Looked at last: the table forgets the records of a partition that is given up, and how far it would be.
        if len(shared.outbox.live(self._batch)) < len(self._live):
            self._why = "some of its partitions were given up meanwhile"
            return Result.ABORTABLE
        metadata = metadata_bytes(shared.group, self._identity)
        by_topic = defaultdict[str, list[TopicPartition]](list)
        for each in offsets:
            by_topic[each.topic].append(each)
        for piece in by_topic.values() if self._topic_by_topic else [offsets]:
            try:
                self._producer.send_offsets_to_transaction(piece, metadata, _CALL_SECONDS)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    self._topic_by_topic = True
                    if piece is not offsets or len(by_topic) == 1:
                        shared.table.deny(piece[0].topic, error)
                raise
        return Result.OK

    def _commit(self) -> Result:
        self._producer.commit_transaction(_CALL_SECONDS)
        return Result.OK

    def _abort(self) -> Result:
        self._producer.abort_transaction(_CALL_SECONDS)
        self._told_of_sending()
        self._refuse()
        self._close_window()
        self._shared.telemetry.counters.count(c.TRANSACTIONS, 1, "aborted")
        # Behind the last refusal: who begins anew from here on does so without what is refused.
        self._shared.order.aborted(self._batch)
        return Result.OK

    def _told_of_sending(self) -> None:
        if self._sending is not None:
            self._sending.ended(self._failed)
            self._sending = None

    def _note(self, output: Output, error: KafkaError) -> None:
        self._failed.append((output, error))

    def _refuse(self) -> bool:
        """Whether some output will never be taken: its record is left out of the next transaction. What is too large
        together with others is none: the next one sends it in smaller pieces.
        """
        refused = list[tuple[Entry, BaseException]]()
        together = set(map(id, self._shared.sizes.refused_together(self._piece, self._failed)))
        for failed, error in self._failed:
            entry, output = failed
            self._why = f"an output was not delivered: {error.name()}: {error.str()}"
            if id(failed) not in together and (why := refusal(entry, output, error)) is not None:
                refused.append((entry, why))
                self._why = str(why)
        self._rewound.update(self._shared.outbox.refuse(refused))
        return bool(refused)

    def _close_window(self) -> None:
        if self._number:
            self._shared.group_metadata.release(self._number, self._shared.tell)
            self._number = 0
