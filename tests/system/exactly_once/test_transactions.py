"""Read, process, write in transactions, with members as real processes: every input has one output."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system import procfs
from tests.system.members import Members, merged
from tests.system.outputs import committed_records, in_their_order, values_of
from tests.system.producing import committed_inputs, produce

MembersOf = Callable[..., Members]
PARTITIONS = 4
RECORDS = 3000
SHORT_SESSION = {"group": {"session_timeout_ms": 6000, "allow_short_session_timeout": True}}


def settings(topic: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Transactions into `<topic>.out`."""
    return {"producing": {"delivery": "transactions", "topic": f"{topic}.out", **more}}


def consumed(kafka: KafkaCluster, topic: str) -> int:
    """So many inputs the group has committed."""
    return committed_inputs(kafka.bootstrap, topic, topic, PARTITIONS)


def once_each_in_order(kafka: KafkaCluster, topic: str, ordering: str = "partition") -> None:
    """Each input has its one output."""
    records = committed_records(kafka.bootstrap, f"{topic}.out", PARTITIONS)
    in_their_order(records, ordering=ordering)
    outputs = values_of(records)
    assert {value: count for value, count in outputs.items() if count != 1} == {}
    assert sum(outputs.values()) == RECORDS


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("copy", {}),
    "key-threads": ("copy_in_its_time", {"ordering": "key", "concurrency": 8}),
    "key-tasks": ("copy_async", {"ordering": "key", "concurrency": 8}),
    "none-threads": ("copy_in_its_time", {"ordering": "none", "concurrency": 8}),
    "partition-tasks": ("copy_async", {"concurrency": 8}),
}
"""Handler, and how many records it has in hand."""
CORE = {("one", "own"), ("key-threads", "librdkafka")}
"""What sends outputs knows neither who fetches nor who calls: each of both once."""


@pytest.mark.parametrize(("form", "fetcher"), rest_long(product(FORMS, ("librdkafka", "own")), CORE))
def test_every_input_has_one_output_although_a_worker_is_killed_in_the_middle(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, form: str, fetcher: str
) -> None:
    entrypoint, in_hand = FORMS[form]
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint=f"tests.system.handlers.sending:{entrypoint}",
        # Several transactions are under way at a time.
        settings=merged(
            settings(topic, transaction_max_records=10), {"handler": in_hand, "kafka": {"fetcher": fetcher}}
        ),
        env={"KUNICORN_HANDLER_MS": "15" if in_hand else "1"},
    )
    produce(kafka.bootstrap, topic, RECORDS)
    member = members.start()
    member.wait(lambda: consumed(kafka, topic) > 100, "the first transactions")
    os.kill(member.wait(member.workers, "its workers")[0]["pid"], signal.SIGKILL)
    member.wait(lambda: consumed(kafka, topic) == RECORDS, "all inputs to be committed")
    assert member.stop() == 0, member.output()[-3000:]
    once_each_in_order(kafka, topic, in_hand.get("ordering", "partition"))


TROUBLED = {
    "rate_limit": {"per_second": 1000, "burst": 20},
    "circuit_breaker": {
        "exceptions": ["builtins.ConnectionError"],
        "failure_share": 0.001,
        "min_calls": 1,
        "open_ms": 50,
    },
    "max_attempts": 1,
    "on_failure": "halt",
}
"""Limits that bind all the time. No try may count: one would halt its partition."""


@pytest.mark.parametrize(
    "in_hand",
    [
        pytest.param({}, id="one", marks=pytest.mark.long),
        pytest.param({"ordering": "key", "concurrency": 8}, id="key-threads"),
    ],
)
def test_with_waits_a_rate_limit_and_an_opening_breaker_every_input_has_one_output_too(
    kafka: KafkaCluster, topic: str, members_of: MembersOf, in_hand: dict[str, Any]
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:troubled",
        settings=merged(settings(topic, transaction_max_records=10), {"handler": {**TROUBLED, **in_hand}}),
    )
    produce(kafka.bootstrap, topic, RECORDS)
    member = members.start()
    member.wait(lambda: consumed(kafka, topic) > 300, "the first transactions")
    member.wait(lambda: "the circuit breaker of" in member.output(), "a breaker to open")
    os.kill(member.wait(member.workers, "its workers")[0]["pid"], signal.SIGKILL)
    other = members.start()
    other.wait(lambda: other.partitions("running"), "the other member to have a partition")
    assert member.stop() == 0, member.output()[-3000:]
    other.wait(lambda: consumed(kafka, topic) == RECORDS, "all inputs to be committed", 120)
    assert other.stop() == 0, other.output()[-3000:]
    once_each_in_order(kafka, topic, in_hand.get("ordering", "partition"))


@pytest.mark.long
def test_a_member_that_was_frozen_past_its_session_commits_nothing_of_what_another_has_taken_over(
    kafka: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=1,
        entrypoint="tests.system.handlers.sending:copy",
        settings=merged(settings(topic, transaction_timeout_ms=3000), SHORT_SESSION),
        env={"KUNICORN_HANDLER_MS": "3"},
    )
    produce(kafka.bootstrap, topic, RECORDS)
    frozen = members.start()
    frozen.wait(lambda: consumed(kafka, topic) > 100, "the first transactions")
    pids = [process.pid for process in procfs.living_in_session(frozen.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    at = consumed(kafka, topic)
    other = members.start()
    other.wait(lambda: consumed(kafka, topic) > at, "the other one to go on")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    other.wait(lambda: consumed(kafka, topic) == RECORDS, "all inputs to be committed")
    assert [frozen.stop(), other.stop()] == [0, 0]
    once_each_in_order(kafka, topic)
