"""A member with the consumer protocol, told events one by one: what it orders, and what it refuses to do."""

from __future__ import annotations

import pytest

from kunicorn.group import events as ev
from kunicorn.group.member import Timings
from kunicorn.group.protocol import ConsumerHeartbeatAnswer
from kunicorn.group.states import State
from tests.unit.group.conversation import (
    FENCED_EPOCH,
    LOADING,
    NAMES,
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    ORDERS,
    ORDERS_ANEW,
    STALE_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED,
    UNSUPPORTED_VERSION,
    ConsumerConversation,
    owned,
    tps,
)

SESSION, REBALANCE = Timings().session_timeout, Timings().rebalance_timeout


@pytest.mark.scenario("testValidateConsumerGroupHeartbeatRequest*")
def test_a_new_member_joins_with_epoch_0_its_own_id_and_an_empty_list_of_partitions() -> None:
    join = ConsumerConversation().find()
    assert (join.epoch, join.member_id, join.full, join.owned) == (0, "me", True, ())


def test_what_is_assigned_is_taken_up_and_acknowledged_at_once() -> None:
    talk = ConsumerConversation()
    talk.find()
    talk.answer(owned(0, 1), epoch=2)
    assert talk.order(ev.Assign).partitions == tps(0, 1)
    acknowledgement = talk.order(ev.SendConsumerHeartbeat)
    assert (acknowledgement.epoch, acknowledgement.owned) == (2, owned(0, 1))
    talk.answer()
    assert talk.member.state is State.STABLE
    assert talk.member.joined


def test_a_member_without_partitions_is_stable_and_ready() -> None:
    talk = ConsumerConversation()
    talk.find()
    talk.answer((), epoch=2)
    assert talk.member.state is State.STABLE
    assert talk.member.joined
    assert talk.member.history.count == 1


def test_a_member_that_is_in_no_epoch_yet_joins_until_it_is() -> None:
    """As where a coordinator computes a group's first assignment behind its answers."""
    talk = ConsumerConversation()
    talk.find()
    talk.answer(epoch=0)
    assert talk.member.state is State.JOINING
    again = talk.next_beat()
    assert (again.epoch, again.full, again.owned) == (0, True, ())
    talk.answer(owned(0), epoch=1)
    assert talk.order(ev.Assign).partitions == tps(0)


@pytest.mark.scenario("testValidateConsumerGroupHeartbeatRequest*")
def test_a_steady_heartbeat_says_nothing_but_who_we_are() -> None:
    talk = ConsumerConversation.settled(0)
    beat = talk.next_beat()
    assert (beat.epoch, beat.full, beat.owned) == (2, False, None)


def test_partitions_that_are_taken_away_are_drained_before_the_coordinator_hears_of_it() -> None:
    talk = ConsumerConversation.settled(0, 1, 2)
    talk.answer(owned(0), epoch=3)
    revoke = talk.order(ev.Revoke)
    assert revoke.partitions == tps(1, 2)
    assert talk.member.may_commit
    for _ in range(3):
        assert talk.next_beat().owned is None, "while partitions drain nothing is reported"
        talk.answer()
    talk.tell(ev.Released(revoke), after=2)
    assert talk.order(ev.SendConsumerHeartbeat).owned == owned(0)
    talk.answer()
    assert talk.member.state is State.STABLE


def test_a_heartbeat_that_was_sent_before_the_drain_ended_does_not_count_as_the_acknowledgement() -> None:
    talk = ConsumerConversation.settled(0, 1)
    talk.answer(owned(0), epoch=3)
    revoke = talk.order(ev.Revoke)
    talk.next_beat()
    talk.tell(ev.Released(revoke))
    talk.answer()
    before = talk.member.state
    talk.answer()
    assert (before, talk.member.state) == (State.ACKNOWLEDGING, State.STABLE)


def test_a_newer_assignment_waits_until_the_drain_for_the_older_one_is_over() -> None:
    talk = ConsumerConversation.settled(0, 1, 2)
    talk.answer(owned(0), epoch=3)
    revoke = talk.order(ev.Revoke)
    talk.answer(owned(5), epoch=4)
    assert not {"Assign", "Revoke"} & set(talk.kinds())
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.Assign).partitions == tps(5)
    assert talk.order(ev.Revoke).partitions == tps(0)


def test_a_join_that_is_refused_as_fenced_is_sent_again_after_waits_that_grow() -> None:
    for error in (FENCED_EPOCH, UNKNOWN_MEMBER):
        talk = ConsumerConversation.settled(0)
        talk.answer(error=error)
        assert talk.order(ev.SendConsumerHeartbeat).epoch == 0
        began = talk.now
        for _ in range(20):
            talk.answer(error=error)
            assert talk.beat is None
        assert talk.now - began > 10
        talk.answer(owned(0), epoch=4)
        assert talk.member.state is State.ACKNOWLEDGING


@pytest.mark.scenario("testDelayedReconciliationResultDiscarded*")
def test_a_drain_that_ends_after_the_member_was_fenced_changes_nothing() -> None:
    talk = ConsumerConversation.settled(0, 1)
    talk.answer(owned(0), epoch=3)
    revoke = talk.order(ev.Revoke)
    talk.answer(error=FENCED_EPOCH)
    talk.tell(ev.Released(revoke))
    assert talk.ordered == []
    assert talk.member.state is State.JOINING


@pytest.mark.scenario(
    "testConsumerAcksReconciledAssignmentAfterAckLost",
    "testValidateConsumerGroupHeartbeatRequest*",
    "DuplicatePartitionAssignmentNoRewind",
)
def test_after_a_lost_answer_the_next_heartbeat_says_everything_and_nothing_is_given_up() -> None:
    talk = ConsumerConversation.settled(0)
    beat, talk.beat = talk.next_beat(), None
    talk.tell(ev.Unanswered(beat, "timed out"))
    talk.order(ev.ForgetCoordinator)
    talk.find_anew()
    again = talk.order(ev.SendConsumerHeartbeat)
    assert (again.epoch, again.full, again.owned) == (2, True, owned(0))
    talk.answer(owned(0))
    assert not {"Assign", "Revoke", "Lose"} & set(talk.kinds())


@pytest.mark.scenario("testConsumerAcksReconciledAssignmentAfterAckLost")
def test_a_lost_acknowledgement_is_repeated() -> None:
    talk = ConsumerConversation()
    talk.find()
    talk.answer(owned(0), epoch=2)
    beat, talk.beat = talk.beat, None
    assert beat is not None
    talk.tell(ev.Unanswered(beat, "timed out"))
    talk.find_anew()
    assert talk.next_beat().owned == owned(0)
    talk.answer(owned(0))
    assert talk.member.state is State.STABLE


def test_error_15_beside_a_commit_means_the_same_node_again() -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(error=NOT_AVAILABLE, commit_pending=True)
    assert "ForgetCoordinator" not in talk.kinds()


@pytest.mark.scenario("0147 unknown topic id")
def test_a_topic_without_a_name_is_asked_for_until_it_has_one_while_the_rest_goes_on() -> None:
    talk = ConsumerConversation(names={})
    talk.find()
    talk.answer(owned(0, 1), epoch=2)
    naming = talk.order(ev.NameTopics)
    assert naming.topic_ids == {ORDERS}
    assert talk.member.state is State.STABLE
    assert not talk.member.joined
    talk.tell(ev.TopicsNamed(naming, {}))
    talk.tell(ev.Tick(), after=1)
    again = talk.order(ev.NameTopics)
    talk.tell(ev.TopicsNamed(again, NAMES))
    assert talk.order(ev.Assign).partitions == tps(0, 1)


def test_a_topic_created_anew_under_the_same_name_is_let_go_of_before_it_is_taken_up() -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(owned(0, topic_id=ORDERS_ANEW), epoch=3)
    revoke = talk.order(ev.Revoke)
    assert "Assign" not in talk.kinds()
    talk.tell(ev.Released(revoke))
    assert talk.order(ev.Assign).partitions == tps(0)


def test_membership_is_certain_from_the_send_time_of_the_last_good_heartbeat() -> None:
    talk = ConsumerConversation.settled(0)
    sent = talk.next_beat().sent_at
    talk.now += 3
    talk.answer()
    assert talk.order(ev.ExtendLease).until == sent + SESSION
    talk.answer(error=LOADING)
    assert "ExtendLease" not in talk.kinds()


def drained_for(talk: ConsumerConversation, seconds: float) -> float:
    """The workers take that long to let go, and every heartbeat is answered; until when membership is certain then."""
    assert talk.order(ev.Revoke).partitions == tps(1)
    until, end = 0.0, talk.now + seconds
    while talk.now < end:
        talk.answer()
        until = talk.order(ev.ExtendLease).until
    return until


def test_membership_is_not_certain_past_the_rebalance_timeout_of_what_is_to_be_let_go_of() -> None:
    talk = ConsumerConversation.settled(0, 1)
    found_nothing_to_take = talk.next_beat().sent_at
    talk.answer()
    talk.answer(owned(0), epoch=3)
    assert drained_for(talk, 295) == found_nothing_to_take + REBALANCE


def test_a_revocation_learnt_late_counts_from_the_last_heartbeat_that_found_nothing_to_take() -> None:
    talk = ConsumerConversation.settled(0, 1)
    found_nothing_to_take = talk.next_beat().sent_at
    talk.answer()
    for _ in range(30):  # the coordinator has them, and counts from the first; we hear nothing of it
        beat, talk.beat = talk.next_beat(), None
        talk.tell(ev.Unanswered(beat, "timed out"), after=3)
        talk.find_anew()
    talk.answer(owned(0), epoch=3)
    assert talk.now > found_nothing_to_take + 90
    assert drained_for(talk, 200) == found_nothing_to_take + REBALANCE


def test_what_was_let_go_of_in_time_lets_membership_be_certain_again() -> None:
    talk = ConsumerConversation.settled(0, 1)
    talk.answer()
    talk.answer(owned(0), epoch=3)
    drain = talk.order(ev.Revoke)
    drained_for(talk, 280)
    talk.tell(ev.Released(drain))
    talk.answer()
    beat = talk.next_beat()
    talk.answer()
    assert talk.order(ev.ExtendLease).until == beat.sent_at + SESSION


@pytest.mark.parametrize(("told", "counts"), [(None, SESSION), (2 * SESSION, SESSION), (SESSION / 3, SESSION / 3)])
def test_of_the_brokers_session_timeout_and_ours_the_shorter_one_counts(told: float | None, counts: float) -> None:
    talk = ConsumerConversation()
    talk.tell(ev.JoinWanted())
    talk.tell(ev.CoordinatorFound(told))
    sent = talk.order(ev.SendConsumerHeartbeat).sent_at
    talk.answer(owned(0), epoch=2)
    assert talk.order(ev.ExtendLease).until == sent + counts
    assert talk.member.session_timeout == counts


def test_a_session_timeout_that_is_lowered_counts_at_once_and_one_that_is_raised_as_far_as_ours() -> None:
    talk = ConsumerConversation()
    talk.tell(ev.JoinWanted())
    talk.tell(ev.CoordinatorFound(SESSION))
    sent = talk.order(ev.SendConsumerHeartbeat).sent_at
    talk.answer(owned(0), epoch=2)
    talk.tell(ev.SessionTold(SESSION / 3))
    assert talk.order(ev.ExtendLease).until == sent + SESSION / 3
    assert talk.member.session_timeout == SESSION / 3
    talk.tell(ev.SessionTold(2 * SESSION))
    assert talk.member.session_timeout == SESSION


@pytest.mark.scenario("TestUnreleasedInstanceID*")
def test_a_static_slot_that_is_still_taken_is_waited_for_as_long_as_a_killed_member_holds_it() -> None:
    talk = ConsumerConversation(instance_id="pod-0")
    talk.find()
    began = talk.now
    while talk.now < began + SESSION + 1:
        talk.answer(error=UNRELEASED)
        assert "Fail" not in talk.kinds()
    while "Fail" not in talk.kinds():
        talk.answer(error=UNRELEASED)
    assert "group_instance_id" in talk.order(ev.Fail).message
    assert talk.now < began + 2 * SESSION


@pytest.mark.parametrize("told", [None, 45.0, 90.0])
def test_a_static_slot_is_waited_for_by_the_brokers_session_where_ours_is_shorter(told: float | None) -> None:
    """Ours only measures the lease."""
    talk = ConsumerConversation(instance_id="pod-0", timings=Timings(session_timeout=20.0))
    talk.tell(ev.JoinWanted())
    talk.tell(ev.CoordinatorFound(told))
    began, held = talk.now, told or 45.0
    while talk.now < began + held + 1:
        talk.answer(error=UNRELEASED)
        assert "Fail" not in talk.kinds()
    while "Fail" not in talk.kinds():
        talk.answer(error=UNRELEASED)
    assert talk.now < began + 2 * held


@pytest.mark.parametrize("lost_by", ["an answer", "silence"])
def test_behind_another_coordinator_a_killed_member_holds_the_slot_for_a_whole_session_more(lost_by: str) -> None:
    talk = ConsumerConversation(instance_id="pod-0")
    talk.find()
    began = talk.now
    while talk.now < began + SESSION - 1:
        talk.answer(error=UNRELEASED)
    if lost_by == "an answer":
        talk.answer(error=NOT_COORDINATOR)
    else:
        talk.tell(ev.Unanswered(talk.next_beat(), "timed out"))
    talk.find_anew()
    moved = talk.now
    while talk.now < moved + SESSION + 1:
        talk.answer(error=UNRELEASED)
        assert "Fail" not in talk.kinds()


def test_a_broker_without_the_protocol_turns_a_member_that_never_joined_into_a_classic_one() -> None:
    talk = ConsumerConversation()
    talk.find()
    talk.answer(error=UNSUPPORTED_VERSION, message="not here")
    assert talk.order(ev.FallBack).why == "not here"


def test_a_member_that_has_joined_does_not_fall_back() -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(error=UNSUPPORTED_VERSION)
    talk.order(ev.Fail)


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("pod-0", -2)])
@pytest.mark.scenario("LeaveUnknownMemberIsSuccess")
def test_leaving_drains_everything_first_and_a_static_member_keeps_its_slot(
    instance_id: str | None, epoch: int
) -> None:
    talk = ConsumerConversation.settled(0, 1, instance_id=instance_id)
    revoke = talk.leave()
    assert revoke.partitions == tps(0, 1)
    talk.answer()
    assert talk.next_beat().epoch == 2, "heartbeats go on during the drain"
    talk.tell(ev.Released(revoke), after=3)
    leave = talk.order(ev.SendConsumerHeartbeat)
    assert leave.epoch == epoch
    talk.tell(ev.ConsumerHeartbeatAnswered(leave, ConsumerHeartbeatAnswer(UNKNOWN_MEMBER), False))
    assert talk.member.state is State.LEFT


def test_a_member_that_leaves_before_its_first_answer_leaves_all_the_same() -> None:
    talk = ConsumerConversation()
    talk.find()
    talk.tell(ev.Released(talk.leave()))
    assert talk.order(ev.SendConsumerHeartbeat).epoch == -1


def test_a_member_that_never_asked_is_gone_at_once() -> None:
    talk = ConsumerConversation()
    talk.tell(ev.Released(talk.leave()))
    assert talk.member.state is State.LEFT


@pytest.mark.scenario("testAutoCommitSyncBeforeRevocationRetriesOnRetriableAndStaleEpoch")
def test_a_commit_under_a_stale_epoch_asks_for_a_heartbeat_at_once() -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer()
    talk.tell(ev.CommitRefused(2, "me", STALE_EPOCH))
    talk.order(ev.SendConsumerHeartbeat)
    assert talk.member.owned == frozenset(tps(0))


@pytest.mark.parametrize("why", ["unanswered", "fenced"])
def test_a_static_member_that_may_hold_its_slot_itself_lets_go_of_it_before_it_joins_again(why: str) -> None:
    talk = ConsumerConversation(instance_id="pod-0")
    if why == "unanswered":
        talk.tell(ev.Unanswered(talk.find(), "timed out"))
        talk.find_anew()
    else:
        talk.settle(0)
        talk.answer(error=FENCED_EPOCH)
    assert talk.next_beat().epoch == 0
    talk.answer(error=UNRELEASED)
    assert talk.order(ev.SendConsumerHeartbeat).epoch == -2
    talk.answer()
    assert talk.next_beat().epoch == 0
    assert talk.now < 105
    talk.answer(owned(0), epoch=5)
    assert talk.member.owned == frozenset(tps(0))


@pytest.mark.parametrize("error", [82, 25, 14, 999])
def test_a_static_slot_that_turns_out_to_be_anothers_is_waited_for(error: int) -> None:
    talk = ConsumerConversation(instance_id="pod-0")
    talk.tell(ev.Unanswered(talk.find(), "timed out"))
    talk.find_anew()
    talk.answer(error=UNRELEASED)
    assert talk.order(ev.SendConsumerHeartbeat).epoch == -2
    talk.answer(error=error)
    for _ in range(5):
        assert talk.next_beat().epoch == 0
        talk.answer(error=UNRELEASED)
        assert "Fail" not in talk.kinds()


def test_a_member_told_to_leave_before_a_broker_turned_the_protocol_down_does_not_join_with_the_other() -> None:
    talk = ConsumerConversation()
    beat = talk.find()
    revoke = talk.leave()
    talk.tell(ev.ConsumerHeartbeatAnswered(beat, ConsumerHeartbeatAnswer(UNSUPPORTED_VERSION), False))
    assert talk.kinds() == []
    talk.tell(ev.Released(revoke))
    leave = talk.order(ev.SendConsumerHeartbeat)
    talk.tell(ev.ConsumerHeartbeatAnswered(leave, ConsumerHeartbeatAnswer(UNSUPPORTED_VERSION), False))
    assert talk.member.state is State.LEFT


def test_a_member_whose_group_was_deleted_joins_again_and_a_newcomer_is_refused() -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(error=69)
    assert talk.order(ev.Lose).partitions == tps(0)
    assert talk.next_beat().epoch == 0
    talk.answer(error=69)
    assert "migration" in talk.order(ev.Fail).message


def test_a_member_that_may_not_see_its_topics_for_a_while_stays_one() -> None:
    talk = ConsumerConversation.settled(0)
    for _ in range(3):
        talk.answer(error=29)
        assert not {"Lose", "Fail"} & set(talk.kinds())
    talk.answer()
    assert talk.member.state is State.STABLE
    newcomer = ConsumerConversation()
    newcomer.find()
    newcomer.answer(error=29)
    assert "DESCRIBE" in newcomer.order(ev.Fail).message
