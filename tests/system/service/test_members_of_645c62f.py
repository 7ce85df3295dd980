"""Members of commit 645c62f beside members of today in one group: a rolling upgrade, and the way back.

docs/compatibility.md promises what is tried here; tests/system/earlier.py says what those members are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from kunicorn.commands.demo.judge import Report
from tests.kafka import KafkaCluster
from tests.system import earlier
from tests.system.earlier import NotInHistory, Start
from tests.system.group.journal import handled_up_to
from tests.system.members import MemberProcess, Members
from tests.system.outputs import committed_outputs
from tests.system.producing import Flow, committed_inputs, produce
from tests.system.scene import Scene
from tests.waiting import wait_until

PARTITIONS, RATE = 6, 300

SceneMaker = Callable[..., Scene]
MembersOf = Callable[..., Members]


@pytest.fixture(scope="session")
def of_then(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """What makes a member one of that commit."""
    try:
        return earlier.of_then(tmp_path_factory.mktemp("earlier"))
    except NotInHistory as error:
        pytest.skip(str(error))


def share(*members: MemberProcess) -> None:
    """Until each has its part."""
    for member in members:
        member.wait_running(PARTITIONS // len(members))


def judged(stage: Scene) -> Report:
    stage.wait_all_committed()
    report = stage.judge()
    assert report.holds, report
    return report


@pytest.mark.long
@pytest.mark.parametrize(
    "group",
    [
        pytest.param({"partition_assignment_strategy": ["range"]}, id="range", marks=pytest.mark.classic),
        pytest.param(
            {"partition_assignment_strategy": ["cooperative-sticky"]},
            id="cooperative-sticky",
            marks=pytest.mark.classic,
        ),
        pytest.param({"group_protocol": "consumer"}, id="consumer", marks=pytest.mark.consumer),
    ],
)
def test_members_of_then_and_of_today_share_a_group_and_every_record_is_handled_once(
    scene: SceneMaker, of_then: Start, group: dict[str, object]
) -> None:
    stage = scene(PARTITIONS, settings={"group": group}, env={"KUNICORN_HANDLER_MS": "1"})
    members = stage.members
    old = members.start(**of_then, name="then-1")
    share(old)
    with Flow(stage.kafka.bootstrap, stage.topic, RATE) as flow:
        new = members.start(name="today-1")
        share(old, new)
        newer = members.start(name="today-2")
        share(old, new, newer)
        assert old.stop() == 0
        share(new, newer)
        back = members.start(**of_then, name="then-2")
        share(new, newer, back)
        assert [new.stop(), newer.stop()] == [0, 0]
        share(back)
        last = members.start(name="today-3")
        share(back, last)
    wait_until(lambda: handled_up_to(back) + handled_up_to(last) == flow.sent, "the end of the flow")
    assert [back.stop(), last.stop()] == [0, 0]
    report = judged(stage)
    assert (report.handled, report.repeated) == (flow.sent, ())
    assert report.handled_by.keys() == {"then-1", "then-2", "today-1", "today-2", "today-3"}


@pytest.fixture
def in_transactions(kafka: KafkaCluster, topic: str, members_of: MembersOf) -> Members:
    """A group whose handlers copy each record to `<topic>.out`."""
    kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(f"{topic}.out", PARTITIONS)
    return members_of(
        kafka.bootstrap,
        topic,
        entrypoint="tests.system.handlers.sending:copy",
        settings={
            "producing": {
                "delivery": "transactions",
                "topic": f"{topic}.out",
                # Several are under way at any time; nobody could wait for one that a dead member left open.
                "transaction_max_records": 20,
                "transaction_timeout_ms": 600_000,
            }
        },
        env={"KUNICORN_HANDLER_MS": "1"},
    )


def copied_once_each(kafka: KafkaCluster, topic: str, member: MemberProcess, sent: int) -> None:
    """Waits until all that was sent is consumed; then each input has its one output."""

    def consumed() -> int:
        try:
            return committed_inputs(kafka.bootstrap, topic, topic, PARTITIONS)
        except KafkaException:  # They are not stable while one transaction follows the other.
            return 0

    member.wait(lambda: consumed() == sent, "all inputs to be committed", 240)
    assert member.stop() == 0
    outputs = committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS)
    assert {value: count for value, count in outputs.items() if count != 1} == {}
    assert len(outputs) == sent


@pytest.mark.long
def test_in_transactions_each_input_has_its_output_once_through_an_upgrade_and_the_way_back(
    kafka: KafkaCluster, topic: str, in_transactions: Members, of_then: Start
) -> None:
    old = in_transactions.start(**of_then, name="then-1")
    share(old)
    with Flow(kafka.bootstrap, topic, RATE) as flow:
        new = in_transactions.start(name="today-1")
        share(old, new)
        assert old.stop() == 0
        share(new)
        back = in_transactions.start(**of_then, name="then-2")
        share(new, back)
        new.kill()
        share(back)
        last = in_transactions.start(name="today-2")
        share(back, last)
        assert back.stop() == 0
        share(last)
    copied_once_each(kafka, topic, last, flow.sent)


@pytest.mark.long
@pytest.mark.parametrize("first", ["then", "today"])
def test_a_static_member_ends_the_transactions_that_its_predecessor_of_the_other_version_left_open(
    kafka: KafkaCluster, topic: str, in_transactions: Members, of_then: Start, first: str
) -> None:
    starts: dict[str, Start] = {"then": of_then, "today": {}}
    static = {"group": {"group_instance_id": "shop-0"}}
    produce(kafka.bootstrap, topic, 10_000)
    one = in_transactions.start(static, **starts.pop(first))
    one.wait(lambda: committed_outputs(kafka.bootstrap, f"{topic}.out", PARTITIONS).total() > 300, "outputs")
    one.kill()
    other = in_transactions.start(static, **starts.popitem()[1])
    # Long before transaction_timeout_ms: what was open is ended, not waited for.
    share(other)
    copied_once_each(kafka, topic, other, 10_000)


@pytest.mark.parametrize("first", ["then", "today"])
def test_what_is_done_ahead_of_a_record_that_waits_is_left_out_by_today_and_done_again_by_then(
    scene: SceneMaker, of_then: Start, first: str
) -> None:
    """In a group that began with a member of then, as in an upgrade: whoever is first begins where that one did."""
    again = {"then": [], "today": list(range(1, 51))}[first]
    settings = {"handler": {"ordering": "key", "retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}}
    stage = scene(1, workers=1, handler="marked:handle_async", settings=settings)
    starts: dict[str, Start] = {"then": of_then, "today": {}}
    begun = stage.members.start(**of_then)
    begun.wait(lambda: stage.committed() == {0: 0}, "the start to be committed")
    assert begun.stop() == 0
    stage.send(0, "raise once", *(f"v{number}" for number in range(50)))
    one = stage.members.start(**starts.pop(first))
    one.wait(lambda: len(stage.handled(0)) == 50, "all others to be handled")
    assert one.stop() == 0
    assert stage.committed() == {0: 0}
    other = stage.members.start(**starts.popitem()[1])
    other.wait(lambda: 0 in stage.handled(0), "the record that waited to be handled")
    stage.wait_all_committed()
    assert other.stop() == 0
    assert sorted(stage.handled(0)) == sorted([*range(51), *again])
