"""Our drivers, connections and codec beside a modelled coordinator: real frames, and a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.group.states import State
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from tests.contract.conformance.coordinator.coordinated import (
    PARTITIONS,
    SESSION,
    Stage,
    both_protocols,
    heartbeats,
    play,
    told,
)
from tests.fakes.broker import Asked, HangUp, Reply, Silence, by_partition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.coordinator_broker import START
from tests.fakes.driver import Driver, until
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.requests import Join
from tests.fakes.simulation import TOPIC


def refused(*errors: int, consumer: Sequence[int]) -> pytest.MarkDecorator:
    """All these errors with the classic protocol, and with the consumer protocol one for each reaction: drivers see the
    reaction, which `test_reactions` holds of every code."""
    pairs = [*(("classic", error) for error in errors), *(("consumer", error) for error in consumer)]
    return pytest.mark.parametrize(("protocol", "error"), pairs)


@pytest.mark.scenario("0113 b_subscribe_with_cb", "0113 c_subscribe_no_cb", "0118 commit_rebalance")
@both_protocols
@told
async def test_members_come_and_go_share_everything_and_commit_where_they_begin(stage: Stage, protocol: str) -> None:
    first = await stage.start(group_protocol=protocol)
    await stage.settled(first)
    second = await stage.start(group_protocol=protocol)
    await stage.settled(first, second)
    await first.stop()
    await stage.settled(second)
    await until(lambda: len(stage.broker.committed) == PARTITIONS)
    assert set(stage.broker.committed.values()) == {START}
    await second.stop()
    assert stage.members[1].member.state is State.LEFT


@both_protocols
@told
async def test_whoever_waits_for_the_join_to_be_out_goes_on_before_anything_is_assigned(
    stage: Stage, protocol: str
) -> None:
    member = await stage.start(group_protocol=protocol)
    assert not member.source.requested.is_set()
    await asyncio.wait_for(member.source.requested.wait(), 60)
    assert not member.owned
    await stage.settled(member)


@pytest.mark.scenario("testJoinGroupRequestMaxTimeout")
@told
async def test_a_join_that_is_parked_until_the_rebalance_timeout_is_waited_for(stage: Stage) -> None:
    member = await stage.start()
    await stage.settled(member)
    group = stage.broker.group
    assert isinstance(group, ClassicGroup)
    # Somebody asks to be let in, and never comes back with the id it is given.
    stranger = Join("", {"cooperative-sticky": next(iter(group.seats.values())).protocols["cooperative-sticky"]},
                    None, 1_800.0, 60.0)  # fmt: skip
    group.join(stranger, lambda _: None, asyncio.get_running_loop().time())
    stage.broker.plan(Api.HEARTBEAT, blank_response(Api.HEARTBEAT, 4, error_code=27))
    await until(lambda: member.member.state is State.JOINING)
    connections = stage.broker.connections
    began = asyncio.get_running_loop().time()
    await until(lambda: member.stable)
    assert asyncio.get_running_loop().time() - began > 55.0, "it was parked"
    assert len(stage.asked(Api.JOIN_GROUP)) == 3, "one to get an id, one with it, one for the rebalance"
    assert stage.broker.connections == connections


@pytest.mark.scenario("testHandleNormalLeaveGroupResponseAndTruncatedLeaveReason", "testRejoinReason")
@told
async def test_reasons_are_cut_to_what_brokers_take(stage: Stage) -> None:
    member = await stage.start()
    await stage.settled(member)
    member.source.leave("because " + "x" * 400)
    await until(lambda: member.source.over)
    (left,) = stage.asked(Api.LEAVE_GROUP)
    assert len(left.members[0].reason) == 255
    assert [join.reason for join in stage.asked(Api.JOIN_GROUP)] == ["first join", "first join"]


@pytest.mark.scenario("testCloseNoResponseForLeaveGroup", "testCloseCoordinatorNotKnownWithCommits")
@both_protocols
@pytest.mark.parametrize("answer", [Silence, HangUp])
@told
async def test_a_leave_that_nobody_answers_ends_in_time(stage: Stage, protocol: str, answer: type) -> None:
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    stage.broker.plan(Api.LEAVE_GROUP, *[answer] * 5)
    if protocol == "consumer":
        stage.broker.plan(Api.CONSUMER_GROUP_HEARTBEAT, *[answer] * 50)
    began = asyncio.get_running_loop().time()
    member.source.leave("stopped")
    await until(lambda: member.source.over)
    assert asyncio.get_running_loop().time() - began < 15.0


@pytest.mark.scenario("testRetainMemberIdAfterJoinGroupDisconnect", "testRetainMemberIdAfterSyncGroupDisconnect")
@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@told
async def test_a_connection_lost_while_joining_costs_neither_id_nor_partitions(stage: Stage, api: Api) -> None:
    member = await stage.start()
    await stage.settled(member)
    member_id = member.member.member_id
    stage.broker.plan(api, HangUp)
    stage.broker.plan(Api.HEARTBEAT, blank_response(Api.HEARTBEAT, 4, error_code=27))
    joins, asked = len(stage.asked(Api.JOIN_GROUP)), len(stage.asked(api))
    await until(lambda: len(stage.asked(api)) == asked + 2)
    await stage.settled(member)
    assert {request.member_id for request in stage.asked(api)[asked:]} == {member_id}
    assert member.member.member_id == member_id
    again = 2 if api is Api.JOIN_GROUP else 1
    assert len(stage.asked(Api.JOIN_GROUP)) == joins + again, "a lost SyncGroup is asked again, not joined for"


@pytest.mark.scenario("0117 do_test_joingroup_coordinator_load_in_progress", "test_failed_group_join")
@pytest.mark.parametrize("error", [14, 15, 16, 27])
@told
async def test_a_join_refused_for_now_is_sent_again(stage: Stage, error: int) -> None:
    stage.broker.plan(Api.JOIN_GROUP, _refused_join(error))
    member = await stage.start()
    await stage.settled(member)
    assert len(stage.asked(Api.JOIN_GROUP)) == 3


def _refused_join(error: int) -> Reply:
    return lambda asked: blank_response(asked.api, asked.version, error_code=error, protocol_name=None)


@pytest.mark.scenario("test_failed_sync_group", "0113 q_lost_partitions_illegal_generation")
@pytest.mark.parametrize("error", [14, 15, 16, 22, 25, 27, 999])
@told
async def test_a_sync_refused_is_followed_by_a_join_and_a_plan(stage: Stage, error: int) -> None:
    frame = blank_response(Api.SYNC_GROUP, 5, error_code=error) if error < 100 else None
    stage.broker.plan(Api.SYNC_GROUP, _unknown_error if frame is None else frame)
    member = await stage.start()
    await stage.settled(member)


def _unknown_error(asked: Asked) -> Reply:
    return HangUp if asked.version < 5 else blank_response(asked.api, asked.version, error_code=-1)


@pytest.mark.scenario("0143 test_heartbeat_find_coordinator", "0147 retriable", "test_coordinator__do_heartbeat")
@refused(14, 15, 16, -1, consumer=[14, 15, 16])
@told
async def test_a_heartbeat_that_meets_a_coordinator_in_trouble_costs_no_rebalance(
    stage: Stage, protocol: str, error: int
) -> None:
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    group = stage.broker.group
    assert group is not None
    before = group.rebalances, member.member.generation
    api = heartbeats(protocol)
    stage.broker.plan(api, *[lambda asked: blank_response(asked.api, asked.version, error_code=error)] * 4)
    asked = len(stage.asked(api))
    await until(lambda: len(stage.asked(api)) > asked + 6)
    assert (group.rebalances, member.member.generation) == before
    assert len(member.owned) == PARTITIONS


@pytest.mark.scenario("0147 fenced", "0113 p_lost_partitions_heartbeat_illegal_generation")
@pytest.mark.parametrize(("protocol", "error"), [("classic", 22), ("classic", 25), ("consumer", 25), ("consumer", 110)])
@told
async def test_a_fenced_member_joins_anew_and_begins_where_the_group_committed(
    stage: Stage, protocol: str, error: int
) -> None:
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    api = heartbeats(protocol)
    stage.broker.plan(api, lambda asked: blank_response(asked.api, asked.version, error_code=error))
    await until(lambda: member.lost == PARTITIONS)
    await stage.settled(member)


@pytest.mark.scenario("testCoordinatorDiscoveryExponentialBackoff", "CoordinatorRequestManagerTest")
@told
async def test_failing_look_ups_come_further_and_further_apart_up_to_a_second(stage: Stage) -> None:
    times: list[float] = []

    def refuse(asked: Asked) -> Reply:
        times.append(asyncio.get_running_loop().time())
        row = nested(RESPONSES[asked.api, asked.version], "coordinators")
        return blank_response(asked.api, asked.version, coordinators=(blank(row, key="g", error_code=15),))

    stage.broker.plan(Api.FIND_COORDINATOR, *[refuse] * 8)
    member = await stage.start()
    await stage.settled(member)
    waits = [after - before for before, after in pairwise(times)]
    assert waits[0] < 0.15
    assert 0.7 < waits[-1] < 1.3


@both_protocols
@told
async def test_a_dead_coordinator_that_brokers_still_name_is_tried_less_and_less_often(
    stage: Stage, protocol: str
) -> None:
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    generation, alive = member.member.generation, stage.broker.coordinator
    beats = heartbeats(protocol)
    not_coordinator = blank_response(beats, OURS[beats].high, error_code=16)
    stage.broker.coordinator = SimpleNamespace(node_id=2, port=1)  # type: ignore[assignment]
    stage.broker.plan(beats, not_coordinator)
    looked = len(stage.asked(Api.FIND_COORDINATOR))
    # With the longest wait that follows, this stays below the session timeout.
    await asyncio.sleep(SESSION - 3)
    assert 5 <= len(stage.asked(Api.FIND_COORDINATOR)) - looked <= 11
    stage.broker.coordinator, asked = alive, len(stage.asked(beats))
    await until(lambda: len(stage.asked(beats)) > asked, 1.5)
    await asyncio.sleep(2)
    # That was answered: another loss begins with the shortest wait.
    stage.broker.plan(beats, not_coordinator)
    await until(lambda: not stage.broker.planned[beats])
    asked = len(stage.asked(beats))
    await until(lambda: len(stage.asked(beats)) > asked, 0.3)
    assert (member.member.generation, member.lost) == (generation, 0)


def test_a_look_up_that_fails_is_told_at_once_and_then_every_ten_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    async def story(stage: Stage) -> None:
        stage.broker.plan(Api.FIND_COORDINATOR, *[HangUp] * 30)
        member = await stage.start()
        await asyncio.sleep(25)
        stage.broker.planned.clear()
        await stage.settled(member)

    play("classic", story)
    told = [line for line in capfd.readouterr().err.splitlines() if "the coordinator of group 'g' is not known" in line]
    assert len(told) == 3
    assert all("closed the connection" in line for line in told)


@pytest.mark.scenario("Test848FetchOffsetsStaleEpochRetry", "OffsetFetchErrorStallsAssignment")
@refused(14, 15, 16, 25, 113, consumer=[14, 16, 113])
@told
async def test_start_offsets_that_are_refused_are_asked_for_until_they_are_known(
    stage: Stage, protocol: str, error: int
) -> None:
    def refuse(asked: Asked) -> Reply:
        row = nested(RESPONSES[asked.api, asked.version], "groups")
        return blank_response(asked.api, asked.version, groups=(blank(row, group_id="g", error_code=error),))

    stage.broker.plan(Api.OFFSET_FETCH, *[refuse] * 3)
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    await until(lambda: len(stage.broker.committed) == PARTITIONS)


@pytest.mark.scenario("testCommitOffsetRebalanceInProgress", "test_commit_failed_scenarios")
@refused(3, 7, 14, 15, 16, 27, 100, 113, -1, consumer=[3, 16, 113])
@told
async def test_a_commit_refused_for_now_is_repeated_until_it_is_taken(stage: Stage, protocol: str, error: int) -> None:
    stage.broker.plan(Api.OFFSET_COMMIT, refusing(error), refusing(error))
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    await until(lambda: len(stage.broker.committed) == PARTITIONS)


def refusing(error: int) -> Callable[[Asked], Reply]:
    """Every offset of an OffsetCommit, with this error."""
    return lambda asked: by_partition(asked, lambda _: {"error_code": error})


@pytest.mark.parametrize(("error", "unfinished"), [(3, 0), (100, 0), (29, PARTITIONS), (28, PARTITIONS)])
@both_protocols
@told
async def test_invariant_8_a_stop_repeats_what_is_refused_for_now_and_counts_what_is_refused_for_good(
    stage: Stage, protocol: str, error: int, unfinished: int
) -> None:
    member = await stage.start(group_protocol=protocol, workers=1)
    await stage.settled(member)
    await until(lambda: len(member.workers[0].positions) == PARTITIONS)
    await until(lambda: set(stage.broker.committed.values()) == {START})
    member.workers[0].go_on()
    stage.broker.plan(Api.OFFSET_COMMIT, *[refusing(error)] * 3)
    member.source.leave("told to stop")
    await until(lambda: member.source.over)
    assert member.source.unfinished == unfinished
    assert set(stage.broker.committed.values()) == {START if unfinished else START + 1}


HANDOVERS = pytest.mark.parametrize(
    ("protocol", "assignor"), [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "range")]
)


async def handing_over(stage: Stage, protocol: str, assignor: str, answer: Callable[[Asked], Reply]) -> Driver:
    """A member that has a record of each partition to commit, and hands over to a second one; commits are answered so
    from then on."""
    group = {"group_protocol": protocol, "partition_assignment_strategy": [assignor]}
    member = await stage.start(workers=1, **group)
    await stage.settled(member)
    await until(lambda: set(stage.broker.committed.values()) == {START} and len(stage.broker.committed) == PARTITIONS)
    await until(lambda: len(member.workers[0].positions) == PARTITIONS)
    stage.broker.answers[Api.OFFSET_COMMIT] = answer
    member.workers[0].go_on()
    await stage.start(workers=1, **group)
    return member


@HANDOVERS
@pytest.mark.parametrize("error", [14, 15, 16])
@told
async def test_a_hand_over_waits_for_a_coordinator_that_is_away_for_longer_than_a_commit_may_take(
    stage: Stage, protocol: str, assignor: str, error: int
) -> None:
    taken, away_until = stage.broker.answers[Api.OFFSET_COMMIT], asyncio.get_running_loop().time() + 15.0

    def away(asked: Asked) -> Any:
        is_there = asyncio.get_running_loop().time() > away_until
        return taken(asked) if is_there else refusing(error)(asked)

    member = await handing_over(stage, protocol, assignor, away)
    await until(lambda: bool(stage.members[1].owned))
    assert member.source.unfinished == 0
    assert set(stage.broker.committed.values()) >= {START + 1}


@HANDOVERS
@pytest.mark.parametrize("error", [22, 25, 29, 30, 82])
@told
async def test_a_hand_over_whose_commits_are_refused_for_good_waits_no_longer(
    stage: Stage, protocol: str, assignor: str, error: int
) -> None:
    began = asyncio.get_running_loop().time()
    member = await handing_over(stage, protocol, assignor, refusing(error))
    await until(lambda: member.source.unfinished > 0)
    assert asyncio.get_running_loop().time() - began < 10.0
    for each in stage.members:
        each.tasks.error = None  # By which the group refuses it.


@pytest.mark.scenario("testStaticLeaderRejoinsGroupAndCanDetectMetadataChangesForOtherMembers")
@told
async def test_a_returned_static_leader_plans_for_topics_that_only_others_subscribe_to(stage: Stage) -> None:
    stage.broker.show(topics={TOPIC: PARTITIONS, "refunds": 1})
    leader = await stage.start(group_instance_id="pod-0")
    await stage.settled(leader)
    other = await stage.start(topics=["refunds"], group_instance_id="pod-1")
    await until(lambda: leader.stable and other.stable and len(other.owned) == 1)
    await leader.vanish()
    again = await stage.start(group_instance_id="pod-0")
    await until(lambda: again.stable)
    assert again.member.leader
    stage.broker.show(topics={TOPIC: PARTITIONS, "refunds": 3})
    again.topics.doubt()
    await until(lambda: len(other.owned) == 3, within=30)


@pytest.mark.parametrize("told", [True, False])
@told
async def test_a_returned_static_leader_finds_partitions_that_were_added_while_it_was_away(
    stage: Stage, told: bool
) -> None:
    leader = await stage.start(group_instance_id="pod-0")
    other = await stage.start(group_instance_id="pod-1")
    await until(lambda: leader.stable and other.stable and len(other.owned) > 0)
    await leader.vanish()
    stage.broker.show(topics={TOPIC: 2 * PARTITIONS})
    if not told:
        stage.broker.plan(Api.DESCRIBE_GROUPS, HangUp)
    again = await stage.start(group_instance_id="pod-0")
    await until(lambda: again.stable)
    assert again.member.leader
    await until(lambda: len(again.owned) + len(other.owned) == 2 * PARTITIONS, within=30)


@told
async def test_a_returned_static_leader_that_finds_everything_dealt_out_leaves_it_so(stage: Stage) -> None:
    leader = await stage.start(group_instance_id="pod-0")
    other = await stage.start(group_instance_id="pod-1")
    await until(lambda: leader.stable and other.stable and len(other.owned) > 0)
    assert isinstance(stage.broker.group, ClassicGroup)
    before = stage.broker.group.rebalances
    await leader.vanish()
    again = await stage.start(group_instance_id="pod-0")
    await until(lambda: again.stable)
    await asyncio.sleep(30)
    assert stage.broker.group.rebalances == before


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_partitions_that_are_added_cost_the_group_one_rebalance(assignor: str) -> None:
    async def story(stage: Stage) -> None:
        members = []
        for _ in range(8):
            members.append(await stage.start(partition_assignment_strategy=[assignor]))
            await asyncio.sleep(17)  # each looks at the topics at a time of its own
        await until(lambda: all(member.stable for member in members))
        assert isinstance(stage.broker.group, ClassicGroup)
        await asyncio.sleep(30)
        before = stage.broker.group.rebalances
        stage.broker.show(topics={TOPIC: 2 * PARTITIONS})
        await asyncio.sleep(700)
        assert sum(len(member.owned) for member in members) == 2 * PARTITIONS
        assert stage.broker.group.rebalances - before == 1

    play("classic", story, sockets=False)


@pytest.mark.scenario("ConsumerNetworkThreadTest")
@told
async def test_heartbeats_wait_neither_for_a_commit_nor_for_a_look_at_metadata(stage: Stage) -> None:
    member = await stage.start()
    stage.broker.plan(Api.OFFSET_COMMIT, Silence, Silence)
    stage.broker.plan(Api.OFFSET_FETCH, Silence)
    await stage.settled(member)
    before, began = len(stage.asked(Api.HEARTBEAT)), asyncio.get_running_loop().time()
    member.topics.doubt()
    await asyncio.sleep(20)
    beats = len(stage.asked(Api.HEARTBEAT)) - before
    assert beats >= 18, f"{beats} heartbeats in {asyncio.get_running_loop().time() - began:g} s"


def test_a_session_that_is_lowered_for_the_group_later_ends_the_lease_as_early() -> None:
    session = 10_000

    def described(asked: Asked) -> Reply:
        result = nested(RESPONSES[asked.api, asked.version], "results")
        row = blank(nested(result, "configs"), name="consumer.session.timeout.ms", value=str(session))
        return blank_response(asked.api, asked.version, results=(blank(result, resource_name="g", configs=(row,)),))

    async def story(stage: Stage) -> None:
        nonlocal session
        stage.broker.answers[Api.DESCRIBE_CONFIGS] = described
        member = await stage.start(group_protocol="consumer")
        await stage.settled(member)
        session = 6_000
        await asyncio.sleep(40)
        assert member.leases[-1] / 1e9 - asyncio.get_running_loop().time() <= 6

    play("consumer", story)
