"""Sending what handlers return: between the runner, which collects, and the senders' threads, which deliver.

1. A record counts as consumed only when everything that it left is delivered (or it left nothing, and everything before
   it in its partition is).
2. The runner never waits for a broker, but for room in the outbox.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Message

from kunicorn.errors import ExitCode
from kunicorn.handlers import Handler
from kunicorn.handling.addresses import Address, dead_letters
from kunicorn.handling.calls import Calls
from kunicorn.handling.deadletters import Cause
from kunicorn.handling.outputs import Outgoing, calls_sending, outputs_of, refuse_two_committers, size_of
from kunicorn.handling.returns import Heed
from kunicorn.pipes.orders import HandlerOrder
from kunicorn.producing import NotToBeSent
from kunicorn.records import Record
from kunicorn.worker.crew import Take
from kunicorn.worker.flight import Flight
from kunicorn.worker.grants import Grant
from kunicorn.worker.letters import Delivery, LetterProducer
from kunicorn.worker.outbox import Entry, GivenUp, Outbox
from kunicorn.worker.shipment import Shipment

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
