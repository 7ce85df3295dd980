"""Records of commands and jobs on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from kunicorn.clients.post import Post

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Producer:
    """Takes `room` records at a time; `refused` are not taken at all."""

    def __init__(self, room: int = 10, refused: bytes | None = None) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._room = room
        self._refused = refused
        self._waiting: list[Callable[[KafkaError | None, None], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Any, **more: Any) -> None:
        if value == self._refused:
            raise KafkaException(TOO_LARGE)
        if len(self._waiting) >= self._room:
            raise BufferError("Local: Queue full")
        self._waiting.append(on_delivery)
        self.sent.append((topic, {"key": key, "value": value, **more}))

    def poll(self, timeout: float) -> None:
        if timeout:
            self.flush(timeout)

    def flush(self, timeout: float) -> int:
        while self._waiting:
            self._waiting.pop(0)(None, None)
        return 0


def sent_by(producer: Producer, *values: bytes) -> list[tuple[bytes, KafkaError | None]]:
    """What each record is told, in the order in which it is told."""
    client: Any = producer
    post, told = Post(client), list[tuple[bytes, KafkaError | None]]()
    for value in values:

        def answered(error: KafkaError | None, value: bytes = value) -> None:
            told.append((value, error))

        post.send("orders", b"k", value, [("h", b"1")], answered, timestamp=7, partition=2)
    assert post.flush(60) == 0
    return told


def test_a_record_goes_with_all_its_parts_and_is_told_when_it_is_acknowledged() -> None:
    producer = Producer()
    assert sent_by(producer, b"v") == [(b"v", None)]
    assert producer.sent == [
        ("orders", {"key": b"k", "value": b"v", "headers": [("h", b"1")], "timestamp": 7, "partition": 2})
    ]


def test_whoever_sends_more_than_the_producer_has_room_for_waits_and_loses_nothing() -> None:
    assert sent_by(Producer(room=1), b"a", b"b", b"c") == [(b"a", None), (b"b", None), (b"c", None)]


def test_a_record_that_cannot_be_sent_is_refused_with_its_reason_and_the_others_go() -> None:
    assert sent_by(Producer(refused=b"huge"), b"a", b"huge", b"c") == [(b"huge", TOO_LARGE), (b"a", None), (b"c", None)]
