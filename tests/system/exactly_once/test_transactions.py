"""Read, process, write in transactions, with members as real processes: every input has one output."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_offsets, produce

MembersOf = Callable[..., Members]
PARTITIONS = 4


def settings(topic: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Transactions into `<topic>.out`."""
    return {"producing": {"delivery": "transactions", "topic": f"{topic}.out", **more}}


def consumed_all(kafka: KafkaCluster, topic: str, records: int) -> bool:
    """The group has committed so many."""
    return sum(max(0, at) for at in committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS).values()) == records


def once_each(topic: str, records: int, outputs: Counter[str]) -> None:
    """Each input has its one output."""
    assert {value: count for value, count in outputs.items() if count != 1} == {}
    assert sum(outputs.values()) == records


def test_every_input_has_one_output_although_a_worker_is_killed_in_the_middle(
    kafka: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:copy",
        settings=settings(topic),
        env={"KUNICORN_HANDLER_MS": "1"},
    )
    member = members.start()
    member.wait_running(PARTITIONS)
    produce(kafka.bootstrap, topic, 4000)
    member.wait(lambda: sum(committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS).values()) > 200, "outputs")
    os.kill(member.workers()[0]["pid"], signal.SIGKILL)
    member.wait(lambda: consumed_all(kafka, topic, 4000), "all inputs to be committed", 40)
    assert member.stop() == 0, member.output()[-3000:]
    once_each(topic, 4000, committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS))
    assert sum(committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS).values()) == 4000
