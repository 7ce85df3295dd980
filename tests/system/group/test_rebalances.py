"""Members come and go while records flow: nothing is lost, nothing is handled twice, nobody overlaps.

A commit that a revoke forgets, or a record still in hand when its partition is given away, shows in the audit. But only
if revokes find records in hand: else the test would prove nothing, so that is asserted, too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import uniform
from threading import Event

import pytest

from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, judgement, revokes
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow

PARTITIONS = 12
RECORDS_A_SECOND = 1_000
SLOW_BATCHES = {"mode": "batch", "batch_max_records": 5_000}
"""A call takes 0 to 200 ms whatever it is called with, so large batches keep up with the flow."""
pytestmark = pytest.mark.classic
"""A member is frozen while others join, which a consumer group does not wait for."""

SHORT = pytest.param(1)
LONG = pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1200)])


@pytest.mark.parametrize("rounds", [SHORT, LONG])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.scenario(
    "0113 b_subscribe_with_cb",
    "0113 c_subscribe_no_cb",
    "0113 l_unsubscribe",
    "0118 commit_rebalance",
    "test_group_consumption",
)
def test_members_join_and_leave_a_busy_group_and_every_record_is_handled_once(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], strategy: str, rounds: int
) -> None:
    """Invariants 1 to 4 and 8, with the commit interval at its default of five seconds."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        entrypoint="kunicorn.commands.demo.audit:handle_batch",
        settings={"handler": SLOW_BATCHES, "group": {"partition_assignment_strategy": [strategy]}},
        env={"KUNICORN_HANDLER_MS": "200"},
    )
    first = members.start()
    first.wait_running(PARTITIONS)
    with Flow(kafka.bootstrap, topic, RECORDS_A_SECOND) as flow:
        for _ in range(rounds):
            with together(first):
                guests = [members.start(), members.start()]
                for guest in guests:
                    guest.wait(lambda guest=guest: "joining: first join" in guest.output(), "a first join")
            for member in (first, *guests):
                member.wait(lambda member=member: busy_with(member) == PARTITIONS // 3, "its share of the flow")
            Event().wait(uniform(0, 0.5))
            assert [guest.stop() for guest in guests] == [0, 0]
            first.wait(lambda: busy_with(first) == PARTITIONS, "all partitions again")
    first.wait(lambda: handled_up_to(first) == flow.sent, "the end of the flow", 180)
    assert first.stop() == 0
    report = judgement(kafka, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())
    found = revokes(members)
    assert len(found) >= 3 * rounds
    # Nine in ten are usual; chance and the load decide what is in hand, so no more than one a round is asked for.
    assert sum(in_hand > 0 for in_hand in found) >= rounds, found


def busy_with(member: MemberProcess) -> int:
    """How many partitions it has running; 0 while it has nothing in hand."""
    running = member.partitions("running")
    return len(running) if any(p["in_hand"] is not None for p in running) else 0


@contextmanager
def together(member: MemberProcess) -> Iterator[None]:
    """Whoever joins in here joins in one rebalance, as that waits for `member`, whose supervisor is frozen meanwhile.

    A cooperative member gives up two thirds of its partitions then, and mostly what is in hand is among them. Twice a
    third would be all of it luck.
    """
    member.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        member.process.send_signal(signal.SIGCONT)
