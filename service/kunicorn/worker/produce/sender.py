"""Outputs and letters sent at least once: collected, produced, acknowledged or refused.

`Outputs` and `SenderThreads` send what handlers return: executors collect, the senders' threads deliver. 1. A record
counts as consumed only when everything that it left is delivered (or it left nothing, and everything before it in its
partition is). 2. Nobody but the senders waits for a broker.

`Acknowledging` has a batch's outputs produced; its offsets count when the brokers have acknowledged them all. What is
not acknowledged in time is sent again: an output may then arrive twice, and behind one that came after it.

Records that were given up go to the dead-letter topic, and to retry topics, by an outbox and a sender of their own
(`letters.LetterSender`), with a producer that is made when the first letter is due: no output waits for a letter.

`refusal` says which errors of an output are its record's fault, and which are a broker's trouble. Pure.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.backoff import Backoff, Retries
from kunicorn.errors import FENCED_STATUS, ExitCode
from kunicorn.handler.call import Calls, ReturnCheck
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.load import Handler
from kunicorn.handler.outputs import Made, Outgoing, calls_sending, refuse_two_committers, sending
from kunicorn.librdkafka.errors import fault_of
from kunicorn.worker.executors.executor import Returned
from kunicorn.worker.linux import exit_now
from kunicorn.worker.produce.outbox import DeliveryListener, Entry, GivenUp, Outbox, OutputBatch
from kunicorn.worker.produce.request_sizes import RequestSizes, with_following
from kunicorn.worker.produce.telemetry import Output, SendTelemetry
from kunicorn.worker.progress import InFlight

_SWITCH_SECONDS = 0.0005
"""How long the handler keeps the interpreter from the sender, which needs it a few times for each batch: with Python's
5 ms, transactions beside a handler that computes wait longer for it than for the brokers."""


class Outputs:
    """Outputs of handlers, kept with their records until these go into the outbox."""

    def __init__(self, topic: str | None, delivery: str) -> None:
        """`topic`: topic of a Send that names none. `delivery` is that of [producing]."""
        self._topic = topic
        self._delivery = delivery

    def check(self, handler: Handler) -> None:
        """Raise `ConfigError` for a handler that stores its own offsets where transactions commit them, too."""
        refuse_two_committers(handler, self._delivery)

    def calls(self, handler: Handler, config: HandlerConfig) -> Calls:
        """The `Calls` of a handler with one call at a time. Raises like `calls_of`."""
        return calls_sending(handler, config, self._topic, InFlight.leave)

    def sending(self, handler: Handler, config: HandlerConfig) -> Handler:
        """The handler with its outputs taken out, for `on_return`, where it has several calls at a time."""
        return sending(handler, self._topic, traced=config.tracing is not None)

    def on_return(self, handler: Handler) -> Returned:
        """Function for what such a handler returns. Any thread."""
        check = ReturnCheck(handler.entrypoint)

        def keep(flight: InFlight, returned: Any) -> None:
            flight.withdraw()
            if type(returned) is Made:
                flight.leave(flight.offset, flight.end, returned.outputs)
                returned = returned.said
            check(returned)

        return keep


class Sender(Protocol):
    """Deliverer of batches. Caller: its sender's thread."""

    often: bool
    """It has something to deliver all the time, not only where records fail."""

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
        if any(each.sender.often for each in self._senders):
            sys.setswitchinterval(_SWITCH_SECONDS)
        for sender in self._senders:
            sender.start()


class _SenderThread(threading.Thread):
    def __init__(self, outbox: Outbox, sender: Sender, turn: int) -> None:
        super().__init__(name=f"sender-{turn}", daemon=True)
        self._outbox = outbox
        self.sender = sender
        self._turn = turn

    def run(self) -> None:
        """Deliver batches until the process ends. A failure ends the worker: without a sender nothing would ever be
        consumed.
        """
        try:
            while True:
                if batch := self._outbox.take(self._turn):
                    self.sender.deliver(batch)
                    self._outbox.done(batch)
                else:
                    self.sender.serve()
        except Fenced as error:
            end_worker(str(error), FENCED_STATUS)
        except BaseException:
            end_worker(f"the sender broke, exiting\n{traceback.format_exc().rstrip()}", ExitCode.BUG)


def end_worker(why: str, status: int) -> NoReturn:
    """End this process now, whatever its threads are in. Any thread."""
    # A text of the handler's may have a lone surrogate, and this is no time to raise.
    exit_now(status, f"worker {os.getpid()}: {why}\n".encode(errors="backslashreplace"))


HOPELESS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError._INVALID_ARG,
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

_OF_THE_PRODUCER = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    }
)
"""Beside fatal ones: errors of whatever a producer has when it, or its transaction, is of no use any more. No topic has
refused that."""


class NotDelivered(Exception):
    """Failure of a record whose outputs the brokers do not take."""


class LetterTooLarge(Exception):
    """The topic of a letter will never take it: nothing is cut off a record to make it fit."""


class LetterRefused(Exception):
    """The topic of a letter does not take it now, which is no fault of the record's."""

    def __init__(self, text: str, given_up: GivenUp) -> None:
        super().__init__(text)
        self.given_up = given_up


def refusal(entry: Entry, output: Outgoing, error: KafkaError) -> BaseException | None:
    """Failure of the record for a refused output; None where the output is worth another try.

    A letter, dead or to a retry topic, waits until its topic takes it, unless it is too large: its record waits
    with it, and whatever goes out with it would wait as well if it were sent again at once.
    """
    given_up, code = entry.given_up, error.code()
    if code not in HOPELESS and (given_up is None or is_fatal(error) or code in _OF_THE_PRODUCER):
        return None
    remedy = fault_of(code).remedy(rights="WRITE")
    if given_up is None:
        return NotDelivered(f"an output for topic {output.topic!r} is refused ({error.name()}): {remedy}")
    kind, cause = given_up.destination.kind, given_up.cause
    if code in _TOO_LARGE:
        return LetterTooLarge(
            f"the record is too large for the {kind} {output.topic!r}: {remedy} (the headers come on top of the "
            f"record). {cause.type}: {cause.message}"
        )
    return LetterRefused(f"{error.name()}: {remedy}", given_up)


log = logging.getLogger("kunicorn.worker")

_FLUSH_SECONDS = 1.0
_FULL_QUEUE_SECONDS = 0.05
BACKOFF = Backoff(first_seconds=0.15, longest_seconds=3.75, jitter=1 / 3)
"""Before outputs are sent again: 0.1 to 0.2 s at first, 2.5 to 5 s at last; half of it is chance."""


def outputs_in(entries: Iterable[Entry]) -> list[Output]:
    """Every output of these, in order."""
    return [(entry, output) for entry in entries for output in entry.outputs]


def wanted(outputs: Iterable[Output]) -> list[Output]:
    """Those of them that are still to be delivered."""
    return [output for output in outputs if output[0].origin.takes_output_at(output[0].offset)]


def reached(entries: Iterable[Entry]) -> Mapping[int, int]:
    """Offset up to which each origin is done once these are delivered, by its number."""
    return {entry.origin.number: entry.following for entry in entries}


def put(
    producer: Producer,
    outputs: Iterable[Output],
    failed: Callable[[Output, KafkaError], None],
    arrived: Callable[[Output], None] | None = None,
) -> None:
    """Produce these outputs; `failed` is told, now or from within `poll`, of each that is not delivered, `arrived` of
    the others, if the producer reports them. Blocks while the client's queue is full; what is larger than all of it
    fails with _QUEUE_FULL.
    """
    produce = producer.produce
    for output in outputs:
        _, outgoing = output
        told = partial(_told, failed, arrived, output)
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
    failed: Callable[[Output, KafkaError], None],
    arrived: Callable[[Output], None] | None,
    output: Output,
    error: KafkaError | None,
    message: Message,
) -> None:
    if error is not None:
        failed(output, error)
    elif arrived is not None:
        arrived(output)


def is_fatal(error: KafkaError) -> bool:
    """Whether the producer that had this error does nothing any more."""
    return error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._STATE)


def is_worn_out(error: KafkaError) -> bool:
    """Whether another producer is to go on: this one does nothing any more, or has waited in vain for as long as it
    may. A client that was told of no brokers at all may look for none from then on (confluentinc/librdkafka 5301).
    """
    return is_fatal(error) or error.code() == KafkaError._MSG_TIMED_OUT


class Channel:
    """The producer of outputs: made when the first of them is due, and anew once one is worn out. Caller: a sender's
    thread.
    """

    def __init__(self, make: Callable[[], Producer], sizes: RequestSizes) -> None:
        self._make = make
        self._producer: Producer | None = None
        self._sizes = sizes
        self._piece: list[Output] = []
        """What is produced, and its reports not waited for."""
        self._reported: list[tuple[Output, KafkaError]] = []
        """Of that: what was not delivered."""
        self._failed: list[tuple[Output, KafkaError]] = []

    def put(self, outputs: Sequence[Output]) -> None:
        """Produce these behind those before them, but for what is lost while these are waited for."""
        for piece in self._sizes.pieces(outputs):
            if self._sizes and self._piece:
                self._wait()
            if self._producer is None:
                self._producer = self._make()
            live = wanted(piece) if self._sizes else piece
            self._piece += live
            put(self._producer, live, self._note)

    def flush(self) -> list[tuple[Output, KafkaError]]:
        """Wait for the reports of all that was put since the last time; those that were not delivered. What brokers
        refuse as too large together with others is sent once more in smaller pieces before it counts.
        """
        self._wait()
        failed, self._failed = self._failed, []
        return failed

    def serve(self) -> None:
        """Keep the client's login fresh."""
        if self._producer is not None:
            self._producer.poll(0)

    def _wait(self) -> None:
        while self._producer is not None and self._producer.flush(_FLUSH_SECONDS):
            pass
        (piece, self._piece), (reported, self._reported) = (self._piece, []), (self._reported, [])
        if not reported:
            return
        if any(is_worn_out(error) for _, error in reported):
            self._producer = None
        again = with_following(piece, self._sizes.refused_together(piece, reported))
        ids = set(map(id, again))
        self._failed += [(output, error) for output, error in reported if id(output) not in ids]
        if again:
            self.put(again)
            self._wait()

    def _note(self, output: Output, error: KafkaError) -> None:
        self._reported.append((output, error))


class Acknowledging:
    """`Sender` that delivers outputs at least once. Caller: the sender's thread."""

    often = True

    def __init__(self, channel: Channel, outbox: Outbox, table: DeliveryListener, telemetry: SendTelemetry) -> None:
        self._channel = channel
        self._outbox = outbox
        self._table = table
        self._telemetry = telemetry

    def deliver(self, batch: OutputBatch) -> None:
        # Of a partition that was lost while the batch waited, another member may have sent the later ones by now.
        left, retries = outputs_in(self._outbox.live(batch)), Retries(BACKOFF)
        rewound: dict[int, int] = {}
        while left:
            left = wanted(self._again(self._send(left), rewound))
            if left:
                self.serve()
                time.sleep(retries.failed())
        delivered = self._outbox.live(batch)
        self._telemetry.count_sent(delivered)
        self._table.delivered(reached(delivered))
        if rewound:
            self._table.rewind(rewound)

    def serve(self) -> None:
        """Keep the client's login fresh."""
        self._channel.serve()

    def _send(self, outputs: Sequence[Output]) -> list[tuple[Output, KafkaError]]:
        """Send the outputs; those that were not delivered."""
        sending = self._telemetry.begun(outputs)
        self._channel.put(outputs)
        failed = self._channel.flush()
        sending.ended(failed)
        return failed

    def _again(self, failed: Sequence[tuple[Output, KafkaError]], rewound: dict[int, int]) -> list[Output]:
        """Outputs that are worth another try."""
        left, refused = list[Output](), list[tuple[Entry, BaseException]]()
        for (entry, output), error in failed:
            if (why := refusal(entry, output, error)) is not None:
                refused.append((entry, why))
            else:
                left.append((entry, output))
        rewound.update(self._outbox.refuse(refused))
        if left:
            error = failed[-1][1]
            self._outbox.note_trouble(error.str())
            log.warning(f"{len(left)} outputs were not acknowledged, they are sent again: {error.str()}")
        return left
