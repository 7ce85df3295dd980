"""Dead letters by exception, by reason and by handler, on a real broker, with the headers that others read: each record
is handled or is one letter, in the topic that the settings mean."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import Members
from tests.system.outputs import committed_outputs, committed_records
from tests.system.producing import committed_offsets, consumed, headers_of
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
EXCEPTION = "tests.system.handlers.marked.NoSuchCustomer"
RULES = """
[[handler.failures]]
exceptions = ["{exception}"]
max_attempts = 2
dead_letter_topic = "{topic}.customers"
"""
VALUES = ("fine", "raise", "refuse", "die", "fine", "exit", "fine")
"""What each record has its handler do."""
LETTERS: Mapping[str, tuple[int, str, int]] = {
    # Its topic: the record's offset, the exception, its tries.
    "customers": (1, EXCEPTION, 2),
    "mine": (2, "ConnectionRefusedError", 3),
    "poison": (3, "WorkerDied", 2),
    "exits": (5, "SystemExit", 1),
}


def spring(facts: tuple[str, int, int, str, int]) -> dict[str, bytes]:
    """What `DeadLetterPublishingRecoverer` writes, and a Spring listener reads by `KafkaHeaders.DLT_…`."""
    topic, offset, timestamp, error, _ = facts
    return {
        "kafka_dlt-original-topic": topic.encode(),
        "kafka_dlt-original-partition": struct.pack(">i", 0),
        "kafka_dlt-original-offset": struct.pack(">q", offset),
        "kafka_dlt-original-timestamp": struct.pack(">q", timestamp),
        "kafka_dlt-original-consumer-group": topic.encode(),
        "kafka_dlt-exception-fqcn": error.encode(),
    }


def connect(facts: tuple[str, int, int, str, int]) -> dict[str, bytes]:
    """What `DeadLetterQueueReporter` writes."""
    topic, offset, _, error, _ = facts
    return {
        "__connect.errors.topic": topic.encode(),
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": str(offset).encode(),
        "__connect.errors.connector.name": topic.encode(),
        "__connect.errors.exception.class.name": error.encode(),
    }


def karafka(facts: tuple[str, int, int, str, int]) -> dict[str, bytes]:
    """What Karafka Pro's enhanced dead letter queue writes."""
    topic, offset, _, _, attempts = facts
    return {
        "source_topic": topic.encode(),
        "source_partition": b"0",
        "source_offset": str(offset).encode(),
        "source_consumer_group": topic.encode(),
        "source_attempts": str(attempts).encode(),
    }


@pytest.mark.parametrize(
    "style", [spring, *(pytest.param(each, marks=pytest.mark.long) for each in (connect, karafka))]
)
def test_each_record_is_handled_or_is_one_letter_in_the_topic_that_is_meant(
    scene: SceneMaker, style: Callable[[tuple[str, int, int, str, int]], dict[str, bytes]]
) -> None:
    handler = {"on_failure": "dead_letter", "max_attempts": 3}
    stage: Scene = scene(1, workers=1, settings={"handler": handler})
    topic = stage.topic
    for name in (*LETTERS, "all"):
        stage.kafka.create_topic(f"{topic}.{name}", 1)
    settings: dict[str, dict[str, Any]] = {
        "handler": {"dead_letter_topic": f"{topic}.mine"},
        "dead_letters": {
            "topic": f"{topic}.all",
            "topics": {"poison": f"{topic}.poison", "exit": f"{topic}.exits", "attempts": f"{topic}.mine"},
            "headers": style.__name__,
        },
    }
    stage.send(0, *VALUES[:3])
    member = stage.members.start(settings, more=RULES.format(exception=EXCEPTION, topic=topic))

    def counted(reason: str, count: int) -> None:
        of = {"group": topic, "reason": reason, "topic": topic}
        member.wait(lambda: member.metric("kunicorn_dead_letters_total", **of) == count, f"{count} for {reason}")

    # Before the next record kills the worker: counts that it has not told are lost with it.
    counted("attempts", 2)
    stage.send(0, *VALUES[3:])
    stage.wait_all_committed()
    counted("poison", 1)
    counted("exit", 1)
    assert member.stop() == 0
    assert stage.handled(0) == [offset for offset, value in enumerate(VALUES) if value == "fine"], "each once, in order"
    given = consumed(stage.kafka.bootstrap, topic, len(VALUES))
    for name, (offset, error, attempts) in LETTERS.items():
        (letter,) = consumed(stage.kafka.bootstrap, f"{topic}.{name}", 1)
        assert (letter.value(), letter.timestamp()) == (given[offset].value(), given[offset].timestamp())
        told = dict(headers_of(letter))
        theirs = style((topic, offset, given[offset].timestamp()[1], error, attempts))
        assert {header: told.get(header) for header in theirs} == theirs, name
    assert consumed(stage.kafka.bootstrap, f"{topic}.all", 0) == []


HANDLERS = """
[[handlers]]
topics = ["{topic}"]
entrypoint = "tests.system.handlers.marked:handle"
on_failure = "dead_letter"
max_attempts = 1

[[handlers]]
topics = ["{topic}-refunds"]
entrypoint = "tests.system.handlers.marked:handle"
on_failure = "dead_letter"
max_attempts = 1
dead_letter_topic = "{topic}.refunds"
"""


def test_letters_of_each_handler_go_to_its_own_topic(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    for name in (topic, f"{topic}-refunds", f"{topic}.dead-letters", f"{topic}.refunds"):
        kafka.create_topic(name, 1)
    marks = tmp_path / "marks"
    marks.mkdir()
    settings: dict[str, dict[str, Any]] = {
        "group": {"topics": [topic, f"{topic}-refunds"]},
        "handler": {"on_failure": "dead_letter", "max_attempts": 1},
    }
    entrypoint, env = "tests.system.handlers.marked:handle", {"MARKS_DIRECTORY": str(marks)}
    members = members_of(kafka.bootstrap, topic, workers=1, entrypoint=entrypoint, settings=settings, env=env)
    stage = Scene(kafka, topic, 1, members, marks)
    refunds = Scene(kafka, f"{topic}-refunds", 1, members, marks)
    for each in (stage, refunds):
        each.send(0, "fine", "raise", "fine")
    member = members.start(more=HANDLERS.format(topic=topic))

    for name in (topic, f"{topic}-refunds"):
        end = {TopicPartition(name, 0): 3}
        member.wait(lambda: committed_offsets(kafka.bootstrap, topic, name, 1) == end, f"all of {name}")  # noqa: B023
    assert member.stop() == 0
    assert sorted(stage.handled(0)) == [0, 0, 2, 2], "two topics with one audit"
    for letters, origin in ((f"{topic}.dead-letters", topic), (f"{topic}.refunds", f"{topic}-refunds")):
        (letter,) = consumed(kafka.bootstrap, letters, 1)
        assert dict(headers_of(letter))["kunicorn-topic"] == origin.encode()


KINDS = ("fine", "fraud", "locked")
"""What records say; all but the first raise an exception of their own (`tests.system.handlers.refusing`)."""
BY_EXCEPTION = """
[[handler.failures]]
exceptions = ["tests.system.handlers.refusing.Fraud"]
max_attempts = 1
dead_letter_topic = "{topic}.fraud"

[[handler.failures]]
exceptions = ["tests.system.handlers.refusing.Locked"]
max_attempts = 2
dead_letter_topic = "{topic}.locked"
"""
ATTEMPTS = {"fraud": 1, "locked": 2}
WAYS: Mapping[str, dict[str, Any]] = {
    "records": {"entrypoint": "handle"},
    "threads": {"entrypoint": "handle", "concurrency": 8},
    "tasks": {"entrypoint": "handle_async"},
    "batches": {"entrypoint": "handle_batch", "mode": "batch"},
    "columns": {"entrypoint": "handle_arrow", "mode": "arrow"},
}
PARTITIONS, RECORDS = 2, 60


def offsets_of(kind: str) -> Collection[int]:
    """Offsets, in each partition, of the records of that kind."""
    return range(KINDS.index(kind), RECORDS, len(KINDS))


def of_two_exceptions(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], handler: Mapping[str, Any], **more: Any
) -> Scene:
    """Records of every kind, and a group whose letters have three topics."""
    for name, partitions in ((topic, PARTITIONS), *((f"{topic}.{each}", 1) for each in (*ATTEMPTS, "all", "out"))):
        kafka.create_topic(name, partitions)
    own = {**handler, "entrypoint": f"tests.system.handlers.refusing:{handler['entrypoint']}"}
    settings = {
        "handler": {"on_failure": "dead_letter", "retry_backoff_ms": 20, **own},
        "dead_letters": {"topic": f"{topic}.all"},
        **more,
    }
    members = members_of(kafka.bootstrap, topic, workers=2, settings=settings)
    stage = Scene(kafka, topic, PARTITIONS, members, members.directory)
    for partition in range(PARTITIONS):
        stage.send(partition, *(KINDS[number % len(KINDS)] for number in range(RECORDS)))
    return stage


def assert_each_letter_is_in_its_exceptions_topic(stage: Scene) -> None:
    """Once, with what led there; and none is anywhere else."""

    def of(letter: Message) -> tuple[int, int, str, int]:
        told = {name: (value or b"").decode() for name, value in headers_of(letter)}
        error = told["kunicorn-error-type"].rpartition(".")[2]
        return int(told["kunicorn-partition"]), int(told["kunicorn-offset"]), error, int(told["kunicorn-attempts"])

    for kind, attempts in ATTEMPTS.items():
        letters = committed_records(stage.kafka.bootstrap, f"{stage.topic}.{kind}", 1)
        meant = [(p, at, kind.capitalize(), attempts) for p in range(PARTITIONS) for at in offsets_of(kind)]
        assert sorted(map(of, letters)) == meant
        assert {letter.value() for letter in letters} == {kind.encode()}
    assert committed_records(stage.kafka.bootstrap, f"{stage.topic}.all", 1) == []


# Masks of rows have a way of their own to a letter; the other ways share one.
IN_CI = {"records", "columns"}


@pytest.mark.parametrize("way", rest_long(WAYS, IN_CI))
def test_letters_of_two_exceptions_go_to_two_topics_in_each_way_of_calling_a_handler(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], way: str
) -> None:
    stage = of_two_exceptions(kafka, topic, members_of, WAYS[way])
    member = stage.members.start(more=BY_EXCEPTION.format(topic=topic))
    stage.wait_all_committed()
    letters = PARTITIONS * sum(len(offsets_of(kind)) for kind in ATTEMPTS)
    of = {"group": topic, "reason": "attempts", "topic": topic}
    member.wait(lambda: member.metric("kunicorn_dead_letters_total", **of) == letters, "all letters to be counted")
    assert member.stop() == 0
    assert_each_letter_is_in_its_exceptions_topic(stage)
    fine = {TopicPartition(topic, partition): offsets_of("fine") for partition in range(PARTITIONS)}
    report = Audit(stage.members.audit).check(fine, ())
    assert report.holds, report
    assert report.repeated == ()


def test_in_transactions_each_letter_is_in_its_exceptions_topic_once_although_a_worker_is_killed(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    producing = {"delivery": "transactions", "topic": f"{topic}.out", "transaction_max_records": 5}
    stage = of_two_exceptions(kafka, topic, members_of, {"entrypoint": "copy"}, producing=producing)
    member = stage.members.start(more=BY_EXCEPTION.format(topic=topic))
    member.wait(lambda: any(at > 0 for at in stage.committed().values()), "the first transaction")
    os.kill(member.workers()[0]["pid"], signal.SIGKILL)
    stage.wait_all_committed()
    assert member.stop() == 0
    assert_each_letter_is_in_its_exceptions_topic(stage)
    outputs = [f"{partition}:{offset}" for partition in range(PARTITIONS) for offset in offsets_of("fine")]
    assert committed_outputs(kafka.bootstrap, f"{topic}.out", 1) == dict.fromkeys(outputs, 1)
