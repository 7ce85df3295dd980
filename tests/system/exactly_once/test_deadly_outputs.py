"""Records that kill their worker after their handler has returned, and before what it returned is delivered.

Real workers die. The record ends as `on_failure` says, every other one is delivered as promised, and none of those is
blamed for having been beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kunicorn.errors import ExitCode
from kunicorn.handler.dead_letters import Told, read
from tests.kafka import KafkaCluster
from tests.system.handlers.deadly import DEADLY, LETTER, SOON
from tests.system.members import MemberProcess, Members
from tests.system.outputs import committed_outputs, committed_records
from tests.system.producing import committed_offsets, headers_of, producer

PARTITIONS, EACH, AT = 2, 200, 77
"""In each partition so many records, all of them small; in partition 0 a special one at `AT`."""
THROUGH = dict.fromkeys(range(PARTITIONS), EACH)


@dataclass(frozen=True)
class Form:
    """How a handler is called, and its outputs sent."""

    delivery: str
    handler: str = "copy"
    settings: Mapping[str, Any] = field(default_factory=dict)


FORMS = {
    "transactions": Form("transactions"),
    "batches in transactions": Form("transactions", "copy_batch", {"mode": "batch"}),
    "at least once": Form("at_least_once"),
    "keys on threads": Form("at_least_once", "copy", {"ordering": "key", "concurrency": 8}),
    "tasks in no order": Form("at_least_once", "copy_async", {"ordering": "none", "concurrency": 8}),
    "keys on threads in transactions": Form("transactions", "copy", {"ordering": "key", "concurrency": 8}),
    "tasks in transactions": Form("transactions", "copy_async", {"ordering": "none", "concurrency": 8}),
}
CORE = "transactions"
EVERY_FORM = [name if name == CORE else pytest.param(name, marks=pytest.mark.long) for name in FORMS]


class Scene:
    """One topic with one special record, and one member with one worker for all of it."""

    def __init__(self, kafka: KafkaCluster, topic: str, special: bytes, form: Form, members_of: Any, **handler: Any):
        self.bootstrap, self.topic = kafka.bootstrap, topic
        kafka.create_topic(topic, PARTITIONS)
        kafka.create_topic(f"{topic}.out", PARTITIONS)
        kafka.create_topic(f"{topic}.dead-letters", 1)
        sender = producer(kafka.bootstrap)
        for offset in range(EACH):
            for partition in range(PARTITIONS):
                value = special if (partition, offset) == (0, AT) else b"x"
                sender.produce(topic, value, f"k{offset % 40}", partition=partition)
        assert sender.flush(60) == 0
        settings = {
            "handler": {"on_failure": "dead_letter", **form.settings, **handler},
            "producing": {"delivery": form.delivery, "topic": f"{topic}.out"},
        }
        entrypoint = f"tests.system.handlers.deadly:{form.handler}"
        members: Members = members_of(kafka.bootstrap, topic, workers=1, entrypoint=entrypoint, settings=settings)
        self.member: MemberProcess = members.start()

    def delivered(self) -> dict[int, int]:
        """The next offset to be delivered, by partition: as the member says, as its brokers keep whoever asks for
        committed offsets waiting while a transaction is open."""
        return {each["partition"]: each["position"] for each in self.member.partitions()}

    def committed(self) -> dict[int, int]:
        """By partition. Caller: once the member has ended."""
        found = committed_offsets(self.bootstrap, self.topic, self.topic, PARTITIONS)
        return {tp.partition: offset for tp, offset in found.items()}

    def outputs(self) -> dict[str, int]:
        """How often each copy is there, by where its input was."""
        return dict(committed_outputs(self.bootstrap, f"{self.topic}.out", PARTITIONS))

    def letters(self) -> list[Told]:
        """What the dead letters say of their records."""
        found = committed_records(self.bootstrap, f"{self.topic}.dead-letters", 1)
        return list({(each.partition, each.offset): each for each in (read(headers_of(m)) for m in found)}.values())

    def deaths(self, how: str) -> int:
        return self.member.output().count(f"died: {how}")


@pytest.mark.parametrize("name", EVERY_FORM)
def test_a_record_whose_output_kills_becomes_a_dead_letter_and_every_other_one_is_delivered(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], name: str
) -> None:
    form = FORMS[name]
    scene = Scene(kafka, topic, DEADLY, form, members_of)
    scene.member.wait(lambda: scene.delivered() == THROUGH, "everything to be delivered")
    assert scene.member.stop() == 0
    assert scene.committed() == THROUGH
    (told,) = scene.letters()
    assert (told.partition, told.offset, told.cause.type, told.cause.attempts) == (0, AT, "WorkerDied", 2)
    expected = f"2 workers died (SIGSEGV) with offset {AT} handled and its outputs not delivered"
    assert told.cause.message == expected
    outputs = scene.outputs()
    assert outputs.keys() == {f"{p}:{n}" for p in range(PARTITIONS) for n in range(EACH)} - {f"0:{AT}"}
    if form.delivery == "transactions":
        assert set(outputs.values()) == {1}
    assert scene.deaths("SIGSEGV") == 4, "two shared with others, two of its own"


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_a_record_whose_dead_letter_kills_too_halts_its_partition_and_the_others_go_on(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], name: str
) -> None:
    scene = Scene(kafka, topic, LETTER, FORMS[name], members_of)
    (halted,) = scene.member.wait(lambda: scene.member.partitions("halted"), "the partition to be halted")
    assert halted["partition"] == 0
    assert f"offset {AT} " in halted["reason"]
    scene.member.wait(lambda: scene.delivered()[1] == EACH, "partition 1 to be delivered")
    assert scene.member.stop() == ExitCode.NOT_ALL_COMMITTED, "the halted record was handled"
    assert scene.committed()[1] == EACH
    assert scene.committed()[0] <= AT
    assert scene.letters() == []
    assert {f"1:{n}" for n in range(EACH)} <= scene.outputs().keys()


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_with_on_failure_halt_only_its_partition_halts_and_says_which_record_it_was(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], name: str
) -> None:
    scene = Scene(kafka, topic, DEADLY, FORMS[name], members_of, on_failure="halt")
    (halted,) = scene.member.wait(lambda: scene.member.partitions("halted"), "the partition to be halted")
    reason = f"2 workers died (SIGSEGV) with offset {AT} handled and its outputs not delivered"
    assert (halted["partition"], halted["reason"]) == (0, reason)
    scene.member.wait(lambda: scene.delivered()[1] == EACH, "partition 1 to be delivered")
    assert scene.member.stop() == ExitCode.NOT_ALL_COMMITTED, "the halted record was handled"
    assert scene.committed()[0] == AT


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_a_record_that_kills_shortly_after_its_return_does_not_do_so_without_end_and_no_other_is_blamed(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], name: str
) -> None:
    scene = Scene(kafka, topic, SOON, FORMS[name], members_of)
    scene.member.wait(lambda: scene.delivered() == THROUGH, "everything to be delivered")
    assert scene.member.stop() == 0
    assert scene.committed() == THROUGH
    blamed = {(told.partition, told.offset) for told in scene.letters()}
    assert blamed <= {(0, AT)}
    places = {(p, n) for p in range(PARTITIONS) for n in range(EACH)}
    assert {f"{p}:{n}" for p, n in places - blamed} <= scene.outputs().keys()
