"""What other clients test of a classic member, and what `tests/unit/group` does not show yet."""

from __future__ import annotations

import pytest

from kunicorn.group import events as ev
from kunicorn.group.protocol import NO_GENERATION, JoinAnswer, SyncAnswer
from kunicorn.group.states import State
from tests.unit.group.conversation import (
    FENCED,
    GROUP_NOT_FOUND,
    ILLEGAL_GENERATION,
    LOADING,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    REBALANCING,
    UNKNOWN_MEMBER,
    ClassicConversation,
    tps,
)

STALE = (ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED)


def refused(talk: ClassicConversation, asked: str, error: int) -> None:
    """That request of a stable member, of the generation that it is in or joins, is answered with the error."""
    if asked == "heartbeat":
        talk.heartbeat(error)
    elif asked == "join":
        talk.tell(ev.Joined(talk.rejoin(), JoinAnswer(error)))
    elif asked == "sync":
        talk.tell(ev.Synced(talk.join(talk.rejoin(), generation=2), SyncAnswer(error), talk.now))
    else:
        if asked == "commit beside a join":
            talk.rejoin()
        talk.tell(ev.CommitRefused(talk.member.generation, "me", error))


# -- joining and syncing -------------------------------------------------------------------------------------


@pytest.mark.scenario(
    "testJoinGroupRequestWithRebalanceInProgress", "0117 do_test_joingroup_coordinator_load_in_progress"
)
@pytest.mark.parametrize("error", [LOADING, REBALANCING])
def test_a_join_that_comes_too_early_is_sent_again_to_the_same_node_after_a_pause(error: int) -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Joined(talk.rejoin(), JoinAnswer(error)))
    assert talk.kinds() == ["SendHeartbeat"], "it is a member, and shows it, while it waits"
    talk.tell(ev.Tick(), after=0.2)
    join = talk.order(ev.SendJoin)
    assert (join.member_id, join.generation, join.owned) == ("me", 1, tps(0))


@pytest.mark.scenario("test_failed_group_join")
@pytest.mark.parametrize("error", [NOT_COORDINATOR, NOT_AVAILABLE])
def test_a_join_that_meets_a_moved_coordinator_is_sent_to_the_new_one_with_the_same_id(error: int) -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Joined(talk.rejoin(), JoinAnswer(error)))
    talk.order(ev.ForgetCoordinator)
    talk.find_anew()
    join = talk.order(ev.SendJoin)
    assert (join.member_id, join.generation, join.owned) == ("me", 1, tps(0))


@pytest.mark.scenario(
    "testJoinGroupRequestWithFencedInstanceIdException",
    "testCommitOffsetFencedInstanceWithRebalancingGeneration",
    "test_failed_group_join",
)
@pytest.mark.parametrize(
    ("asked", "error"),
    [
        *(("join", error) for error in (23, 24, 26, 30, 35, 81, FENCED)),
        ("heartbeat", FENCED),
        ("commit beside a join", FENCED),
    ],
)
def test_a_refusal_that_only_a_person_can_cure_ends_the_member_with_its_remedy(asked: str, error: int) -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    refused(talk, asked, error)
    assert talk.kinds() == ["Lose", "Fail"]
    assert talk.order(ev.Lose).partitions == tps(0)
    assert f"({error}): " in talk.order(ev.Fail).message
    assert talk.member.state is State.FAILED


@pytest.mark.scenario("testJoinGroupProtocolTypeAndName")
@pytest.mark.parametrize(
    ("kind", "assignor", "complaint"),
    [("connect", "cooperative-sticky", "type 'connect'"), ("consumer", "range", "'range', which this member")],
)
def test_a_group_of_another_type_or_with_another_assignor_is_refused(kind: str, assignor: str, complaint: str) -> None:
    talk = ClassicConversation()
    talk.tell(ev.Joined(talk.find(), JoinAnswer(0, 1, "me", "other", kind, assignor)))
    assert complaint in talk.order(ev.Fail).message


@pytest.mark.scenario("testJoinGroupProtocolTypeAndName")
@pytest.mark.parametrize(("kind", "assignor"), [("connect", "cooperative-sticky"), ("consumer", "range")])
def test_a_plan_for_another_type_or_by_another_assignor_is_refused(kind: str, assignor: str) -> None:
    talk = ClassicConversation()
    sync = talk.join(talk.find())
    talk.tell(ev.Synced(sync, SyncAnswer(0, tps(0), kind, assignor), talk.now))
    assert "SyncGroup speaks of" in talk.order(ev.Fail).message
    assert "Assign" not in talk.kinds()


@pytest.mark.scenario("testJoinGroupProtocolTypeAndName")
def test_answers_of_versions_that_name_neither_type_nor_assignor_are_believed() -> None:
    talk = ClassicConversation()
    talk.tell(ev.Joined(talk.find(), JoinAnswer(0, 1, "me", "other", None, talk.assignor)))
    talk.tell(ev.Synced(talk.order(ev.SendSync), SyncAnswer(0, tps(0)), talk.now))
    assert talk.member.state is State.STABLE


@pytest.mark.scenario("testRetainMemberIdAfterSyncGroupDisconnect", "test_failed_sync_group")
@pytest.mark.parametrize("error", [NOT_COORDINATOR, NOT_AVAILABLE, LOADING, REBALANCING, 999])
def test_a_sync_that_fails_leads_to_a_join_with_the_id_and_generation_at_hand(error: int) -> None:
    talk = ClassicConversation.settled(0)
    sync = talk.join(talk.rejoin(), generation=2)
    talk.tell(ev.Synced(sync, SyncAnswer(error), talk.now))
    if "ForgetCoordinator" in talk.kinds():
        talk.find_anew()
    else:
        talk.tell(ev.Tick(), after=0.2)
    join = talk.order(ev.SendJoin)
    assert (join.member_id, join.generation, join.owned) == ("me", 2, tps(0))


def unanswered_sync(talk: ClassicConversation) -> ev.SendSync:
    """SyncGroup is sent a second time: the coordinator was silent."""
    talk.settle(0)
    sync = talk.join(talk.rejoin(), generation=2)
    talk.tell(ev.Unanswered(sync, "connection reset"))
    talk.order(ev.ForgetCoordinator)
    talk.find_anew()
    again = talk.order(ev.SendSync)
    assert (again.member_id, again.generation, again.plan) == ("me", 2, sync.plan)
    return again


@pytest.mark.scenario("testRetainMemberIdAfterSyncGroupDisconnect")
def test_a_sync_that_goes_unanswered_is_sent_again_and_costs_no_other_rebalance() -> None:
    talk = ClassicConversation()
    talk.sync(unanswered_sync(talk), tps(0, 1))
    assert "SendJoin" not in talk.kinds()
    assert (talk.member.state, talk.member.generation) == (State.STABLE, 2)
    assert talk.order(ev.Assign).partitions == tps(1)


@pytest.mark.scenario("testRetainMemberIdAfterSyncGroupDisconnect")
@pytest.mark.parametrize("error", [ILLEGAL_GENERATION, REBALANCING])
def test_a_repeated_sync_for_a_generation_that_the_coordinator_does_not_know_joins_and_loses_nothing(
    error: int,
) -> None:
    talk = ClassicConversation()
    talk.tell(ev.Synced(unanswered_sync(talk), SyncAnswer(error), talk.now))
    assert "Lose" not in talk.kinds()
    talk.tell(ev.Tick(), after=0.3)
    join = talk.order(ev.SendJoin)
    assert (join.member_id, join.generation, join.owned) == ("me", 2, tps(0))


def test_a_heartbeat_of_a_generation_that_the_coordinator_does_not_know_joins_and_loses_nothing() -> None:
    talk = ClassicConversation()
    unanswered_sync(talk)
    talk.heartbeat(ILLEGAL_GENERATION)
    assert "Lose" not in talk.kinds()
    beat = talk.order(ev.SendHeartbeat)
    assert beat.generation == 1, "which it knows"
    talk.tell(ev.Tick(), after=0.3)
    join = talk.order(ev.SendJoin)
    assert (join.member_id, join.generation, join.owned) == ("me", 2, tps(0)), "as the others name it, too"


def test_the_plan_of_a_generation_that_the_coordinator_does_not_know_is_dropped_and_nothing_lost() -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Joined(talk.rejoin(), JoinAnswer(0, 2, "me", "me", "consumer", talk.assignor)))
    plan = talk.order(ev.MakePlan)
    talk.tell(ev.Unanswered(talk.order(ev.SendHeartbeat), "closed"))
    talk.tell(ev.Planned(plan, {"me": tps(0)}))
    talk.find_anew()
    talk.tell(ev.Synced(talk.order(ev.SendSync), SyncAnswer(ILLEGAL_GENERATION), talk.now))
    assert "Lose" not in talk.kinds()
    assert (talk.member.generation, talk.member.owned) == (1, frozenset(tps(0)))


@pytest.mark.parametrize("told_by", ["heartbeat", "commit"])
def test_a_member_that_waits_to_join_anew_goes_on_under_the_generation_that_the_coordinator_knows(told_by: str) -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Synced(talk.join(talk.rejoin(), generation=2), SyncAnswer(NOT_COORDINATOR), talk.now))
    talk.find_anew()
    talk.tell(ev.Joined(talk.order(ev.SendJoin), JoinAnswer(LOADING)))
    if told_by == "heartbeat":
        talk.heartbeat(ILLEGAL_GENERATION)
    else:
        talk.tell(ev.CommitRefused(2, "me", ILLEGAL_GENERATION))
    assert "Lose" not in talk.kinds()
    assert (talk.member.generation, talk.may_commit()) == (1, True)
    talk.heartbeat(ILLEGAL_GENERATION)
    assert talk.order(ev.Lose).partitions == tps(0), "nor does it know that one: it is over without us"


def test_a_coordinator_that_knows_a_generation_whose_plan_never_came_costs_nothing_either() -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Synced(talk.join(talk.rejoin(), generation=2), SyncAnswer(REBALANCING), talk.now))
    talk.tell(ev.Tick(), after=0.3)
    talk.tell(ev.Unanswered(talk.join(talk.order(ev.SendJoin), generation=3), "closed"))
    talk.find_anew()
    talk.tell(ev.Synced(talk.order(ev.SendSync), SyncAnswer(ILLEGAL_GENERATION), talk.now))
    assert (talk.member.generation, talk.member.owned) == (2, frozenset(tps(0)))
    talk.heartbeat(ILLEGAL_GENERATION)
    assert "Lose" not in talk.kinds()
    assert (talk.member.generation, talk.member.owned) == (1, frozenset(tps(0))), "or the one that it has the plan of"


def test_a_static_member_that_is_not_certain_of_its_place_loses_what_it_owned_with_the_generation() -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    sync = talk.join(talk.rejoin(), generation=2)
    talk.now += 400
    talk.tell(ev.Synced(sync, SyncAnswer(ILLEGAL_GENERATION), talk.now))
    assert talk.order(ev.Lose).partitions == tps(0)


@pytest.mark.scenario("testRetainMemberIdAfterSyncGroupDisconnect")
def test_a_repeated_sync_of_a_member_that_is_not_known_any_more_loses_everything() -> None:
    talk = ClassicConversation()
    talk.tell(ev.Synced(unanswered_sync(talk), SyncAnswer(UNKNOWN_MEMBER), talk.now))
    assert talk.order(ev.Lose).partitions == tps(0)


def test_a_leaders_plan_outlives_a_connection_and_goes_out_when_the_coordinator_is_found_again() -> None:
    talk = ClassicConversation.settled(0)
    join = talk.rejoin()
    talk.tell(ev.Joined(join, JoinAnswer(0, 2, "me", "me", "consumer", talk.assignor)))
    plan = talk.order(ev.MakePlan)
    talk.tell(ev.Unanswered(talk.order(ev.SendHeartbeat), "timed out"))
    talk.order(ev.ForgetCoordinator)
    assert talk.tell(ev.Planned(plan, {"me": tps(0)})) == [], "there is nobody to send it to"
    talk.find_anew()
    assert talk.order(ev.SendSync).plan == {"me": tps(0)}


@pytest.mark.scenario(
    "0113 p_lost_partitions_heartbeat_illegal_generation",
    "0113 q_lost_partitions_illegal_generation",
    "0113 r_lost_partitions_commit_illegal_generation",
    "shouldLoseAllOwnedPartitionsBeforeRejoiningAfterDroppingOutOfTheGroup",
    "shouldLoseAllOwnedPartitionsBeforeRejoiningAfterResettingGenerationId",
    "TestCommitFatalMemberErrorTriggersRejoin",
    "test_commit_failed_scenarios",
    "test_failed_sync_group",
)
@pytest.mark.parametrize(
    ("asked", "error", "kept"),
    [
        ("join", ILLEGAL_GENERATION, "me"),
        ("join", UNKNOWN_MEMBER, ""),
        ("sync", UNKNOWN_MEMBER, ""),
        ("heartbeat", ILLEGAL_GENERATION, "me"),
        ("heartbeat", UNKNOWN_MEMBER, ""),
        ("heartbeat", GROUP_NOT_FOUND, ""),
        ("commit", ILLEGAL_GENERATION, "me"),
        ("commit", UNKNOWN_MEMBER, ""),
    ],
)
def test_an_answer_that_tells_of_a_fencing_loses_everything_and_joins_at_once(
    asked: str, error: int, kept: str
) -> None:
    talk = ClassicConversation.settled(0, 1)
    refused(talk, asked, error)
    assert talk.kinds() == ["Lose", "SendJoin"], "what is lost is not drained and committed"
    assert talk.order(ev.Lose).partitions == tps(0, 1)
    again = talk.order(ev.SendJoin)
    assert (again.member_id, again.generation, again.owned) == (kept, NO_GENERATION, ())


@pytest.mark.scenario("test_failed_group_join", "test_failed_sync_group")
@pytest.mark.parametrize(
    ("asked", "error"), [("join", ILLEGAL_GENERATION), ("join", UNKNOWN_MEMBER), ("sync", UNKNOWN_MEMBER)]
)
def test_of_fencings_in_a_row_the_first_is_joined_for_at_once_and_the_others_after_waits_that_grow(
    asked: str, error: int
) -> None:
    talk = ClassicConversation.settled(0)
    refused(talk, asked, error)
    join, began = talk.order(ev.SendJoin), talk.now
    for generation in range(3, 23):
        if asked == "join":
            talk.tell(ev.Joined(join, JoinAnswer(error)))
        else:
            talk.tell(ev.Synced(talk.join(join, generation), SyncAnswer(error), talk.now))
        assert "SendJoin" not in talk.kinds(), "its answer would be the same"
        talk.tick()
        join = talk.order(ev.SendJoin)
    assert talk.now - began > 10
    talk.sync(talk.join(join, 23), tps(0))
    assert talk.member.state is State.STABLE
    refused(talk, "heartbeat", error)
    talk.order(ev.SendJoin)


@pytest.mark.scenario("testJoinGroupUnknownMemberResponseWithOldGeneration")
@pytest.mark.parametrize("error", STALE)
def test_an_answer_to_a_join_that_was_given_up_changes_nothing(error: int) -> None:
    talk = ClassicConversation.settled(0)
    outdated = talk.rejoin()
    talk.tell(ev.Unanswered(outdated, "timed out"))
    talk.find_anew()
    talk.sync(talk.join(talk.order(ev.SendJoin), generation=2), tps(0))
    talk.tell(ev.Joined(outdated, JoinAnswer(error)))
    assert (talk.member.state, talk.member.generation, talk.member.member_id) == (State.STABLE, 2, "me")
    assert talk.member.owned == frozenset(tps(0))


@pytest.mark.scenario(
    "testSyncGroupUnknownMemberResponseWithOldGeneration", "testSyncGroupIllegalGenerationResponseWithOldGeneration"
)
@pytest.mark.parametrize("error", STALE)
def test_an_answer_to_a_sync_of_a_generation_that_is_over_changes_nothing(error: int) -> None:
    talk = ClassicConversation.settled(0)
    outdated = talk.join(talk.rejoin(), generation=2)
    talk.heartbeat(ILLEGAL_GENERATION)
    talk.tell(ev.Tick(), after=0.3)
    sync = talk.join(talk.order(ev.SendJoin), generation=3)
    talk.tell(ev.Synced(outdated, SyncAnswer(error), talk.now))
    assert "Fail" not in talk.kinds()
    talk.sync(sync, tps(0))
    assert (talk.member.state, talk.member.generation, talk.member.member_id) == (State.STABLE, 3, "me")


@pytest.mark.scenario("testRejoinReason")
def test_every_join_says_why() -> None:
    talk = ClassicConversation()
    first = talk.find()
    talk.sync(talk.join(first), tps(0, 1))
    announced = talk.rejoin()
    talk.sync(talk.join(announced, generation=2), tps(0))
    talk.tell(ev.Released(talk.order(ev.Revoke)))
    reasons = [first.reason, announced.reason, talk.order(ev.SendJoin).reason]
    assert reasons[0] == "first join"
    assert "announced" in reasons[1]
    assert "revoked 1 partitions" in reasons[2]


@pytest.mark.scenario("consumer_protocol_migration_test.py")
@pytest.mark.parametrize(("away", "lost"), [(30.0, None), (60.0, tps(0))])
def test_whoever_a_group_of_the_consumer_protocol_takes_back_after_its_session_has_lost_what_it_owned(
    away: float, lost: tuple[object, ...] | None
) -> None:
    """Such a group takes a classic member back under its old id, though it gave its partitions away meanwhile."""
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Unanswered(talk.rejoin(), "timed out"), after=away)
    talk.find_anew()
    sync = talk.join(talk.order(ev.SendJoin), generation=9, leader="")
    assert [command.partitions for command in talk.ordered if isinstance(command, ev.Lose)] == ([lost] if lost else [])
    talk.sync(sync, tps(0))
    assert talk.order(ev.Assign).partitions == (lost or ())


# -- heartbeats ----------------------------------------------------------------------------------------------


@pytest.mark.scenario(
    "testHeartbeatIllegalGenerationResponseWithOldGeneration",
    "testHeartbeatUnknownMemberResponseWithOldGeneration",
    "testHeartbeatInstanceFencedResponseWithOldGeneration",
)
@pytest.mark.parametrize("error", STALE)
def test_an_answer_to_a_heartbeat_of_the_generation_before_changes_nothing(error: int) -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    outdated = talk.beat
    assert outdated is not None
    talk.tell(ev.TopicsChanged("orders grew"))
    talk.sync(talk.join(talk.order(ev.SendJoin), generation=2), tps(0))
    talk.tell(ev.HeartbeatAnswered(outdated, error, commit_pending=False))
    assert not {"Lose", "Fail"} & set(talk.kinds())
    assert (talk.member.state, talk.member.generation, talk.member.member_id) == (State.STABLE, 2, "me")


@pytest.mark.scenario("HeartbeatTest", "test_coordinator__do_heartbeat")
def test_a_heartbeat_without_an_answer_is_followed_by_a_look_up_and_another_and_costs_nothing() -> None:
    talk = ClassicConversation.settled(0)
    assert talk.beat is not None
    talk.tell(ev.Unanswered(talk.beat, "timed out"), after=3)
    talk.order(ev.ForgetCoordinator)
    talk.find_anew()
    beat = talk.order(ev.SendHeartbeat)
    assert (beat.generation, beat.member_id, talk.member.owned) == (1, "me", frozenset(tps(0)))


# -- commits -------------------------------------------------------------------------------------------------


@pytest.mark.scenario(
    "testCommitOffsetIllegalGenerationWithNewGeneration",
    "testCommitOffsetUnknownMemberWithNewGeneration",
    "testCommitOffsetFencedInstanceWithNewGeneration",
)
@pytest.mark.parametrize("error", STALE)
def test_a_commit_refused_under_the_generation_before_changes_nothing(error: int) -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    talk.sync(talk.join(talk.rejoin(), generation=2), tps(0))
    talk.tell(ev.CommitRefused(1, "me", error))
    assert not {"Lose", "Fail", "SendJoin"} & set(talk.kinds())
    assert (talk.member.state, talk.member.generation) == (State.STABLE, 2)


@pytest.mark.scenario(
    "testCommitOffsetIllegalGenerationWithResetGeneration",
    "testCommitOffsetUnknownMemberWithResetGeneration",
    "testCommitOffsetFencedInstanceWithResetGeneration",
)
@pytest.mark.parametrize("error", STALE)
def test_a_commit_refused_after_the_generation_was_reset_changes_nothing_more(error: int) -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    talk.heartbeat(ILLEGAL_GENERATION)
    join = talk.order(ev.SendJoin)
    talk.tell(ev.CommitRefused(1, "me", error))
    assert talk.ordered == []
    talk.sync(talk.join(join, generation=2), tps(0))
    assert talk.member.state is State.STABLE


@pytest.mark.scenario(
    "testCommitOffsetIllegalGenerationWithRebalancingGeneration",
    "testCommitOffsetUnknownMemberWithRebalancingGeneration",
    "0117 do_test_offset_commit_error_during_rebalance",
)
@pytest.mark.parametrize("error", [ILLEGAL_GENERATION, UNKNOWN_MEMBER])
@pytest.mark.parametrize("asked", ["join", "sync"])
def test_a_commit_refused_while_the_next_generation_is_joined_leaves_that_join_alone(error: int, asked: str) -> None:
    talk = ClassicConversation.settled(0)
    join = talk.rejoin()
    if asked == "sync":
        talk.join(join, generation=2)
    talk.tell(ev.CommitRefused(talk.member.generation, "me", error))
    assert not {"Lose", "SendJoin"} & set(talk.kinds())
    assert talk.member.owned == frozenset(tps(0))


@pytest.mark.scenario("testManyInFlightAsyncCommitsWithCoordinatorDisconnect", "test_commit_failed_scenarios")
def test_several_requests_that_a_moved_coordinator_refuses_lead_to_one_look_up() -> None:
    talk = ClassicConversation.settled(0)
    assert talk.beat is not None
    talk.tell(ev.CommitRefused(1, "me", NOT_COORDINATOR))
    forgotten = talk.kinds().count("ForgetCoordinator")
    talk.tell(ev.Unanswered(talk.beat, "closed on our side"))
    forgotten += talk.kinds().count("ForgetCoordinator")
    assert forgotten == 1
    talk.find_anew()
    assert talk.member.state is State.STABLE


# -- leading and leaving -------------------------------------------------------------------------------------


@pytest.mark.scenario("testStaticLeaderRejoinsGroupAndCanTriggersRebalance")
def test_a_returned_leader_that_was_told_to_skip_its_plan_joins_anew_when_topics_change() -> None:
    talk = ClassicConversation(instance_id="pod-0")
    skip = JoinAnswer(0, 7, "new", "new", "consumer", talk.assignor, skip_assignment=True)
    talk.tell(ev.Joined(talk.find(), skip))
    talk.tell(ev.Planned(talk.order(ev.MakePlan), {}))
    talk.sync(talk.order(ev.SendSync), tps(0))
    talk.tell(ev.TopicsChanged("refunds: 1 to 2 partitions"))
    assert "refunds" in talk.order(ev.SendJoin).reason


@pytest.mark.scenario("testCloseNoResponseForLeaveGroup", "LeaveUnknownMemberIsSuccess")
@pytest.mark.parametrize("error", [None, 0, NOT_COORDINATOR, UNKNOWN_MEMBER, LOADING, 999])
def test_leave_group_is_tried_once_whatever_comes_of_it(error: int | None) -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.Released(talk.leave()))
    leave = talk.order(ev.SendLeave)
    talk.tell(ev.Unanswered(leave, "timed out") if error is None else ev.LeaveAnswered(leave, error))
    assert talk.member.state is State.LEFT
    assert talk.ordered == []


@pytest.mark.scenario("testCloseCoordinatorNotKnownWithCommits")
def test_a_stop_without_a_coordinator_drains_and_ends() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(NOT_COORDINATOR)
    talk.tell(ev.Released(talk.leave()))
    talk.tell(ev.Unanswered(talk.order(ev.SendLeave), "the coordinator is not known now"))
    assert talk.member.state is State.LEFT
