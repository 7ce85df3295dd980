"""Where a consumer begins: positions that are held against the log."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

_BEGUN_WITHIN = 5.0
"""Seconds: so long may the client take to begin with what it was assigned."""


def hold_against_log(consumer: Consumer, begun: Iterable[ClientPartition]) -> None:
    """Have the client report a truncation where the log is not the one any more in which these positions were reached,
    by their leader epochs (KIP-320). Caller: whoever has just assigned them. Blocks for milliseconds; raises
    `KafkaException` where the client does not begin with one.

    librdkafka compares the epoch where it seeks, not where it begins (`rd_kafka_toppar_fetch_start`): a log that was
    cut while nobody fetched it, and has grown beyond the position since, would be read on behind all that it has anew.
    """
    deadline = time.monotonic() + _BEGUN_WITHIN
    for place in begun:
        if place.leader_epoch is not None:
            _seek(consumer, place, deadline)


def _seek(consumer: Consumer, place: ClientPartition, deadline: float) -> None:
    """A partition begins once those that were unassigned just before have ended: a millisecond or two."""
    while True:
        try:
            consumer.seek(place)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                raise
        time.sleep(0.001)
