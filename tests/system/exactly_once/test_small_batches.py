"""Topics whose `max.message.bytes` is below librdkafka's batches take backlogs of outputs and letters all the same, and
refuse only the record that is too large by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.handler.dead_letters import read
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members
from tests.system.outputs import committed_records
from tests.system.producing import committed_offsets, headers_of, producer

RECORDS = 2000
SMALL = {"max.message.bytes": "262144"}
HANDLERS = "tests.system.handlers.sending"


def backlog(kafka: KafkaCluster, topic: str, *, large_at: int | None = None, nbytes: int = 1) -> None:
    """So many records of a hundred keys, which cannot be compressed, in a topic of one partition."""
    kafka.create_topic(topic, 1)
    sender = producer(kafka.bootstrap, **{"enable.idempotence": True})
    for number in range(RECORDS):
        sender.produce(topic, b"large" if number == large_at else os.urandom(nbytes), b"%d" % (number % 100))
    assert sender.flush(60) == 0


def until_all_are_consumed(member: MemberProcess, kafka: KafkaCluster, topic: str) -> None:
    """Whether by an output or by a letter."""

    def all_of_it() -> bool:
        return committed_offsets(kafka.bootstrap, topic, topic, 1).popitem()[1] == RECORDS

    member.wait(all_of_it, "all records to be consumed", 120)
    assert member.stop() == 0, member.output()[-3000:]


def inputs_of(outputs: Iterable[Message]) -> list[int]:
    """The offsets that the outputs name, in the topic's order."""
    return [int((each.value() or b"").split(b":")[1]) for each in outputs]


def in_order_at_last(outputs: Iterable[Message]) -> bool:
    """Whether of each key what is there last of each input comes in the inputs' order: at least once, outputs may come
    again, and those behind them with them."""
    last: dict[bytes | None, list[int]] = {}
    for each in outputs:
        offset = int((each.value() or b"").split(b":")[1])
        kept = last.setdefault(each.key(), [])
        if offset in kept:
            kept.remove(offset)
        kept.append(offset)
    return all(kept == sorted(kept) for kept in last.values())


@pytest.mark.parametrize("delivery", ["at_least_once", "transactions"])
def test_a_backlog_of_outputs_gets_into_a_topic_of_small_batches_and_what_is_too_large_by_itself_fails(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], delivery: str
) -> None:
    backlog(kafka, topic, large_at=700)
    kafka.create_topic(f"{topic}.out", 1, SMALL)
    kafka.create_topic(f"{topic}.letters", 1)
    settings: dict[str, dict[str, Any]] = {
        "producing": {"delivery": delivery, "topic": f"{topic}.out"},
        "dead_letters": {"topic": f"{topic}.letters"},
        "group": {"commit_interval_ms": 500},
        "handler": {"mode": "batch", "batch_max_records": 500, "max_attempts": 1, "on_failure": "dead_letter"},
    }
    members = members_of(kafka.bootstrap, topic, entrypoint=f"{HANDLERS}:large", settings=settings, workers=1)
    member = members.start()
    until_all_are_consumed(member, kafka, topic)
    (letter,) = committed_records(kafka.bootstrap, f"{topic}.letters", 1)
    assert read(headers_of(letter)).offset == 700
    outputs = committed_records(kafka.bootstrap, f"{topic}.out", 1)
    assert set(inputs_of(outputs)) == set(range(RECORDS)) - {700}
    assert in_order_at_last(outputs)
    if delivery == "transactions":
        assert inputs_of(outputs) == [number for number in range(RECORDS) if number != 700]


@pytest.mark.parametrize("delivery", [None, pytest.param("at_least_once", marks=pytest.mark.long), "transactions"])
def test_letters_of_a_failed_batch_get_into_a_topic_of_small_batches(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], delivery: str | None
) -> None:
    backlog(kafka, topic, nbytes=5000)
    kafka.create_topic(f"{topic}.letters", 1, SMALL)
    settings: dict[str, dict[str, Any]] = {
        "dead_letters": {"topic": f"{topic}.letters"},
        "group": {"commit_interval_ms": 500},
        "handler": {"mode": "batch", "batch_max_records": 500, "max_attempts": 1, "on_failure": "dead_letter"},
        **({"producing": {"delivery": delivery}} if delivery is not None else {}),
    }
    members = members_of(kafka.bootstrap, topic, entrypoint=f"{HANDLERS}:fail_batch", settings=settings, workers=1)
    member = members.start()
    until_all_are_consumed(member, kafka, topic)
    letters = committed_records(kafka.bootstrap, f"{topic}.letters", 1)
    assert sorted(read(headers_of(letter)).offset for letter in letters) == list(range(RECORDS))
