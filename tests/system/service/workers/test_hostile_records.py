"""The service meets everything that nobody hopes for, in every form in which a handler is called: nothing is lost.

Each partition has one kind of record between ordinary ones. What a handler cannot do becomes a dead letter, and all
else is handled; the group is through with the topic, and the service stops as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.handler.dead_letters import read
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_offsets, end_offsets, headers_of

pytestmark = pytest.mark.long

TOPIC = "hostile"
LARGE = b"x" * 50_000_000
ODD: tuple[dict[str, Any], ...] = (
    {"value": None, "key": None},
    {"value": b"", "key": b""},
    {"value": b"\x00\x1b[31m\r\n\xff\xfe", "key": b"\x00"},
    {"value": b"v", "headers": [("\N{SNOWMAN}", b"\xff\x00"), ("twice", None), ("twice", b"")]},
    {"value": b"no time", "timestamp": -1},
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HARMLESS = (b"fork",)
CLOSING = b"close"
"""Its worker ends; whether its handler had returned by then is chance."""
FAILING = (b"leave", b"interrupt", b"huge", b"unspeakable", b"never")
UNSENDABLE = (b"no send", b"wrong header", b"no topic", b"illegal topic", b"large output")
VALUES = (*HARMLESS, CLOSING, *FAILING, *UNSENDABLE)
ODD_PARTITION, LARGE_PARTITION, ABORTED_PARTITION, MANY_PARTITION, FIRST = 0, 1, 2, 3, 4
"""From `FIRST` on, a partition for each of `VALUES`."""
PARTITIONS = FIRST + len(VALUES)
MANY = 100_000

Place = tuple[int, int]


@dataclass(frozen=True)
class Form:
    """How a handler is called."""

    handler: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    delivery: str | None = None


FORMS = {
    "record": Form("obey"),
    "async": Form("obey_async"),
    "batch": Form("obey_batch", {"mode": "batch"}),
    "async batch": Form("obey_batch_async", {"mode": "batch"}),
    "keys on threads": Form("obey", {"ordering": "key", "concurrency": 8}),
    "keys in tasks": Form("obey_async", {"ordering": "key", "concurrency": 8}),
    "at least once": Form("obey_and_send", {}, "at_least_once"),
    "transactions": Form("obey_and_send", {}, "transactions"),
    "transactions by key": Form("obey_and_send", {"ordering": "key", "concurrency": 8}, "transactions"),
}


def fill(kafka: KafkaCluster) -> dict[Place, bytes | None]:
    """Write the topic; the value of each record that a handler is to see, by partition and offset."""
    kafka.create_topic(TOPIC, PARTITIONS, {"max.message.bytes": "60000000"})
    written: dict[Place, bytes | None] = {}

    def note(error: object, message: Message) -> None:
        assert error is None, error
        written[message.partition() or 0, message.offset() or 0] = message.value()

    def send(partition: int, *records: Mapping[str, Any], **properties: Any) -> None:
        own = {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 60_000_000, "linger.ms": 20}
        producer = Producer({**own, **properties})
        for record in records:
            producer.produce(TOPIC, partition=partition, on_delivery=note, **record)
        assert producer.flush(60) == 0

    for codec in CODECS:
        send(ODD_PARTITION, *ODD, **{"compression.type": codec})
    send(LARGE_PARTITION, {"value": b"before"}, {"value": LARGE}, {"value": b"after"})
    send(MANY_PARTITION, {"value": b"before"}, {"value": b"many"}, {"value": b"after"})
    for partition, value in enumerate(VALUES, FIRST):
        send(partition, {"value": b"before"}, {"value": value, "key": b"k"}, {"value": b"after"})
    aborting = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": TOPIC})
    aborting.init_transactions(30)
    aborting.begin_transaction()
    aborting.produce(TOPIC, b"aborted", partition=ABORTED_PARTITION)
    aborting.flush(60)
    aborting.abort_transaction(30)
    send(ABORTED_PARTITION, {"value": b"after"})
    return written


@pytest.fixture(scope="module")
def written(kafka: KafkaCluster) -> dict[Place, bytes | None]:
    """The topic that every form reads."""
    return fill(kafka)


@pytest.fixture
def started(
    request: pytest.FixtureRequest, kafka: KafkaCluster, members_of: Callable[..., Members], tmp_path: Path
) -> tuple[Form, str, Members]:
    """The form under test, its group and members."""
    form = FORMS[request.param]
    group = f"hostile-{request.param.replace(' ', '-')}"
    kafka.create_topic(f"{group}.dead-letters", 1, {"max.message.bytes": "60000000"})
    kafka.create_topic(f"{group}.out", 2)
    handler = {
        "max_attempts": 1,
        "on_failure": "dead_letter",
        "handler_timeout_ms": 8000,
        **form.settings,
    }
    settings: dict[str, dict[str, Any]] = {
        "group": {"id": group, "commit_interval_ms": 500},
        "kafka": {"isolation_level": "read_committed"},
        "handler": handler,
    }
    if form.delivery is not None:
        settings["producing"] = {"delivery": form.delivery, "topic": f"{group}.out"}
    members = members_of(
        kafka.bootstrap,
        TOPIC,
        workers=2,
        entrypoint=f"tests.system.handlers.hostile:{form.handler}",
        settings=settings,
        env={"NOTES_DIRECTORY": str(tmp_path)},
    )
    return form, group, members


@pytest.mark.parametrize("started", FORMS, indirect=True)
def test_whatever_comes_is_handled_or_a_dead_letter_and_nothing_is_lost(
    kafka: KafkaCluster,
    started: tuple[Form, str, Members],
    written: dict[Place, bytes | None],
    tmp_path: Path,
) -> None:
    form, group, members = started
    member = members.start()
    ends = end_offsets(kafka.bootstrap, TOPIC, PARTITIONS)
    member.wait(lambda: committed(kafka, group) == ends, "the topic's end to be committed", 200)
    assert member.stop() == 0, member.output()[-3000:]
    handled = {(seen[0], seen[1]): seen[2:] for seen in notes(tmp_path)}
    letters = dead_letters(kafka, f"{group}.dead-letters")
    assert set(written) == set(handled) | letters, "nothing is lost, and what was aborted never seen"
    bad = {*FAILING, *(UNSENDABLE if form.delivery else ())}
    assert {place for place, value in written.items() if value in bad} <= letters
    if form.settings.get("mode") != "batch":
        assert {written[place] for place in letters} - {CLOSING} == bad, "and nothing else failed"
    assert_as_written(handled)
    if form.delivery is not None:
        assert_sent(kafka, f"{group}.out", set(written), letters, once=form.delivery == "transactions")


def committed(kafka: KafkaCluster, group: str) -> dict[TopicPartition, int] | None:
    """None while a transaction is open: the client waits for its end, and gives up."""
    try:
        return committed_offsets(kafka.bootstrap, group, TOPIC, PARTITIONS)
    except KafkaException:
        return None


def notes(directory: Path) -> list[tuple[Any, ...]]:
    """What the handlers have noted."""
    return [eval(line) for line in (directory / "notes").read_text().splitlines()]


def dead_letters(kafka: KafkaCluster, topic: str) -> set[Place]:
    """Which records are in the dead-letter topic."""
    (end,) = end_offsets(kafka.bootstrap, topic, 1).values()
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "letters", "enable.auto.commit": False})
    places: set[Place] = set()
    try:
        consumer.assign([Coordinates(topic, 0, 0)])
        while consumer.position([Coordinates(topic, 0)])[0].offset < end:
            for message in consumer.consume(500, 1.0):
                told = read(headers_of(message))
                places.add((told.partition, told.offset))
    finally:
        consumer.close()
    return places


def assert_as_written(handled: Mapping[Place, tuple[Any, ...]]) -> None:
    """Nothing is made of what is no text, nor of what is not there."""
    expected = [(odd.get("key"), odd["value"], odd.get("headers", [])) for odd in ODD] * len(CODECS)
    odd = [handled[ODD_PARTITION, offset] for offset in range(len(expected))]
    assert [seen[:3] for seen in odd] == expected
    times = [seen[3] is None for seen in odd]
    assert times == [each.get("timestamp") == -1 for each in ODD] * len(CODECS)
    assert [handled[LARGE_PARTITION, offset][1] for offset in range(3)] == [b"before", len(LARGE), b"after"]


def assert_sent(kafka: KafkaCluster, topic: str, written: set[Place], letters: set[Place], *, once: bool) -> None:
    """Each record that was handled has its output, or its hundred thousand: once in transactions. At least once,
    what a record asked to send beside the output that was refused may be there, too."""
    outputs = committed_outputs(kafka.bootstrap, topic, 2, within=60)
    expected = {f"{partition}:{offset}" for partition, offset in written - letters}
    assert expected <= set(outputs)
    many = outputs.pop(f"{MANY_PARTITION}:1")
    assert many == MANY if once else many >= MANY
    if once:
        assert set(outputs) == expected - {f"{MANY_PARTITION}:1"}
        assert set(outputs.values()) == {1}
