"""Read, process, write in transactions while members and workers are killed, stopped, frozen and started."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kunicorn.errors import ExitCode
from tests.kafka import KafkaCluster
from tests.system import procfs
from tests.system.members import MemberProcess, Members, merged
from tests.system.outputs import committed_records, in_their_order, values_of
from tests.system.producing import Flow, committed_inputs
from tests.waiting import wait_until

pytestmark = pytest.mark.long

PARTITIONS, MEMBERS, WORKERS, FAULTS = 6, 3, 2, 8
RATE = 150
SETTINGS: dict[str, dict[str, Any]] = {
    "group": {"session_timeout_ms": 6000, "allow_short_session_timeout": True},
    # Several transactions are under way at a time.
    "producing": {"delivery": "transactions", "transaction_timeout_ms": 4000, "transaction_max_ms": 10},
    # One record may be in hand at several kills: it is not to blame.
    "workers": {"max_crashes": 100},
}
COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cooperative-sticky": ("copy", {}, COOPERATIVE),
    "range": ("copy", {}, {"partition_assignment_strategy": ["range"]}),
    "consumer": ("copy", {}, {"group_protocol": "consumer"}),
    "key-threads": ("copy_in_its_time", {"ordering": "key", "concurrency": 8}, COOPERATIVE),
    "none-tasks": ("copy_async", {"ordering": "none", "concurrency": 8}, {"group_protocol": "consumer"}),
}
"""Handler, how many records it has in hand, and how the group agrees."""
BROKER = {
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
    # How often brokers look for transactions that are open for too long; 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}


class Victims:
    """The living members, and what is done to them."""

    def __init__(self, members: Members, rng: random.Random) -> None:
        self._members = members
        self._rng = rng
        self.alive = [members.start() for _ in range(MEMBERS)]

    def kill_the_workers(self) -> None:
        """All of the group: each has its own moment, some have a transaction open."""
        for worker in [worker for member in self.alive for worker in member.workers()]:
            with suppress(ProcessLookupError):
                os.kill(worker["pid"], signal.SIGKILL)

    def kill_a_supervisor(self) -> None:
        """Its workers die with it; another member comes."""
        self._replace(MemberProcess.kill)

    def stop_a_member(self) -> None:
        """In order: everything it handled is committed."""
        self._replace(self._stop)

    def freeze_a_member(self) -> None:
        """Past its session: others take over, and then it wakes up."""
        member = self._rng.choice(self.alive)
        pids = [process.pid for process in procfs.living_in_session(member.pid)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number is signal.SIGSTOP:
                time.sleep(9)  # The fault itself: for longer than its session.

    def join(self) -> None:
        """One more for a while, then it leaves."""
        self.alive.append(self._members.start())

    def close(self) -> None:
        """Stop all."""
        for member in self.alive:
            self._stop(member)

    def _replace(self, end: Callable[[MemberProcess], None]) -> None:
        member = self.alive.pop(self._rng.randrange(len(self.alive)))
        end(member)
        if len(self.alive) < MEMBERS:
            self.alive.append(self._members.start())

    @staticmethod
    def _stop(member: MemberProcess) -> None:
        member.wait(member.status, "to answer: before that, SIGTERM ends the interpreter and not the service")
        # Something is left where its workers were killed just before: the next owner makes those outputs again.
        assert member.stop() in (ExitCode.CLEAN, ExitCode.NOT_ALL_COMMITTED), member.output()[-3000:]


@pytest.mark.parametrize("kind", KINDS)
def test_every_input_has_one_output_through_kills_freezes_and_rebalances(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members], kind: str
) -> None:
    kafka = kafka_factory(overrides=BROKER)
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    handler, in_hand, group = KINDS[kind]
    settings = merged(SETTINGS, {"group": group, "producing": {"topic": f"{topic}.out"}, "handler": in_hand})
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=WORKERS,
        entrypoint=f"tests.system.handlers.sending:{handler}",
        settings=settings,
        env={"KUNICORN_HANDLER_MS": "5"},
    )

    def consumed() -> int:
        try:
            return committed_inputs(kafka.bootstrap, topic, topic, PARTITIONS)
        except KafkaException:
            return -1  # A dead member's transaction is open: the brokers do not say before it is ended (KIP-447).

    victims = Victims(members, rng)
    kinds = [victims.kill_the_workers, victims.kill_a_supervisor, victims.stop_a_member, victims.join]
    schedule = [*kinds, victims.freeze_a_member, *rng.choices(kinds, k=FAULTS - len(kinds) - 1)]
    rng.shuffle(schedule)
    with Flow(kafka.bootstrap, topic, RATE) as flow:
        for fault in schedule:
            before = consumed()
            wait_until(lambda: consumed() > before, f"progress before {fault.__name__} (seed {seed})", 120, 0.3)  # noqa: B023
            fault()
    wait_until(lambda: consumed() == flow.sent, f"{flow.sent} inputs to be committed (seed {seed})", 120, 0.5)
    victims.close()
    records = committed_records(kafka.bootstrap, f"{topic}.out", PARTITIONS)
    in_their_order(records, ordering=in_hand.get("ordering", "partition"))
    outputs = values_of(records)
    assert {value: count for value, count in outputs.items() if count != 1} == {}, f"seed {seed}"
    assert sum(outputs.values()) == flow.sent, f"seed {seed}"
