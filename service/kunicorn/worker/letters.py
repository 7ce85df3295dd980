"""Sending letters, records that were given up: to the dead-letter topic, and to retry topics. One producer a worker,
made when the first letter is due. Everything here is the runner's.

A letter counts only when every in-sync replica has it (`acks=all`); until then its record is not done with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.complaints import librdkafka, log_client_error
from kunicorn.handling.addresses import Address, dead_letters
from kunicorn.handling.deadletters import Cause, Letter
from kunicorn.pipes.orders import DeadLetterTarget
from kunicorn.records import Record
from kunicorn.worker.login import Login

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
