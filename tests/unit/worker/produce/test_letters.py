"""Letters on their way, with a client that the test plays where a broker cannot be made to do it on demand."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, Message

from kunicorn.handler.config import DeadLetterTarget
from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.worker.client import Login
from kunicorn.worker.produce.sender import Delivery, LetterProducer

CAUSE = Cause("ValueError", "no", "", 1)
A, B = (Message(topic="orders", partition=0, offset=offset, value=b"v") for offset in (1, 2))


class FullQueue:
    """Takes one letter, then none."""

    def __init__(self, properties: dict[str, Any], **more: Any) -> None:
        self.reports: list[Any] = []

    def produce(self, *what: Any, on_delivery: Any, **more: Any) -> None:
        if self.reports:
            raise BufferError("queue full")
        self.reports.append(on_delivery)

    def poll(self, seconds: float) -> None:
        for report in self.reports:
            report(None, A)


def test_letters_arrive_together_or_the_first_refusal_counts() -> None:
    delivery = Delivery(2)
    delivery.told(None, A)
    told = [delivery.over]
    delivery.told(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION), B)
    assert [*told, delivery.over] == [False, True]
    assert delivery.error is not None
    assert delivery.error.code() == KafkaError.NOT_LEADER_FOR_PARTITION


class Fatal(FullQueue):
    """Reports nothing any more."""

    def poll(self, seconds: float) -> None:
        """Nothing."""


def test_when_a_producer_is_replaced_letters_that_it_has_not_reported_are_sent_anew() -> None:
    made: Any = Fatal
    letters = LetterProducer(DeadLetterTarget("letters", "shop", {}), Login(None), made)
    one = letters.send(dead_letters("letters"), [A], CAUSE)
    letters.start_anew()
    assert one.over, "the record would wait for ever"
    assert one.error is not None
    two = letters.send(dead_letters("letters"), [B], CAUSE)
    assert not two.over


def test_a_batch_that_the_client_takes_half_of_is_refused_as_a_whole_whatever_is_reported_later() -> None:
    made: Any = FullQueue
    letters = LetterProducer(DeadLetterTarget("letters", "shop", {}), Login(None), made)
    delivery = letters.send(dead_letters("letters"), [A, B], CAUSE)
    assert delivery.over
    letters.serve()
    assert delivery.over, "the record would wait for ever"
    assert delivery.error is not None
    assert delivery.error.code() == KafkaError._QUEUE_FULL
