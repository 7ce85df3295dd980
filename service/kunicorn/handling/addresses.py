"""Where records go that were given up, and how they look there: the dead-letter topic, or a retry topic.

A record of a retry topic has its own timestamp, that of its sending: the topic's retention and its delay count from
there. What it was before stands in headers (`kunicorn.origins`). No Kafka client is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kunicorn.handling.deadletters import (
    ERROR_MESSAGE,
    ERROR_TYPE,
    GROUP,
    Cause,
    Letter,
    SourceRecord,
    letter_of,
    with_ours,
)
from kunicorn.handling.retry import End
from kunicorn.origins import ATTEMPTS, OFFSET, PARTITION, RETRY_TOPIC, TIMESTAMP, TOPIC
from kunicorn.records import Record
from kunicorn.retry_topics import RetryTopic


@dataclass(frozen=True, slots=True)
class Address:
    """One topic, and what a record becomes on its way there."""

    topic: str
    kind: str
    """For people: "dead-letter topic"."""
    end: End
    """How the record has ended by that; a partition waits for this by the same name."""
    letter: Callable[[Record, str, Cause, int], Letter]
    """Of a record, the group, what it failed by, and now (milliseconds since 1970)."""


def dead_letters(topic: str) -> Address:
    """The dead-letter topic of that name."""
    return Address(topic, "dead-letter topic", End.DEAD_LETTER, _dead_letter)


def retries(topic: RetryTopic) -> Address:
    """A retry topic."""

    def letter(record: Record, group: str, cause: Cause, now_ms: int) -> Letter:
        return retry_of(record, group, cause, now_ms, topic.name)

    return Address(topic.name, "retry topic", End.RETRY_TOPIC, letter)


def retry_of(record: Record, group: str, cause: Cause, now_ms: int, topic: str) -> Letter:
    """The record as it waits in that retry topic from `now_ms` on."""
    origin = record.origin
    added = {
        RETRY_TOPIC: topic,
        TOPIC: origin.topic,
        PARTITION: str(origin.partition),
        OFFSET: str(origin.offset),
        GROUP: group,
        ERROR_TYPE: cause.type,
        ERROR_MESSAGE: cause.message,
        ATTEMPTS: str(origin.attempts + cause.attempts),
    }
    if origin.timestamp is not None:
        added[TIMESTAMP] = str(origin.timestamp)
    return Letter(record.key, record.value, with_ours(record.headers, added), now_ms)


def _dead_letter(record: Record, group: str, cause: Cause, now_ms: int) -> Letter:
    """As of the place where the record was first, with all its tries."""
    origin = record.origin
    first = SourceRecord(
        origin.topic, origin.partition, origin.offset, origin.timestamp, record.key, record.value, record.headers
    )
    return letter_of(first, group, replace(cause, attempts=origin.attempts + cause.attempts), now_ms)
