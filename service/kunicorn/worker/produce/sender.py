"""Outputs and letters sent at least once: collected, produced, acknowledged or refused.

`Outputs` and `SenderThreads` send what handlers return: the runner collects, the senders' threads deliver. 1. A record
counts as consumed only when everything that it left is delivered (or it left nothing, and everything before it in its
partition is). 2. The runner never waits for a broker, but for room in the outbox.

`Acknowledging` has a batch's outputs produced; its offsets count when the brokers have acknowledged them all. What is
not acknowledged in time is sent again: an output may then arrive twice, and behind one that came after it.

`LetterProducer` sends records that were given up to the dead-letter topic, and to retry topics: one producer a worker,
made when the first letter is due, the runner's alone. A letter counts only when every in-sync replica has it
(`acks=all`); until then its record is not done with.

`refusal` says which errors of an output are its record's fault, and which are a broker's trouble. Pure.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.backoff import Backoff, Retries
from kunicorn.errors import ExitCode
from kunicorn.handler.call import Calls, ReturnCheck
from kunicorn.handler.config import DeadLetterTarget, HandlerConfig
from kunicorn.handler.dead_letters import Cause, Destination, Letter, dead_letters
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import Halt, NotToBeSent
from kunicorn.handler.outputs import Outgoing, calls_sending, outputs_of, refuse_two_committers, size_of
from kunicorn.handler.record import Record
from kunicorn.librdkafka.errors import fault_of, librdkafka, log_client_error
from kunicorn.observe import catalogue as c
from kunicorn.worker.client import Login
from kunicorn.worker.executors import OnReturn
from kunicorn.worker.produce.outbox import DeliveryListener, Entry, GivenUp, Origin, Outbox, OutputBatch
from kunicorn.worker.progress import F, Grant, InFlight
from kunicorn.worker.stats import Counters

_SERVE_SECONDS = 0.01


class Delivery:
    """Letters on their way, those of one record or batch. All arrive, or it is refused and sent again as a whole."""

    def __init__(self, letters: int) -> None:
        self._left = letters
        self.error: KafkaError | None = None
        """The first that was refused, as librdkafka has it."""

    @property
    def over(self) -> bool:
        """Whether every letter is acknowledged or refused."""
        return self._left <= 0

    def told(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report of one letter."""
        self._left -= 1
        self.error = self.error or error

    def refuse(self, error: KafkaError) -> None:
        """Note that the client does not take the rest. Reports of those it took may follow, and change nothing."""
        self.error, self._left = self.error or error, 0


class LetterProducer:
    """Producer of letters where no outputs are sent. Caller: the runner; only `deliver` and `serve` may block, no
    longer than they are told.
    """

    def __init__(self, target: DeadLetterTarget, login: Login, make: Callable[..., Producer] = Producer) -> None:
        self.dead_letters = dead_letters(target.topic) if target.topic is not None else None
        """None: no setting asks for any."""
        self._group = target.group
        self._properties: dict[str, Any] = {**target.client, "error_cb": log_client_error}
        if login.is_bearer:
            self._properties["oauth_cb"] = login.bearer
        self._login = login
        self._make = make
        self._producer: Producer | None = None
        self._open: list[Delivery] = []
        """Those that are not over, and perhaps some that are."""

    def send(self, destination: Destination, messages: Sequence[Message], cause: Cause, of: object = None) -> Delivery:
        """Produce a letter for each record. Never blocks; failures are told by the delivery. `of`: the grant or record
        they belong to, which only `LettersAmongOutputs` needs.
        """
        delivery = Delivery(len(messages))
        self._open = [each for each in self._open if not each.over]
        self._open.append(delivery)
        now_ms = time.time_ns() // 1_000_000
        try:
            for message in messages:
                letter = destination.letter(Record.of(message), self._group, cause, now_ms)
                self._produce(destination.topic, letter, delivery)
        except BufferError:
            delivery.refuse(KafkaError(KafkaError._QUEUE_FULL))
        except KafkaException as error:
            delivery.refuse(error.args[0])
        return delivery

    def deliver(self, delivery: Delivery, seconds: float) -> bool:
        """Wait so long for the delivery's end; whether it has come."""
        until = time.monotonic() + seconds
        while not delivery.over and (left := until - time.monotonic()) > 0:
            self.serve(min(left, _SERVE_SECONDS))
        return delivery.over

    def serve(self, seconds: float = 0.0) -> None:
        """Take in delivery reports, and keep the client's login fresh."""
        if self._producer is not None:
            self._producer.poll(seconds)

    def start_anew(self) -> None:
        """Drop the producer, which does nothing any more after a fatal error: the next letter makes another one. What
        else is on its way is refused, and sent again: nobody would report of it any more.
        """
        self._producer = None
        for delivery in self._open:
            if not delivery.over:
                delivery.refuse(KafkaError(KafkaError._PURGE_INFLIGHT, "its producer had a fatal error"))
        self._open.clear()

    def _produce(self, topic: str, letter: Letter, delivery: Delivery) -> None:
        producer = self._producer
        if producer is None:
            producer = self._producer = self._make(self._properties, logger=librdkafka)
            self._login.use(producer)
        more: Mapping[str, Any] = {} if letter.timestamp is None else {"timestamp": letter.timestamp}
        producer.produce(
            topic, letter.value, letter.key, headers=list(letter.headers), on_delivery=delivery.told, **more
        )


LARGEST_REPORT = 4096
_SWITCH_SECONDS = 0.0005
"""How long the handler keeps the interpreter from the sender, which needs it a few times for each batch: with Python's
5 ms, transactions beside a handler that computes wait longer for it than for the brokers."""


class Outputs:
    """Outputs of handlers on their way into the outbox, under their record."""

    def __init__(self, outbox: Outbox, topic: str | None, delivery: str) -> None:
        """`topic`: topic of a Send that names none. `delivery` is that of [producing]."""
        self._outbox = outbox
        self._topic = topic
        self._delivery = delivery

    def calls(self, handler: Handler, config: HandlerConfig) -> Calls:
        """The `Calls` of a handler whose outputs go into the outbox. Raises like `calls_of`, and `ConfigError`."""
        refuse_two_committers(handler, self._delivery)
        return calls_sending(handler, config, self._topic, _refuse if handler.keeps_offsets else self._put)

    def on_return(self, handler: Handler) -> OnReturn:
        """Function for returned values where several records are in hand: outputs stay with their record. Any
        thread.
        """
        check = ReturnCheck(handler.entrypoint)

        def keep(flight: InFlight, returned: Any) -> None:
            outputs, said = outputs_of(returned, self._topic)
            if outputs and handler.keeps_offsets:
                _refuse(flight, flight.offset, flight.offset + 1, outputs)
            check(said)
            flight.outputs, flight.given_up = outputs, None

        return keep

    def put_letters(
        self, grant: Grant, messages: Sequence[Message], outputs: Sequence[Outgoing], given_up: GivenUp
    ) -> None:
        """Put the letters of these given-up records of the grant into the outbox. Caller: the runner."""
        first, last = Record.of(messages[0]).offset, Record.of(messages[-1]).offset
        self._outbox.put(Entry(grant, first, last + 1, outputs, given_up), 0, size_of(outputs))

    def _put(self, origin: Origin, first: int, following: int, outputs: Sequence[Outgoing]) -> None:
        self._outbox.put(Entry(origin, first, following, outputs), 0, size_of(outputs))


def keep_letters(flight: InFlight, messages: Sequence[Message], outputs: Sequence[Outgoing], given_up: GivenUp) -> None:
    """Keep the letters of a given-up record with it until it is finished, where several are in hand."""
    flight.outputs, flight.given_up = outputs, given_up


def _refuse(origin: Origin, first: int, following: int, outputs: Sequence[Outgoing]) -> None:
    """Raise for outputs of a handler that keeps its offsets when it returns: if the worker died then, nobody would send
    them.
    """
    raise NotToBeSent(
        "a handler that keeps its offsets itself (load_offsets) returned records to send, which might be lost: leave "
        "its offsets to Kafka, or store the records beside its effects and send them from there"
    )


class LettersAmongOutputs(Generic[F]):
    """Letters where outputs are sent: acknowledged, or committed, together with them. Stands in for `LetterProducer`.

    Caller: the runner.
    """

    def __init__(
        self, put: Callable[[F, Sequence[Message], Sequence[Outgoing], GivenUp], None], topic: str | None, group: str
    ) -> None:
        """`put`: `Outputs.put_letters` or `keep_letters`. `topic`: of dead letters; None: no setting asks for any."""
        self.dead_letters = dead_letters(topic) if topic is not None else None
        self._put = put
        self._group = group

    def send(self, destination: Destination, messages: Sequence[Message], cause: Cause, of: F) -> Delivery:
        """Put the letters among the outputs. They count as delivered here: their record's offset waits for them."""
        now_ms = time.time_ns() // 1_000_000
        letters = [destination.letter(Record.of(message), self._group, cause, now_ms) for message in messages]
        outgoing = [
            Outgoing(destination.topic, letter.value, letter.key, list(letter.headers), -1, letter.timestamp or 0)
            for letter in letters
        ]
        self._put(of, messages, outgoing, GivenUp(destination, cause))
        return Delivery(0)

    def deliver(self, delivery: Delivery, seconds: float) -> bool:
        """Whether the delivery is over; it is so at once, and nothing is waited for."""
        return delivery.over

    def serve(self, seconds: float = 0.0) -> None:
        """Does nothing: the sender's thread does it."""

    def start_anew(self) -> None:
        """Does nothing: no letter is refused here."""


class Sender(Protocol):
    """Deliverer of batches. Caller: its sender's thread."""

    def deliver(self, batch: OutputBatch) -> None:
        """Deliver the batch. Blocks until all of it that is still wanted has arrived, and the table is told. Raises
        `Fenced`.
        """

    def serve(self) -> None:
        """Serve the client while there is nothing to deliver."""


class Fenced(Exception):
    """Another producer has this worker's transactional.id: whatever we hold is not ours to commit any more."""


class Startable(Protocol):
    """Threads that take batches out of the outbox."""

    def start(self) -> None: ...


class SenderThreads:
    """A thread for each sender; they take batches out of the outbox in turns, for as long as the process lives."""

    def __init__(self, outbox: Outbox, senders: Sequence[Sender]) -> None:
        self._senders = [_SenderThread(outbox, sender, turn) for turn, sender in enumerate(senders)]

    def start(self) -> None:
        sys.setswitchinterval(_SWITCH_SECONDS)
        for sender in self._senders:
            sender.start()


class _SenderThread(threading.Thread):
    def __init__(self, outbox: Outbox, sender: Sender, turn: int) -> None:
        super().__init__(name=f"sender-{turn}", daemon=True)
        self._outbox = outbox
        self._sender = sender
        self._turn = turn

    def run(self) -> None:
        """Deliver batches until the process ends. A failure ends the worker: without a sender nothing would ever be
        consumed.
        """
        try:
            while True:
                if batch := self._outbox.take(self._turn):
                    self._sender.deliver(batch)
                    self._outbox.done(batch)
                else:
                    self._sender.serve()
        except Fenced as error:
            _die(f"worker {os.getpid()}: {error}\n")
        except BaseException:
            _die(f"worker {os.getpid()}: the sender broke, exiting\n{traceback.format_exc()}")


def _die(text: str) -> None:
    os.write(2, text.encode()[-LARGEST_REPORT:])
    os._exit(ExitCode.BUG)


_OUTPUTS, _TOPIC = attrgetter("outputs"), attrgetter("topic")


def count_sent(counters: Counters, entries: Iterable[Entry]) -> None:
    """Count the outputs of these entries as sent."""
    for topic, count in Counter(map(_TOPIC, chain.from_iterable(map(_OUTPUTS, entries)))).items():
        counters.count(c.SENT, count, topic)


HOPELESS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError._QUEUE_FULL,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
"""Errors of one output that sending it again will not cure; every other one is a broker's trouble, and is waited
for."""


_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError._QUEUE_FULL})


class NotDelivered(Exception):
    """Failure of a record whose outputs the brokers do not take."""


class LetterRefused(Exception):
    """The topic of a letter does not take it now, which is no fault of the record's."""

    def __init__(self, text: str, given_up: GivenUp) -> None:
        super().__init__(text)
        self.given_up = given_up


def refusal(entry: Entry, output: Outgoing, error: KafkaError) -> BaseException | None:
    """Failure of the record for a refused output; None where the output is worth another try.

    A letter, dead or to a retry topic, that is too large halts its partition: nothing is cut off a record to make it
    fit. Otherwise it waits until its topic takes it.
    """
    if error.code() not in HOPELESS:
        return None
    remedy = fault_of(error.code()).remedy(rights="WRITE")
    what = "an output" if entry.given_up is None else "the record, given up,"
    text = f"{what} for topic {output.topic!r} is refused ({error.name()}): {remedy}"
    if entry.given_up is None:
        return NotDelivered(text)
    return Halt(text) if error.code() in _TOO_LARGE else LetterRefused(text, entry.given_up)


log = logging.getLogger("kunicorn.worker")

_FLUSH_SECONDS = 1.0
_FULL_QUEUE_SECONDS = 0.05
BACKOFF = Backoff(first_seconds=0.15, longest_seconds=3.75, jitter=1 / 3)
"""Before outputs are sent again: 0.1 to 0.2 s at first, 2.5 to 5 s at last; half of it is chance."""


Output = tuple[Entry, Outgoing]
"""One output, and whose it is."""


def outputs_in(entries: Iterable[Entry]) -> list[Output]:
    """Every output of these, in order."""
    return [(entry, output) for entry in entries for output in entry.outputs]


def reached(entries: Iterable[Entry]) -> Mapping[int, int]:
    """Offset up to which each origin is done once these are delivered, by its number."""
    return {entry.origin.number: entry.following for entry in entries}


def put(producer: Producer, outputs: Iterable[Output], failed: Callable[[Output, KafkaError], None]) -> None:
    """Produce these outputs; `failed` is told, now or from within `poll`, of each that is not delivered. Blocks while
    the client's queue is full; what is larger than all of it fails with _QUEUE_FULL.
    """
    produce = producer.produce
    for output in outputs:
        _, outgoing = output
        told = partial(_told, failed, output)
        alone = False
        while True:
            try:
                # By position: named arguments take the client twice as long.
                produce(
                    outgoing.topic,
                    outgoing.value,
                    outgoing.key,
                    outgoing.partition,
                    told,
                    None,
                    outgoing.timestamp,
                    outgoing.headers,
                )
            except BufferError:
                if alone:
                    failed(output, KafkaError(KafkaError._QUEUE_FULL))
                    break
                # Nobody else produces: what does not fit into an empty queue never will.
                alone = not len(producer)
                if not alone:
                    producer.poll(_FULL_QUEUE_SECONDS)
                continue
            except KafkaException as error:
                failed(output, error.args[0])
            break


def _told(
    failed: Callable[[Output, KafkaError], None], output: Output, error: KafkaError | None, message: Message
) -> None:
    if error is not None:
        failed(output, error)


class Acknowledging:
    """`Sender` that delivers at least once. Caller: the sender's thread."""

    def __init__(
        self, make: Callable[[], Producer], outbox: Outbox, table: DeliveryListener, counters: Counters
    ) -> None:
        """`make` makes the producer, and a new one after a fatal error."""
        self._make = make
        self._producer = make()
        self._outbox = outbox
        self._table = table
        self._counters = counters
        self._failed: list[tuple[Output, KafkaError]] = []

    def deliver(self, batch: OutputBatch) -> None:
        left, retries = outputs_in(batch.entries), Retries(BACKOFF)
        rewound: dict[int, int] = {}
        while left:
            left = self._again(self._send(left), rewound)
            # One that was given up meanwhile need not arrive.
            left = [(entry, output) for entry, output in left if entry.origin.takes_output_at(entry.offset)]
            if left:
                time.sleep(retries.failed())
        delivered = self._outbox.live(batch)
        count_sent(self._counters, delivered)
        self._table.delivered(reached(delivered))
        if rewound:
            self._table.rewind(rewound)

    def serve(self) -> None:
        """Keep the client's login fresh."""
        self._producer.poll(0)

    def _send(self, outputs: Sequence[Output]) -> list[tuple[Output, KafkaError]]:
        """Produce the outputs and wait for their reports; those that were not delivered."""
        self._failed = []
        put(self._producer, outputs, self._note)
        while self._producer.flush(_FLUSH_SECONDS):
            pass
        return self._failed

    def _note(self, output: Output, error: KafkaError) -> None:
        self._failed.append((output, error))

    def _again(self, failed: Sequence[tuple[Output, KafkaError]], rewound: dict[int, int]) -> list[Output]:
        """Outputs that are worth another try. An idempotent producer does nothing any more after a fatal error."""
        left = []
        for (entry, output), error in failed:
            if (why := refusal(entry, output, error)) is not None:
                if refusal_number := self._outbox.refuse(entry, why):
                    rewound[entry.origin.number] = refusal_number
            else:
                left.append((entry, output))
        if left:
            error = failed[-1][1]
            self._outbox.note_trouble(error.str())
            log.warning(f"{len(left)} outputs were not acknowledged, they are sent again: {error.str()}")
            if any(error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._STATE) for _, error in failed):
                self._producer = self._make()
        return left
