"""Dead letters by exception, by reason and by handler, on a real broker, with the headers that others read: each record
is handled or is one letter, in the topic that the settings mean."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import Members
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


@pytest.mark.parametrize("style", [spring, connect, karafka])
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
        line = f'kunicorn_dead_letters_total{{group="{topic}",reason="{reason}",topic="{topic}"}} {count}.0'
        member.wait(lambda: line in member.get("/metrics")[1], f"{count} counted for {reason}")

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
