"""Outputs and letters sent at least once: collected, produced, acknowledged or refused.

`Outputs` and `Senders` send what handlers return: the runner collects, the senders' threads deliver.
1. A record counts as consumed only when everything that it left is delivered (or it left nothing, and everything before
   it in its partition is).
2. The runner never waits for a broker, but for room in the outbox.

`Acknowledging` has a shipment's outputs produced; its offsets count when the brokers have acknowledged them all. What
is not acknowledged in time is sent again: an output may then arrive twice, and behind one that came after it.

`LetterProducer` sends records that were given up to the dead-letter topic, and to retry topics: one producer a worker,
made when the first letter is due, the runner's alone. A letter counts only when every in-sync replica has it
(`acks=all`); until then its record is not done with.

`Tally` is what the sender's thread counts and the control thread reports. `refusal` says which errors of an output are
its record's fault, and which are a broker's trouble. Pure.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.errors import ExitCode
from kunicorn.handler.call import Calls, Heed
from kunicorn.handler.config import DeadLetterTarget, HandlerOrder
from kunicorn.handler.dead_letters import Address, Cause, Letter, dead_letters
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import Halt, NotToBeSent
from kunicorn.handler.outputs import Outgoing, calls_sending, outputs_of, refuse_two_committers, size_of
from kunicorn.handler.record import Record
from kunicorn.librdkafka.errors import librdkafka, log_client_error
from kunicorn.worker.client import Login
from kunicorn.worker.executors import Take
from kunicorn.worker.produce.outbox import Entry, GivenUp, Outbox, Settles, Shipment
from kunicorn.worker.progress import Flight, Grant

_SERVE_SECONDS = 0.01


class Delivery:
    """Letters on their way, those of one record or batch. All arrive, or it is refused and sent again as a whole."""

    def __init__(self, letters: int) -> None:
        self._left = letters
        self.error: KafkaError | None = None
        """The first that was refused, as librdkafka has it."""

    @property
    def over(self) -> bool:
        """Every letter's fate is known."""
        return self._left <= 0

    def told(self, error: KafkaError | None, message: Message) -> None:
        """librdkafka's delivery report of one letter."""
        self._left -= 1
        self.error = self.error or error

    def refuse(self, error: KafkaError) -> None:
        """The client does not even take the rest. Reports of those it took may follow, and change nothing."""
        self.error, self._left = self.error or error, 0


class LetterProducer:
    """Letters where no outputs are sent: they go by themselves. Caller: the runner; only `deliver` and `serve` may
    block, no longer than they are told."""

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

    def send(self, address: Address, messages: Sequence[Message], cause: Cause, of: object = None) -> Delivery:
        """Put a letter for each record on its way. Never blocks; what goes wrong is told by the delivery. `of`: whose
        they are, which matters elsewhere."""
        delivery = Delivery(len(messages))
        self._open = [each for each in self._open if not each.over]
        self._open.append(delivery)
        now_ms = time.time_ns() // 1_000_000
        try:
            for message in messages:
                letter = address.letter(Record.of(message), self._group, cause, now_ms)
                self._produce(address.topic, letter, delivery)
        except BufferError:
            delivery.refuse(KafkaError(KafkaError._QUEUE_FULL))
        except KafkaException as error:
            delivery.refuse(error.args[0])
        return delivery

    def deliver(self, delivery: Delivery, seconds: float) -> bool:
        """Wait so long for its end; whether it has come."""
        until = time.monotonic() + seconds
        while not delivery.over and (left := until - time.monotonic()) > 0:
            self.serve(min(left, _SERVE_SECONDS))
        return delivery.over

    def serve(self, seconds: float = 0.0) -> None:
        """Hear what has arrived, and keep the client's login fresh."""
        if self._producer is not None:
            self._producer.poll(seconds)

    def start_anew(self) -> None:
        """After a fatal error, an idempotent producer does nothing any more: the next letter makes another one. What
        else is on its way is refused, and sent again: nobody would report of it any more."""
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
    """What the runner knows of producing. Caller: the runner."""

    def __init__(self, outbox: Outbox, topic: str | None, delivery: str) -> None:
        """`topic`: where a Send goes that names none. `delivery` is that of [producing]."""
        self.grant: Grant | None = None
        """Whose records the handler has."""
        self._alone = False
        """What was begun last is to be delivered before anything else is begun."""
        self._outbox = outbox
        self._topic = topic
        self._delivery = delivery

    def room(self, seconds: float, *, alone: bool) -> int:
        """So many more records may be handled; waits so long for some. `alone`: the next of them only once nothing is
        on its way, and nothing behind it before it is delivered itself."""
        begun, self._alone = self._alone, alone
        if (alone or begun) and not self._outbox.wait_until_empty(seconds):
            self._alone = True
            return 0
        return self._outbox.room() or (self._outbox.room() if self._outbox.wait_for_room(seconds) else 0)

    def calls(self, handler: Handler, order: HandlerOrder) -> Calls:
        """How the handler is called: its outputs go into the outbox. Raises like `calls_of`, and `ConfigError`."""
        refuse_two_committers(handler, self._delivery)
        put = _refuse if handler.keeps_offsets else self._put_outputs
        return calls_sending(handler, order, self._topic, put)

    def take(self, handler: Handler) -> Take:
        """What is done with what it returns where several are in hand: outputs stay with their record. Any thread."""
        heed = Heed(handler.entrypoint)

        def keep(flight: Flight, returned: Any) -> None:
            outputs, said = outputs_of(returned, self._topic)
            if outputs and handler.keeps_offsets:
                _refuse(flight.offset, flight.offset + 1, outputs)
            heed(said)
            flight.outputs, flight.given_up = outputs, None

        return keep

    def put_letters(self, of: object, messages: Sequence[Message], outputs: list[Outgoing], given_up: GivenUp) -> None:
        """What becomes of these records, which were given up, goes the way of outputs. `of`: the record, where several
        are in hand, else the grant."""
        if isinstance(of, Flight):
            of.outputs, of.given_up = outputs, given_up
            return
        first, last = Record.of(messages[0]).offset, Record.of(messages[-1]).offset
        assert isinstance(of, Grant)
        self._outbox.put(Entry(of, first, last + 1, outputs, given_up), 0, size_of(outputs))

    def _put_outputs(self, first: int, following: int, outputs: list[Outgoing]) -> None:
        assert self.grant is not None
        self._outbox.put(Entry(self.grant, first, following, outputs), 0, size_of(outputs))


def _refuse(first: int, following: int, outputs: list[Outgoing]) -> None:
    """Its offset is stored when the handler returns: what a worker that dies then has not sent, nobody would send."""
    raise NotToBeSent(
        "a handler that keeps its offsets itself (load_offsets) returned records to send, which might be lost: leave "
        "its offsets to Kafka, or store the records beside its effects and send them from there"
    )


class LettersAmongOutputs:
    """Letters where outputs are sent: acknowledged, or committed, together with them. Stands in for `LetterProducer`.

    Caller: the runner.
    """

    def __init__(self, outputs: Outputs, topic: str | None, group: str) -> None:
        """`topic`: of dead letters; None: no setting asks for any."""
        self.dead_letters = dead_letters(topic) if topic is not None else None
        self._outputs = outputs
        self._group = group

    def send(self, address: Address, messages: Sequence[Message], cause: Cause, of: object) -> Delivery:
        """They count as delivered here: their record's offset waits for them. `of`: see `put_letters`."""
        now_ms = time.time_ns() // 1_000_000
        letters = [address.letter(Record.of(message), self._group, cause, now_ms) for message in messages]
        outgoing = [
            Outgoing(address.topic, letter.value, letter.key, list(letter.headers), -1, letter.timestamp or 0)
            for letter in letters
        ]
        self._outputs.put_letters(of, messages, outgoing, GivenUp(address, cause))
        return Delivery(0)

    def deliver(self, delivery: Delivery, seconds: float) -> bool:
        """There is nothing to wait for."""
        return delivery.over

    def serve(self, seconds: float = 0.0) -> None:
        """The sender's thread does."""

    def start_anew(self) -> None:
        """Nothing is refused here."""


Letters = LetterProducer | LettersAmongOutputs
"""How what a worker gives up is sent."""


class Carrier(Protocol):
    """How a shipment is delivered. Caller: its sender's thread."""

    def deliver(self, shipment: Shipment) -> None:
        """Blocks until all of it that is still wanted has arrived, and is settled. Raises `Fenced`."""

    def serve(self) -> None:
        """Nothing is to be delivered now."""


class Fenced(Exception):
    """Another producer has this worker's transactional.id: whatever we hold is not ours to commit any more."""


class Startable(Protocol):
    """Who takes shipments out of the outbox."""

    def start(self) -> None:
        """From now on."""


class Senders:
    """A thread for each carrier; they take shipments out of the outbox in turns, for as long as the process lives."""

    def __init__(self, outbox: Outbox, carriers: Sequence[Carrier]) -> None:
        self._senders = [_Sender(outbox, carrier, turn) for turn, carrier in enumerate(carriers)]

    def start(self) -> None:
        """See `Startable`."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        for sender in self._senders:
            sender.start()


class _Sender(threading.Thread):
    def __init__(self, outbox: Outbox, carrier: Carrier, turn: int) -> None:
        super().__init__(name=f"sender-{turn}", daemon=True)
        self._outbox = outbox
        self._carrier = carrier
        self._turn = turn

    def run(self) -> None:
        """The worker ends with it: without a sender nothing would ever be consumed."""
        try:
            while True:
                if shipment := self._outbox.take(self._turn):
                    self._carrier.deliver(shipment)
                    self._outbox.done(shipment)
                else:
                    self._carrier.serve()
        except Fenced as error:
            _die(f"worker {os.getpid()}: {error}\n")
        except BaseException:
            _die(f"worker {os.getpid()}: the sender broke, exiting\n{traceback.format_exc()}")


def _die(text: str) -> None:
    os.write(2, text.encode()[-LARGEST_REPORT:])
    os._exit(ExitCode.BUG)


class Tallied(NamedTuple):
    """Since the last report."""

    sent: dict[str, int]
    committed_seconds: list[float]
    aborted: int


_OUTPUTS, _TOPIC = attrgetter("outputs"), attrgetter("topic")
NOTHING_SENT = Tallied({}, [], 0)


class Tally:
    """Outputs by topic, and transactions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: Counter[str] = Counter()
        self._committed: list[float] = []
        self._aborted = 0

    def delivered(self, entries: Iterable[Entry]) -> None:
        """The brokers have all their outputs."""
        counts = Counter(map(_TOPIC, chain.from_iterable(map(_OUTPUTS, entries))))
        with self._lock:
            self._sent.update(counts)

    def committed(self, seconds: float) -> None:
        """A transaction took so long."""
        with self._lock:
            self._committed.append(seconds)

    def aborted(self) -> None:
        """A transaction was given up; its batch goes into the next."""
        with self._lock:
            self._aborted += 1

    def take(self) -> Tallied:
        """The changes since the last call."""
        with self._lock:
            taken = Tallied(dict(self._sent), self._committed, self._aborted)
            self._sent, self._committed, self._aborted = Counter(), [], 0
        return taken


HOPELESS: Mapping[int, str] = {
    KafkaError.MSG_SIZE_TOO_LARGE: "it is too large: raise the topic's max.message.bytes, or send less",
    KafkaError._QUEUE_FULL: "it is larger than twice producing.buffer_memory: raise that, or send less",
    KafkaError.RECORD_LIST_TOO_LARGE: "it is too large: raise the topic's segment.bytes, or send less",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic or partition: create it, or correct the name",
    KafkaError._UNKNOWN_TOPIC: "there is no such topic: create it, or correct the name",
    KafkaError._UNKNOWN_PARTITION: "there is no such partition: leave the partition out, or correct it",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user needs WRITE on the topic",
    KafkaError.TOPIC_EXCEPTION: "that is no legal name of a topic",
    KafkaError.POLICY_VIOLATION: "the brokers' policy forbids it",
    KafkaError.INVALID_RECORD: "the brokers do not accept it; a compacted topic needs a key",
    KafkaError.INVALID_TIMESTAMP: "its timestamp is too far from now: see the topic's message.timestamp.before.max.ms",
}
"""Errors of one output that sending it again will not cure, each with what would; every other one is a broker's
trouble, and is waited for."""


_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError._QUEUE_FULL})


class NotDelivered(Exception):
    """The brokers do not take what the handler returned: its record has failed."""


class LetterRefused(Exception):
    """The topic for what was given up does not take it now, which is no fault of the record's."""

    def __init__(self, text: str, given_up: GivenUp) -> None:
        super().__init__(text)
        self.given_up = given_up


def refusal(entry: Entry, output: Outgoing, error: KafkaError) -> BaseException | None:
    """What the record has failed by; None where the output is worth another try.

    A letter, dead or to a retry topic, that is too large halts its partition: nothing is cut off a record to make it
    fit. Otherwise it waits until its topic takes it.
    """
    if (remedy := HOPELESS.get(error.code())) is None:
        return None
    what = "an output" if entry.given_up is None else "the record, given up,"
    text = f"{what} for topic {output.topic!r} is refused ({error.name()}): {remedy}"
    if entry.given_up is None:
        return NotDelivered(text)
    return Halt(text) if error.code() in _TOO_LARGE else LetterRefused(text, entry.given_up)


log = logging.getLogger("kunicorn.worker")

_FLUSH_SECONDS = 1.0
_FULL_QUEUE_SECONDS = 0.05
_BACKOFF_SECONDS, _BACKOFF_MAX_SECONDS = 0.1, 5.0


Parcel = tuple[Entry, Outgoing]
"""One output, and whose it is."""


def parcels_of(entries: Iterable[Entry]) -> list[Parcel]:
    """Every output of these, in order."""
    return [(entry, output) for entry in entries for output in entry.outputs]


def reached(entries: Iterable[Entry]) -> Mapping[int, int]:
    """How far each origin is once these are delivered, by its number."""
    return {entry.origin.number: entry.following for entry in entries}


def backoff(failures: int) -> float:
    """Seconds until the next try; half of it is chance."""
    return min(_BACKOFF_SECONDS * 2.0 ** min(failures, 10), _BACKOFF_MAX_SECONDS) * (0.5 + random.random() / 2)


def put(producer: Producer, parcels: Iterable[Parcel], failed: Callable[[Parcel, KafkaError], None]) -> None:
    """Hand these outputs to the client; `failed` is told, now or from within `poll`, of each that is not delivered.
    Blocks while the client's queue is full; what is larger than all of it fails with _QUEUE_FULL."""
    produce = producer.produce
    for parcel in parcels:
        _, output = parcel
        told = partial(_told, failed, parcel)
        alone = False
        while True:
            try:
                # By position: named arguments take the client twice as long.
                produce(
                    output.topic,
                    output.value,
                    output.key,
                    output.partition,
                    told,
                    None,
                    output.timestamp,
                    output.headers,
                )
            except BufferError:
                if alone:
                    failed(parcel, KafkaError(KafkaError._QUEUE_FULL))
                    break
                # Nobody else produces: what does not fit into an empty queue never will.
                alone = not len(producer)
                if not alone:
                    producer.poll(_FULL_QUEUE_SECONDS)
                continue
            except KafkaException as error:
                failed(parcel, error.args[0])
            break


def _told(
    failed: Callable[[Parcel, KafkaError], None], parcel: Parcel, error: KafkaError | None, message: Message
) -> None:
    if error is not None:
        failed(parcel, error)


class Acknowledging:
    """A `Carrier`. Caller: the sender's thread."""

    def __init__(self, make: Callable[[], Producer], outbox: Outbox, fetcher: Settles, tally: Tally) -> None:
        """`make` makes the producer, and a new one after a fatal error."""
        self._make = make
        self._producer = make()
        self._outbox = outbox
        self._fetcher = fetcher
        self._tally = tally
        self._failed: list[tuple[Parcel, KafkaError]] = []

    def deliver(self, shipment: Shipment) -> None:
        """See `Carrier`."""
        left, tries = parcels_of(shipment.entries), 0
        rewound: set[int] = set()
        while left:
            left = self._again(self._send(left), rewound)
            # One that was given up meanwhile need not arrive.
            left = [(entry, output) for entry, output in left if entry.origin.takes_output_at(entry.offset)]
            if left:
                tries += 1
                time.sleep(backoff(tries))
        delivered = self._outbox.live(shipment)
        self._tally.delivered(delivered)
        self._fetcher.settle(reached(delivered))
        if rewound:
            self._fetcher.rewind(rewound)

    def serve(self) -> None:
        """See `Carrier`: keep the client's login fresh."""
        self._producer.poll(0)

    def _send(self, parcels: Sequence[Parcel]) -> list[tuple[Parcel, KafkaError]]:
        """Produce them and wait for their fate; those that were not delivered."""
        self._failed = []
        put(self._producer, parcels, self._note)
        while self._producer.flush(_FLUSH_SECONDS):
            pass
        return self._failed

    def _note(self, parcel: Parcel, error: KafkaError) -> None:
        self._failed.append((parcel, error))

    def _again(self, failed: Sequence[tuple[Parcel, KafkaError]], rewound: set[int]) -> list[Parcel]:
        """What is worth another try. An idempotent producer does nothing any more after a fatal error."""
        left = []
        for (entry, output), error in failed:
            if (why := refusal(entry, output, error)) is not None:
                self._outbox.refuse(entry, why)
                rewound.add(entry.origin.number)
            else:
                left.append((entry, output))
        if left:
            error = failed[-1][1]
            self._outbox.trouble = error.str()
            log.warning(f"{len(left)} outputs were not acknowledged, they are sent again: {error.str()}")
            if any(error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._STATE) for _, error in failed):
                self._producer = self._make()
        return left
