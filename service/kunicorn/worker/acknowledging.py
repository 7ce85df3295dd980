"""At least once: a shipment's outputs are produced, and its offsets count when the brokers have acknowledged them all.

What is not acknowledged in time is sent again: an output may then arrive twice, and behind one that came after it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.handling.outputs import Outgoing
from kunicorn.worker.outbox import Entry, Outbox, Settles
from kunicorn.worker.refusals import refusal
from kunicorn.worker.shipment import Shipment
from kunicorn.worker.tally import Tally

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
