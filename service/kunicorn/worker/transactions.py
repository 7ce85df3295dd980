"""Exactly once: a batch's outputs and its offsets are committed in one Kafka transaction (KIP-98, KIP-447).

Nothing is open at the brokers while the handler works: outputs are sent when the batch is complete, its transaction
lives for milliseconds. One that is aborted is sent again from memory; the handler is not asked again.
1. The supervisor is asked, right before, as whom to commit: offsets under a generation that is over are refused.
2. What was lost to another member meanwhile is left out: checked after that answer, which the supervisor sends behind
   the order to stop what is lost.
3. Two producers take turns: the brokers accept nothing more from one before its last transaction's markers are written,
   and the client would wait up to 100 ms to ask again (CONCURRENT_TRANSACTIONS). The next transaction still begins
   behind the commit of the one before.
4. A fatal error ends the worker. Its successor has the same transactional ids and ends what was left open before it
   gets partitions; where they begin, the broker says.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import cycle

from confluent_kafka import KafkaError, KafkaException, Producer

from kunicorn.pipes.messages import CommitAs, CommitOver, CommitWanted, FromWorker
from kunicorn.worker.acknowledging import Parcel, backoff, parcels_of, put, reached
from kunicorn.worker.outbox import Entry, Outbox
from kunicorn.worker.producing import Fenced
from kunicorn.worker.refusals import refusal
from kunicorn.worker.settling import SettlingFetcher
from kunicorn.worker.tally import Tally

log = logging.getLogger("kunicorn.worker")

_CALL_SECONDS = 5.0
"""How long one call of the client may take; it is repeated until it has an end."""
_ANSWER_SECONDS = 0.5
_AGAIN_SECONDS = 0.02
"""A call that ran into another one's end says so at once."""


class Step(Enum):
    """What is done next about one batch."""

    #: Ask the supervisor as whom to commit; drop what is not ours any more.
    ASK = "ask"
    BEGIN = "begin"
    PRODUCE = "produce"
    OFFSETS = "offsets"
    COMMIT = "commit"
    ABORT = "abort"
    #: It is committed, or nothing of it was left to commit.
    DONE = "done"
    #: The producer is of no use any more.
    FENCED = "fenced"


class Result(Enum):
    """How a step ended."""

    OK = "ok"
    #: Not decided: the same call once more.
    AGAIN = "again"
    #: This transaction cannot be committed; another one may.
    ABORTABLE = "abortable"
    FATAL = "fatal"
    #: The batch is empty by now.
    EMPTY = "empty"


S, R = Step, Result

STEPS: Mapping[tuple[Step, Result], Step] = {
    (S.ASK, R.OK): S.BEGIN,
    (S.ASK, R.AGAIN): S.ASK,
    (S.ASK, R.EMPTY): S.DONE,
    (S.BEGIN, R.OK): S.PRODUCE,
    (S.BEGIN, R.AGAIN): S.BEGIN,
    # Left over from a call whose end was not seen.
    (S.BEGIN, R.ABORTABLE): S.ABORT,
    (S.BEGIN, R.FATAL): S.FENCED,
    (S.PRODUCE, R.OK): S.OFFSETS,
    (S.PRODUCE, R.ABORTABLE): S.ABORT,
    (S.PRODUCE, R.FATAL): S.FENCED,
    (S.OFFSETS, R.OK): S.COMMIT,
    (S.OFFSETS, R.AGAIN): S.OFFSETS,
    (S.OFFSETS, R.ABORTABLE): S.ABORT,
    (S.OFFSETS, R.FATAL): S.FENCED,
    (S.COMMIT, R.OK): S.DONE,
    # Its outcome is unknown until the call says so: aborting now could abort what the brokers have committed.
    (S.COMMIT, R.AGAIN): S.COMMIT,
    (S.COMMIT, R.ABORTABLE): S.ABORT,
    (S.COMMIT, R.FATAL): S.FENCED,
    (S.ABORT, R.OK): S.ASK,
    (S.ABORT, R.AGAIN): S.ABORT,
    (S.ABORT, R.ABORTABLE): S.FENCED,
    (S.ABORT, R.FATAL): S.FENCED,
}
"""What follows which end of a step; the only place that decides it."""


def result_of(error: KafkaError) -> Result:
    """What librdkafka's classification of an error means for a step (KIP-360, KIP-890 are within it)."""
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._FENCED):
        return Result.FATAL
    if error.txn_requires_abort():
        return Result.ABORTABLE
    # A call that was not allowed now has changed nothing; what it was to do did not happen.
    return Result.AGAIN if error.retriable() else Result.FATAL


def group_metadata(group: str, identity: CommitAs) -> bytes:
    """The member as librdkafka passes it about (`rd_kafka_consumer_group_metadata_write`): no consumer of ours has
    joined, so that its own would name nobody."""
    instance = b"\1" if identity.instance_id is None else b"\0" + identity.instance_id.encode() + b"\0"
    generation = identity.generation.to_bytes(4, "little", signed=True)
    return b"CGMDv2:" + generation + group.encode() + b"\0" + identity.member_id.encode() + b"\0" + instance


class Identities:
    """The supervisor's answers, from the control thread to the sender's."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[CommitAs] = queue.SimpleQueue()

    def given(self, answer: CommitAs) -> None:
        """Caller: the control thread."""
        self._answers.put(answer)

    def wait(self, number: int, seconds: float) -> CommitAs | None:
        """The answer to that question; older ones are dropped."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                answer = self._answers.get(timeout=left)
            except queue.Empty:
                return None
            if answer.number == number:
                return answer
        return None


class Transactions:
    """A `Carrier`. Caller: the sender's thread, but for `take_over`."""

    def __init__(
        self,
        producers: Sequence[Producer],
        group: str,
        outbox: Outbox,
        fetcher: SettlingFetcher,
        tally: Tally,
        identities: Identities,
        tell: Callable[[FromWorker], None],
    ) -> None:
        """The producers take turns, a transaction each."""
        self._producers = producers
        self._turns = cycle(producers)
        self._producer = producers[0]
        """Whose transaction it is now."""
        self._group = group
        self._outbox = outbox
        self._fetcher = fetcher
        self._tally = tally
        self._identities = identities
        self._tell = tell
        self._number = 0
        """Of the last question to the supervisor; 0: none is open."""
        self._asked = False
        self._identity: CommitAs | None = None
        self._batch: Sequence[Entry] = ()
        self._live: Sequence[Entry] = ()
        self._failed: list[tuple[Parcel, KafkaError]] = []
        self._rewound: set[int] = set()
        self._why = ""
        self._steps: Mapping[Step, Callable[[], Result]] = {
            Step.ASK: self._ask,
            Step.BEGIN: self._begin,
            Step.PRODUCE: self._produce,
            Step.OFFSETS: self._send_offsets,
            Step.COMMIT: self._commit,
            Step.ABORT: self._abort,
        }

    def deliver(self, batch: Sequence[Entry]) -> None:
        """See `Carrier`."""
        began, aborted = time.monotonic(), 0
        self._producer = next(self._turns)
        self._batch, self._rewound, step = batch, set(), Step.ASK
        while step not in (Step.DONE, Step.FENCED):
            result = self._attempt(step)
            if step is Step.ABORT and result is Result.OK:
                aborted += 1
                self._tally.aborted()
                log.warning(f"a transaction of {len(batch)} entries was aborted, it is sent again: {self._why}")
                time.sleep(backoff(aborted))
            elif result is Result.AGAIN and step is not Step.ASK:
                time.sleep(_AGAIN_SECONDS)
            step = STEPS[step, result]
        self._close_window()
        if step is Step.FENCED:
            raise Fenced(
                f"its producer is of no use any more, a successor takes over: {self._why}. Fenced again and again: "
                f"another member has the same producing.transactional_id_prefix; make it unique"
            )
        if self._live:
            self._tally.committed(time.monotonic() - began)
            self._tally.delivered(self._live)
        self._fetcher.settle(reached(self._live))
        if self._rewound:
            self._fetcher.rewind(self._rewound)

    def serve(self) -> None:
        """See `Carrier`: keep the client's login fresh."""
        for producer in self._producers:
            producer.poll(0)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _attempt(self, step: Step) -> Result:
        try:
            return self._steps[step]()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            self._why = self._outbox.trouble = f"{step.value}: {error.name()}: {error.str()}"
            return result_of(error)

    def _ask(self) -> Result:
        self._live = self._outbox.live(self._batch)
        if not self._live:
            return Result.EMPTY
        if not self._asked:
            self._number += 1
            self._asked = True
            self._tell(CommitWanted(self._number))
        self._identity = self._identities.wait(self._number, _ANSWER_SECONDS)
        if self._identity is None:
            self._outbox.trouble = "the member may not commit: its group rebalances, or no coordinator answers"
            return Result.AGAIN
        self._live = self._outbox.live(self._live)
        return Result.OK if self._live else Result.EMPTY

    def _begin(self) -> Result:
        self._failed = []
        self._producer.begin_transaction()
        return Result.OK

    def _produce(self) -> Result:
        put(self._producer, parcels_of(self._live), self._note)
        return Result.ABORTABLE if self._refuse() else Result.OK

    def _send_offsets(self) -> Result:
        if len(self._outbox.live(self._live)) < len(self._live):
            self._why = "some of its partitions were given up meanwhile"
            return Result.ABORTABLE
        assert self._identity is not None
        last = {entry.origin.number: entry for entry in self._live}
        offsets = [self._fetcher.place(entry) for entry in last.values()]
        self._producer.send_offsets_to_transaction(offsets, group_metadata(self._group, self._identity), _CALL_SECONDS)
        return Result.OK

    def _commit(self) -> Result:
        self._producer.commit_transaction(_CALL_SECONDS)
        return Result.OK

    def _abort(self) -> Result:
        self._producer.abort_transaction(_CALL_SECONDS)
        self._refuse()
        self._close_window()
        return Result.OK

    def _note(self, parcel: Parcel, error: KafkaError) -> None:
        self._failed.append((parcel, error))

    def _refuse(self) -> bool:
        """Whether some output will never be taken: its record is left out of the next transaction."""
        refused = False
        for (entry, output), error in self._failed:
            if (why := refusal(entry, output, error)) is not None:
                self._outbox.refuse(entry, why)
                self._rewound.add(entry.origin.number)
                self._why, refused = str(why), True
        return refused

    def _close_window(self) -> None:
        if self._asked:
            self._asked = False
            self._tell(CommitOver(self._number))
