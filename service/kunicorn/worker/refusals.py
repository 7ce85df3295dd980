"""Which errors of an output are its record's fault, and which are a broker's trouble. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from kunicorn.handling.outputs import Outgoing
from kunicorn.outcomes import Halt
from kunicorn.worker.outbox import Entry, GivenUp

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
