"""Several handlers of one group, all in transactions: every input of each has its outputs once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.outputs import committed_outputs
from tests.system.producing import committed_inputs, end_offsets, produce

PARTITIONS, RECORDS = 3, 1000
HANDLERS = {
    "one": "",
    "two": 'ordering = "key"\nconcurrency = 8\n',
    "batch": 'mode = "batch"\nbatch_max_records = 50\nbatch_max_ms = 100\n',
}
"""A function that is called with one record after the other, a generator on eight threads, and an async one for batches
that wait to become fuller; each has a topic of its own."""


def tables(topic: str) -> str:
    """[[handlers]], the first one as [handler] has it."""
    return "".join(
        f'[[handlers]]\ntopics = ["{topic}.{name}"]\nentrypoint = "tests.system.handlers.several:{name}"\n{more}'
        for name, more in HANDLERS.items()
    )


def handled(kafka: KafkaCluster, topic: str) -> int:
    """So many inputs the group has committed, over all topics."""
    return sum(committed_inputs(kafka.bootstrap, topic, f"{topic}.{name}", PARTITIONS) for name in HANDLERS)


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_each_handlers_outputs_are_there_once_although_workers_are_killed(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], kills: int
) -> None:
    for name in HANDLERS:
        kafka.create_topic(f"{topic}.{name}", PARTITIONS)
        produce(kafka.bootstrap, f"{topic}.{name}", RECORDS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    producing = {"delivery": "transactions", "topic": f"{topic}.out", "transaction_max_records": 100}
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.several:one",
        settings={
            "group": {"topics": [f"{topic}.{name}" for name in HANDLERS]},
            "producing": producing,
            "workers": {"max_crashes": 100},
        },
        env={"KUNICORN_HANDLER_MS": "5"},
    )
    member = members.start(more=tables(topic))
    total = len(HANDLERS) * RECORDS
    for kill in range(kills):
        share = total * (kill + 1) // (kills + 2)
        member.wait(lambda: handled(kafka, topic) > share, f"{share} inputs to be committed")  # noqa: B023
        workers = member.wait(lambda: len(found := member.workers()) == 2 and found, "both workers")
        os.kill(workers[kill % 2]["pid"], signal.SIGKILL)
    member.wait(lambda: handled(kafka, topic) == total, "all inputs to be committed", 120)
    assert member.stop() == 0, member.output()[-3000:]
    wanted = {
        f"{tp.topic}-{tp.partition}-{offset}{which}"
        for name in HANDLERS
        for tp, end in end_offsets(kafka.bootstrap, f"{topic}.{name}", PARTITIONS).items()
        for offset in range(end)
        for which in ("ab" if name == "two" else [""])
    }
    outputs = committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS)
    assert {value: count for value, count in outputs.items() if count != 1} == {}
    assert outputs.keys() == wanted
