"""Records on their way to their topics, of a command or a job: each is acknowledged, or refused with its reason.

Small, as it is all that commands and jobs need of a producer; workers' outputs are `kunicorn.worker.produce`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

Answered = Callable[[KafkaError | None], None]
"""Told of a record's end: acknowledged, or refused with this error. Caller: whoever sends or waits."""
Headers = Sequence[tuple[str, str | bytes | None]]

_FULL_SECONDS = 0.1


class Post:
    """Sends records with one producer, as many at a time as it takes. Every method may block."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        answered: Answered,
        *,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Send one record; wait for room while the producer is full. `timestamp`: milliseconds since 1970."""
        places = {"timestamp": timestamp, "partition": partition}
        more: dict[str, Any] = {name: at for name, at in places.items() if at is not None}

        def delivered(error: KafkaError | None, message: Message) -> None:
            answered(error)

        while True:
            try:
                self._producer.produce(topic, value, key, headers=[*headers], on_delivery=delivered, **more)
                break
            except BufferError:
                self._producer.poll(_FULL_SECONDS)
            except KafkaException as error:
                answered(error.args[0])  # Refused before it is sent, as one is that is too large.
                break
        self._producer.poll(0)

    def flush(self, within: float) -> int:
        """Wait until all are answered, so many seconds at most; how many are not."""
        return self._producer.flush(within)
