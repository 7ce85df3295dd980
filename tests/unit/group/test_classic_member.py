"""The classic member, told events one by one: what it orders, and what it refuses to do."""

from __future__ import annotations

import pytest

from kunicorn.group import events as ev
from kunicorn.group.member import Timings
from kunicorn.group.protocol import NO_GENERATION, JoinAnswer, Member, Subscription, SyncAnswer
from kunicorn.group.states import State
from tests.unit.group.conversation import (
    ILLEGAL_GENERATION,
    LOADING,
    MEMBER_ID_REQUIRED,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    REBALANCING,
    UNKNOWN_MEMBER,
    UNKNOWN_SERVER_ERROR,
    ClassicConversation,
    tps,
)


def test_a_new_member_finds_the_coordinator_then_joins_with_no_id_and_no_generation() -> None:
    join = ClassicConversation().find()
    assert (join.member_id, join.generation, join.owned) == ("", NO_GENERATION, ())


@pytest.mark.scenario("testJoinGroupRequestWithMemberIdRequired")
def test_member_id_required_is_answered_at_once_with_the_id_and_without_callbacks() -> None:
    talk = ClassicConversation()
    talk.tell(ev.Joined(talk.find(), JoinAnswer(MEMBER_ID_REQUIRED, member_id="given")))
    assert talk.order(ev.SendJoin).member_id == "given"
    assert "Lose" not in talk.kinds()
    assert "Revoke" not in talk.kinds()


@pytest.mark.scenario("testHeartbeatSentWhenCompletingRebalance")
def test_heartbeats_go_on_between_join_and_sync() -> None:
    talk = ClassicConversation()
    talk.join(talk.find())
    assert talk.member.state is State.SYNCING
    assert "SendHeartbeat" in talk.kinds()


def test_whoever_has_no_generation_yet_sends_no_heartbeat_beside_its_join() -> None:
    talk = ClassicConversation()
    talk.find()
    talk.tell(ev.Tick(), after=60)
    assert talk.ordered == []


def test_heartbeats_beside_a_parked_join_keep_membership_certain() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(REBALANCING)
    talk.order(ev.SendJoin)
    for _ in range(400):
        talk.heartbeat(REBALANCING)
        assert talk.member.state is State.JOINING
    assert talk.now > 250
    assert talk.order(ev.ExtendLease).until > talk.now + 40


def test_a_generation_that_is_over_while_its_successor_is_joined_is_no_loss() -> None:
    talk = ClassicConversation.settled(0)
    join = talk.rejoin()
    talk.heartbeat(ILLEGAL_GENERATION)
    assert not {"Lose", "SendJoin"} & set(talk.kinds()), "the answer to JoinGroup is on its way"
    talk.sync(talk.join(join, generation=2), tps(0))
    assert talk.member.owned == frozenset(tps(0))


def test_the_leader_plans_before_it_syncs_and_a_follower_sends_no_plan() -> None:
    talk = ClassicConversation()
    members = (Member("me", Subscription(("orders",))),)
    talk.tell(ev.Joined(talk.find(), JoinAnswer(0, 1, "me", "me", "consumer", talk.assignor, members=members)))
    plan = talk.order(ev.MakePlan)
    talk.tell(ev.Planned(plan, {"me": tps(0)}))
    assert talk.order(ev.SendSync).plan == {"me": tps(0)}


@pytest.mark.scenario("testOnLeaderElectedShouldSkipAssignment")
def test_a_static_leader_told_to_skip_the_assignment_sends_no_plan_but_stays_leader() -> None:
    talk = ClassicConversation(instance_id="pod-0")
    answer = JoinAnswer(0, 7, "new", "new", "consumer", talk.assignor, skip_assignment=True)
    talk.tell(ev.Joined(talk.find(), answer))
    watch = talk.order(ev.MakePlan)
    assert watch.skip, "the topics of all members are watched all the same"
    talk.tell(ev.Planned(watch, {}))
    assert talk.order(ev.SendSync).plan == {}
    assert talk.member.leader


@pytest.mark.scenario("test_generation_change_during_rejoin_sync")
def test_a_plan_for_a_generation_that_is_over_is_dropped() -> None:
    talk = ClassicConversation()
    talk.tell(ev.Joined(talk.find(), JoinAnswer(0, 1, "me", "me", "consumer", talk.assignor)))
    plan = talk.order(ev.MakePlan)
    beat = talk.order(ev.SendHeartbeat)
    talk.tell(ev.HeartbeatAnswered(beat, UNKNOWN_MEMBER, commit_pending=False))
    talk.tell(ev.Planned(plan, {"me": tps(0)}))
    assert "SendSync" not in talk.kinds()


def test_a_cooperative_member_keeps_its_partitions_while_it_joins_and_names_them_as_owned() -> None:
    talk = ClassicConversation.settled(0, 1)
    talk.heartbeat(REBALANCING)
    assert talk.order(ev.SendJoin).owned == tps(0, 1)
    assert "Revoke" not in talk.kinds()


@pytest.mark.scenario("0118 commit_rebalance")
def test_an_eager_member_drains_and_commits_everything_before_it_joins() -> None:
    talk = ClassicConversation.settled(0, 1, cooperative=False)
    talk.heartbeat(REBALANCING)
    revoke = talk.order(ev.Revoke)
    assert revoke.partitions == tps(0, 1)
    assert "SendJoin" not in talk.kinds()
    talk.tell(ev.Released(revoke), after=5)
    assert talk.order(ev.SendJoin).owned == ()


def test_an_eager_member_that_let_go_of_everything_still_tells_what_the_last_plan_gave_it() -> None:
    talk = ClassicConversation.settled(0, 1, cooperative=False)
    talk.heartbeat(REBALANCING)
    talk.tell(ev.Released(talk.order(ev.Revoke)))
    join = talk.order(ev.SendJoin)
    assert (join.owned, join.assigned, join.generation) == ((), tps(0, 1), 1)
    talk.sync(talk.join(join, generation=2), tps(0, 1))
    talk.heartbeat()
    talk.heartbeat(ILLEGAL_GENERATION)
    assert talk.order(ev.SendJoin).assigned == (), "what was lost is another member's by now"


@pytest.mark.scenario("testHeartbeatRebalanceInProgressResponseDuringRebalancing")
def test_heartbeats_go_on_during_a_drain_and_rebalance_in_progress_does_not_disturb_it() -> None:
    talk = ClassicConversation.settled(0, cooperative=False)
    talk.heartbeat(REBALANCING)
    revoke = talk.order(ev.Revoke)
    talk.heartbeat(REBALANCING)
    talk.heartbeat(REBALANCING)
    assert talk.member.state is State.PREPARING
    talk.tell(ev.Released(revoke))
    talk.order(ev.SendJoin)


@pytest.mark.scenario("0113 b_subscribe_with_cb")
def test_a_cooperative_plan_that_takes_partitions_away_drains_them_and_then_rejoins() -> None:
    talk = ClassicConversation.settled(0, 1, 2)
    talk.sync(talk.join(talk.rejoin(), generation=2), tps(0))
    revoke = talk.order(ev.Revoke)
    assert revoke.partitions == tps(1, 2)
    assert talk.member.owned == frozenset(tps(0, 1, 2)), "still owned until the drain is over"
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.SendJoin).owned == tps(0)


def test_a_partition_that_still_drains_stays_owned_while_the_others_are_handed_over() -> None:
    talk = ClassicConversation.settled(0, 1, 2)
    talk.sync(talk.join(talk.rejoin(), generation=2), tps(0))
    talk.tell(ev.Released(talk.order(ev.Revoke), held=frozenset(tps(2))))
    join = talk.order(ev.SendJoin)
    assert join.owned == tps(0, 2)
    talk.sync(talk.join(join, generation=3), tps(0))
    revoke = talk.order(ev.Revoke)
    assert revoke.partitions == tps(2)
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.SendJoin).owned == tps(0)


def test_a_partition_that_still_drains_is_taken_up_again_where_the_next_plan_gives_it_back() -> None:
    talk = ClassicConversation.settled(0, 1, 2)
    talk.sync(talk.join(talk.rejoin(), generation=2), tps(0))
    talk.tell(ev.Released(talk.order(ev.Revoke), held=frozenset(tps(2))))
    talk.sync(talk.join(talk.order(ev.SendJoin), generation=3), tps(0, 2))
    assert talk.order(ev.Assign).partitions == tps(2)
    assert talk.member.owned == frozenset(tps(0, 2))
    talk.heartbeat()
    talk.sync(talk.join(talk.rejoin(), generation=4), tps(0, 2))
    assert talk.order(ev.Assign).partitions == (), "told once"


@pytest.mark.scenario("0117 do_test_offset_commit_error_during_rebalance")
def test_nothing_is_committed_between_join_and_sync() -> None:
    talk = ClassicConversation.settled(0)
    assert talk.may_commit()
    talk.heartbeat(REBALANCING)
    assert not talk.may_commit()
    sync = talk.join(talk.order(ev.SendJoin), generation=2)
    assert not talk.may_commit()
    talk.sync(sync, tps(0))
    assert talk.may_commit()


def join_again(talk: ClassicConversation) -> ev.SendJoin:
    """The next JoinGroup, when it is due."""
    talk.tick()
    return talk.order(ev.SendJoin)


def test_a_group_whose_plans_are_refused_joins_after_waits_that_grow_and_counts_them_as_failed() -> None:
    talk = ClassicConversation()
    join, began = talk.find(), talk.now
    for generation in range(1, 21):
        talk.tell(ev.Synced(talk.join(join, generation), SyncAnswer(UNKNOWN_SERVER_ERROR), talk.now))
        join = join_again(talk)
    assert talk.now - began > 10
    assert {each.result for each in talk.member.history.recent} == {"failed"}
    assert talk.member.history.count == 20
    talk.sync(talk.join(join, 21), tps(0))
    assert talk.member.history.recent[-1].result == "completed"
    talk.tell(ev.TopicsChanged("orders grew"))
    refused = talk.now
    talk.tell(ev.Synced(talk.join(talk.order(ev.SendJoin), 22), SyncAnswer(UNKNOWN_SERVER_ERROR), refused))
    join_again(talk)
    assert talk.now - refused < 0.2, "the one in between was taken"


def test_a_group_in_which_another_rebalance_follows_each_joins_at_once_every_time() -> None:
    talk = ClassicConversation()
    join = talk.find()
    for generation in range(1, 21):
        met = talk.now
        talk.tell(ev.Synced(talk.join(join, generation), SyncAnswer(REBALANCING), talk.now))
        join = join_again(talk)
        assert talk.now - met < 0.2
    assert talk.member.history.count == 0


def test_coordinator_not_available_beside_a_pending_commit_means_the_same_node_again() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(NOT_AVAILABLE, commit_pending=True)
    assert "ForgetCoordinator" not in talk.kinds()


@pytest.mark.scenario("testCoordinatorDiscoveryExponentialBackoff", "CoordinatorRequestManagerTest")
def test_look_ups_back_off_between_failures_and_never_while_one_is_out() -> None:
    talk = ClassicConversation()
    talk.tell(ev.JoinWanted())
    assert talk.tell(ev.Tick(), after=5) == []
    waits = []
    for _ in range(6):
        talk.tell(ev.CoordinatorRefused(0, "no broker answers"))
        waits.append(talk.member.deadline() - talk.now)
        talk.now = talk.member.deadline()
        talk.tell(ev.Tick())
        talk.order(ev.FindCoordinator)
    assert waits[0] < 0.13
    assert 0.7 < waits[-1] <= 1.2


def test_an_error_from_the_future_in_a_join_is_refused_and_in_a_heartbeat_survived() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(999)
    assert talk.member.state is State.STABLE
    fresh = ClassicConversation()
    fresh.tell(ev.Joined(fresh.find(), JoinAnswer(999)))
    assert "999" in fresh.order(ev.Fail).message


@pytest.mark.parametrize("cooperative", [True, False])
def test_heartbeats_refused_by_an_error_from_the_future_end_in_a_join_when_membership_is_not_certain_any_more(
    cooperative: bool,
) -> None:
    talk = ClassicConversation.settled(0, cooperative=cooperative)
    talk.heartbeat()
    certain_until = talk.order(ev.ExtendLease).until
    while talk.now < certain_until:
        assert talk.member.state is State.STABLE
        talk.heartbeat(999)
    if not cooperative:
        talk.tell(ev.Released(talk.order(ev.Revoke), frozenset()))
    assert "999" in talk.order(ev.SendJoin).reason


def test_a_coordinator_that_still_loads_its_groups_is_waited_for_beyond_the_session() -> None:
    talk = ClassicConversation.settled(0)
    for _ in range(200):
        talk.heartbeat(LOADING)
    assert talk.member.lease_until is not None
    assert talk.now > talk.member.lease_until
    assert talk.member.state is State.STABLE
    talk.heartbeat()
    assert talk.order(ev.ExtendLease).until > talk.now


@pytest.mark.scenario("HeartbeatTest")
def test_membership_is_certain_until_the_send_time_plus_the_session_timeout() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat()
    talk.heartbeat()
    talk.tick()
    beat = talk.order(ev.SendHeartbeat)
    talk.tell(ev.HeartbeatAnswered(beat, 0, commit_pending=False), after=2)
    assert talk.order(ev.ExtendLease).until == beat.sent_at + 45


def test_membership_is_not_certain_past_the_rebalance_timeout_of_a_rebalance_that_was_announced() -> None:
    talk = ClassicConversation.settled(0, cooperative=False)
    talk.heartbeat()
    undisturbed = talk.now
    until = talk.certain_until(undisturbed + 290, REBALANCING)  # a drain that takes that long
    assert until == pytest.approx(undisturbed + 300, abs=1), "the coordinator goes on without us then"


def test_where_sessions_are_longer_membership_is_certain_for_the_rebalance_timeout() -> None:
    """A rebalance that begins behind a heartbeat, and that nothing tells us of, ends without us after so long."""
    talk = ClassicConversation.settled(0, timings=Timings(session_timeout=45.0, rebalance_timeout=20.0))
    talk.heartbeat()
    assert talk.order(ev.ExtendLease).until == pytest.approx(talk.now + 20, abs=1)


def test_what_was_certain_before_a_rebalance_ends_with_its_timeout_where_sessions_are_longer() -> None:
    talk = ClassicConversation.settled(0, timings=Timings(session_timeout=45.0, rebalance_timeout=20.0))
    talk.heartbeat()
    promised = talk.order(ev.ExtendLease).until
    undisturbed = promised - 20
    talk.heartbeat(REBALANCING)
    assert talk.order(ev.ExtendLease).until == undisturbed + 20


def test_membership_is_not_certain_past_the_rebalance_timeout_while_the_assignment_is_not_fetched() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(REBALANCING)
    joined_at = talk.now
    talk.join(talk.order(ev.SendJoin), generation=2)
    assert talk.certain_until(joined_at + 290) == joined_at + 300, (
        "SyncGroup was lost: heartbeats do not help whoever never comes for its plan"
    )


def test_whoever_joins_twice_is_waited_for_with_its_assignment_since_the_join_whose_answer_was_lost() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(REBALANCING)
    first, first_at = talk.order(ev.SendJoin), talk.now
    talk.tell(ev.Unanswered(first, "closed"), after=3)
    talk.find_anew()
    talk.join(talk.order(ev.SendJoin), generation=2)
    assert talk.certain_until(first_at + 290) == first_at + 300, "the generation may have begun with the first join"


def test_the_plan_that_came_ends_the_wait_that_began_with_a_join_whose_answer_was_lost() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(REBALANCING)
    talk.tell(ev.Unanswered(talk.order(ev.SendJoin), "closed"), after=200)
    talk.find_anew()
    talk.sync(talk.join(talk.order(ev.SendJoin), generation=2), tps(0))
    talk.heartbeat(REBALANCING)
    joined_at = talk.now
    talk.join(talk.order(ev.SendJoin), generation=3)
    assert talk.certain_until(joined_at + 290) == joined_at + 300


def _with_a_join_whose_answer_was_lost(instance_id: str | None = None) -> ClassicConversation:
    """A member that asks again in a moment. The coordinator it finds is still loading."""
    talk = ClassicConversation.settled(0, instance_id=instance_id)
    talk.heartbeat(REBALANCING)
    talk.tell(ev.Unanswered(talk.order(ev.SendJoin), "closed"))
    talk.find_anew()
    talk.tell(ev.Joined(talk.order(ev.SendJoin), JoinAnswer(LOADING)))
    assert (talk.member.state, talk.kinds()) == (State.UNJOINED, ["SendHeartbeat"])
    return talk


def test_a_group_that_went_on_with_a_join_whose_answer_was_lost_costs_nothing() -> None:
    talk = _with_a_join_whose_answer_was_lost()
    talk.heartbeat(ILLEGAL_GENERATION)
    assert "Lose" not in talk.kinds()
    talk.tick()
    assert talk.order(ev.SendJoin).owned == tps(0)


def test_a_static_member_that_asks_again_loses_all_once_its_place_is_not_certain() -> None:
    talk = _with_a_join_whose_answer_was_lost("pod-1")
    talk.now += 60
    talk.heartbeat(ILLEGAL_GENERATION)
    assert talk.order(ev.Lose).partitions == tps(0)


def test_a_group_that_went_on_before_we_asked_to_join_has_given_away_what_we_owned() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat(NOT_COORDINATOR)
    talk.find_anew()
    talk.heartbeat(ILLEGAL_GENERATION)
    assert talk.order(ev.Lose).partitions == tps(0)


def test_a_rebalance_announced_while_sync_is_out_is_joined_though_its_answer_never_came() -> None:
    talk = ClassicConversation.settled(0)
    sync = talk.join(talk.rejoin(), generation=2)
    talk.heartbeat(REBALANCING)
    talk.heartbeat(REBALANCING)
    talk.tick()
    again = talk.order(ev.SendJoin)
    assert (again.generation, again.owned) == (2, tps(0))
    assert not talk.tell(ev.Synced(sync, SyncAnswer(0, tps(0, 1), "consumer", talk.assignor), talk.now)), "too late"


def test_a_rebalance_announced_once_while_sync_is_out_leaves_the_plan_a_moment_to_come() -> None:
    """librdkafka's mock cluster announces one to whoever waits for the plan: two members joined in turns for ever."""
    talk = ClassicConversation.settled(0)
    sync = talk.join(talk.rejoin(), generation=2)
    talk.heartbeat(REBALANCING)
    assert talk.order(ev.ExtendLease)
    talk.tell(ev.Synced(sync, SyncAnswer(0, tps(0, 1), "consumer", talk.assignor), talk.now))
    assert (talk.member.state, talk.member.generation) == (State.STABLE, 2)


@pytest.mark.scenario("HeartbeatTest")
def test_heartbeats_are_fast_after_an_assignment_and_steady_later() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat()
    talk.heartbeat()
    assert talk.member.deadline() - talk.now == pytest.approx(0.5)
    talk.now += 60
    talk.heartbeat()
    assert talk.member.deadline() - talk.now == pytest.approx(1.0)


@pytest.mark.scenario(
    "testRejoinReason",
    "testMetadataRefreshDuringRebalance",
    "testOutdatedCoordinatorAssignment",
    "0113 s_subscribe_when_rebalancing",
    "0113 u_multiple_subscription_changes",
    "test_coordinator_metadata_change_by_broker",
)
def test_changed_topics_are_joined_for_once_even_if_they_change_in_the_middle_of_a_rebalance() -> None:
    talk = ClassicConversation.settled(0)
    talk.tell(ev.TopicsChanged("orders: 1 to 2 partitions"))
    join = talk.order(ev.SendJoin)
    assert "orders" in join.reason
    sync = talk.join(join, generation=2)
    talk.tell(ev.TopicsChanged("orders: 2 to 3 partitions"))
    assert "SendJoin" not in talk.kinds()
    talk.sync(sync, tps(0, 1))
    assert "3 partitions" in talk.order(ev.SendJoin).reason


@pytest.mark.scenario("testLeaveGroupSentWithGroupInstanceIdUnSet")
def test_leaving_drains_and_commits_before_leave_group() -> None:
    talk = ClassicConversation.settled(0, 1)
    revoke = talk.leave()
    assert revoke.partitions == tps(0, 1)
    assert talk.may_commit()
    talk.tell(ev.Released(revoke))
    leave = talk.order(ev.SendLeave)
    talk.tell(ev.LeaveAnswered(leave, 0))
    assert talk.member.state is State.LEFT


@pytest.mark.scenario("testLeaveGroupSentWithGroupInstanceIdUnSet")
def test_a_static_member_goes_without_leave_group() -> None:
    talk = ClassicConversation.settled(0, instance_id="pod-0")
    talk.tell(ev.Released(talk.leave()))
    assert talk.member.state is State.LEFT
    assert "SendLeave" not in talk.kinds()


def test_a_leaving_member_takes_part_in_the_next_generation_as_its_drain_can_be_committed_only_there() -> None:
    talk = ClassicConversation.settled(0, 1)
    join = talk.rejoin()
    revoke = talk.leave()
    assert talk.tell(ev.CommitRefused(1, "me", ILLEGAL_GENERATION)) == [], "JoinGroup's answer is on its way"
    sync = talk.join(join, generation=2)
    assert not talk.may_commit()
    talk.sync(sync, tps(0, 1, 2))
    assert "Assign" not in talk.kinds()
    assert (talk.may_commit(), talk.member.generation) == (True, 2)
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.SendLeave).member_id == "me"


def test_a_leaving_leader_makes_the_plan_that_the_others_wait_for() -> None:
    talk = ClassicConversation.settled(0)
    join = talk.rejoin()
    talk.tell(ev.LeaveWanted("SIGTERM"))
    talk.tell(ev.Joined(join, JoinAnswer(0, 2, "me", "me", "consumer", talk.assignor)))
    talk.tell(ev.Planned(talk.order(ev.MakePlan), {"me": tps(0)}))
    assert talk.order(ev.SendSync).plan == {"me": tps(0)}
    assert talk.member.state is State.LEAVING


@pytest.mark.parametrize("error", [None, NOT_COORDINATOR, NOT_AVAILABLE, LOADING, REBALANCING])
@pytest.mark.parametrize("asked", ["join", "sync"])
def test_a_leave_outlives_a_coordinator_that_is_lost_in_the_middle_of_a_rebalance(
    asked: str, error: int | None
) -> None:
    talk = ClassicConversation.settled(0)
    join = talk.rejoin()
    sync = talk.join(join, generation=2) if asked == "sync" else None
    revoke = talk.leave()
    if error is None:
        talk.tell(ev.Unanswered(sync or join, "closed"))
    elif sync is not None:
        talk.tell(ev.Synced(sync, SyncAnswer(error), talk.now))
    else:
        talk.tell(ev.Joined(join, JoinAnswer(error)))
    talk.tell(ev.Tick(), after=2)
    talk.tell(ev.CoordinatorFound())
    assert "SendJoin" not in talk.kinds()
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.SendLeave).member_id == "me"


@pytest.mark.scenario("testPendingMemberShouldLeaveGroup")
def test_a_pending_member_with_nothing_in_hand_leaves_at_once() -> None:
    talk = ClassicConversation()
    talk.tell(ev.Joined(talk.find(), JoinAnswer(MEMBER_ID_REQUIRED, member_id="pending")))
    talk.tell(ev.Released(talk.leave()))
    assert talk.order(ev.SendLeave).member_id == "pending"


def test_a_member_told_to_leave_before_it_could_join_is_gone_and_does_not_join() -> None:
    talk = ClassicConversation()
    revoke = talk.leave()
    assert "SendJoin" not in {type(c).__name__ for c in talk.tell(ev.JoinWanted())}
    talk.tell(ev.Released(revoke))
    assert talk.member.state is State.LEFT


def test_an_evicted_member_that_was_leaving_is_gone_without_a_commit() -> None:
    talk = ClassicConversation.settled(0)
    revoke = talk.leave()
    talk.heartbeat(UNKNOWN_MEMBER)
    assert talk.member.state is State.LEFT
    assert talk.order(ev.Lose).partitions == tps(0)
    assert talk.tell(ev.Released(revoke)) == []


@pytest.mark.scenario("testCommitOffsetRebalanceInProgress")
def test_a_commit_that_meets_a_rebalance_has_a_heartbeat_find_out_at_once_and_keeps_the_generation() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat()
    talk.heartbeat()
    talk.tell(ev.CommitRefused(1, "me", REBALANCING))
    assert talk.kinds() == ["SendHeartbeat"]
    join = talk.rejoin()
    assert (join.generation, join.owned) == (1, tps(0))


@pytest.mark.scenario("testCommitOffsetRebalanceInProgress")
def test_a_commit_that_met_a_rebalance_which_is_over_costs_no_other() -> None:
    talk = ClassicConversation.settled(0)
    talk.heartbeat()
    talk.heartbeat()
    talk.tell(ev.CommitRefused(1, "me", REBALANCING))
    talk.heartbeat()
    assert "SendJoin" not in talk.kinds()
    assert talk.member.state is State.STABLE


def test_a_rebalance_of_two_joins_counts_once_and_tells_its_first_reason() -> None:
    talk = ClassicConversation.settled(0, 1)
    count = talk.member.history.count
    talk.sync(talk.join(talk.rejoin(), generation=2), tps(0))
    talk.tell(ev.Released(talk.order(ev.Revoke)))
    talk.sync(talk.join(talk.order(ev.SendJoin), generation=3), tps(0))
    assert talk.member.history.count == count + 1
    assert talk.member.history.recent[-1].reason == "the coordinator announced a rebalance"
