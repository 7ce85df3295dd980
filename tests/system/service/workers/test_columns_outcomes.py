"""Rows of one batch that end in different ways, and columns that are sent, beside a real broker and with kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kunicorn.commands.demo.audit import read_audit
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import MemberProcess, Members
from tests.system.outputs import committed_outputs, committed_records
from tests.system.producing import committed_offsets, end_offsets, producer

PARTITIONS = 4
RECORDS = 2_000
JSON = {"value": "json", "value_schema": "tests.system.handlers.columnar:SCHEMA"}
OWN = {"kafka": {"fetcher": "own"}}


def columns(function: str, **more: object) -> dict[str, object]:
    entrypoint = f"tests.system.handlers.columnar:{function}"
    return {"entrypoint": entrypoint, "mode": "arrow", "batch_max_records": 50, **more}


def produce_numbers(kafka: KafkaCluster, topic: str) -> None:
    sender = producer(kafka.bootstrap)
    for number in range(RECORDS):
        sender.produce(topic, b'{"number": %d}' % number, b"k%d" % number, partition=number % PARTITIONS)
        sender.poll(0)
    assert sender.flush(60) == 0


def killed_once(member: MemberProcess) -> None:
    """A worker is killed in the middle, and all is handled after that."""
    member.wait(lambda: handled_up_to(member) > 200, "a part of the backlog")
    os.kill(member.workers()[0]["pid"], signal.SIGKILL)
    member.wait(lambda: handled_up_to(member) == RECORDS, "the rest", 120)


@pytest.mark.parametrize("fetcher", [pytest.param("librdkafka", marks=pytest.mark.long), "own"])
def test_rows_end_as_masks_say_and_letters_have_the_records_own_bytes(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], fetcher: str
) -> None:
    """Invariants 1 and 4: every record is handled, and every seventh one is in the dead-letter topic."""
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(dead := f"{topic}-dead", 1)
    produce_numbers(kafka, topic)
    settings = {
        "kafka": {"fetcher": fetcher},
        "handler": columns("decide", retry_backoff_ms=1, retry_backoff_max_ms=5, **JSON),
        "dead_letters": {"topic": dead},
    }
    members = members_of(kafka.bootstrap, topic, settings=settings, env={"KUNICORN_HANDLER_MS": "20"})
    member = members.start()
    killed_once(member)
    assert member.stop() == 0
    ends = end_offsets(kafka.bootstrap, topic, PARTITIONS)
    assert committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS) == ends
    begun = {(each.partition, each.offset) for file in read_audit(members.audit) for each in file.entries()}
    assert len(begun) == RECORDS
    letters = committed_records(kafka.bootstrap, dead, 1)
    sevens = range(7, RECORDS, 10)
    assert {(each.key(), each.value()) for each in letters} == {(b"k%d" % n, b'{"number": %d}' % n) for n in sevens}


@pytest.mark.parametrize("delivery", [pytest.param("at_least_once", marks=pytest.mark.long), "transactions"])
def test_columns_that_a_handler_returns_are_sent_a_record_a_row(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], delivery: str
) -> None:
    """In transactions each is sent once, whatever is killed."""
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(out := f"{topic}-out", 1)
    produce_numbers(kafka, topic)
    settings = {**OWN, "handler": columns("pass_on"), "producing": {"delivery": delivery, "topic": out}}
    members = members_of(kafka.bootstrap, topic, settings=settings, env={"KUNICORN_HANDLER_MS": "20"})
    member = members.start()
    killed_once(member)
    assert member.stop() == 0
    ends = end_offsets(kafka.bootstrap, topic, PARTITIONS)
    assert committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS) == ends
    sent = committed_outputs(kafka.bootstrap, out, 1)
    assert sent.keys() == {f'{{"number": {number}}}' for number in range(RECORDS)}
    if delivery == "transactions":
        assert set(sent.values()) == {1}
