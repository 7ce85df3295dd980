"""What other clients test of a member with the consumer protocol, and what `tests/unit/group` does not show yet."""

from __future__ import annotations

import pytest

from kunicorn.group import events as ev
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.states import State
from tests.unit.group.conversation import (
    FENCED_EPOCH,
    LOADING,
    ORDERS,
    ORDERS_ANEW,
    STALE_EPOCH,
    UNKNOWN_MEMBER,
    ConsumerConversation,
    owned,
    tps,
)


def stable(talk: ConsumerConversation) -> None:
    talk.settle(0, 1)


def joining(talk: ConsumerConversation) -> None:
    talk.find()


def acknowledging(talk: ConsumerConversation) -> None:
    talk.settle(0)
    talk.answer(owned(0, 1), epoch=3)


def reconciling(talk: ConsumerConversation) -> None:
    talk.settle(0, 1)
    talk.answer(owned(0), epoch=3)


STATES = {
    State.JOINING: joining,
    State.STABLE: stable,
    State.ACKNOWLEDGING: acknowledging,
    State.RECONCILING: reconciling,
}


@pytest.mark.scenario(
    "testFencingWhenStateIs*",
    "testFencedMemberStopHeartbeatUntilItReleasesAssignmentToRejoin",
    "testSameAssignmentReconciledAgainWhenFenced",
    "0147 fenced",
)
@pytest.mark.parametrize("error", [FENCED_EPOCH, UNKNOWN_MEMBER])
@pytest.mark.parametrize("state", STATES)
def test_fenced_in_any_state_a_member_loses_all_it_owns_and_joins_anew(state: State, error: int) -> None:
    talk = ConsumerConversation()
    STATES[state](talk)
    assert talk.member.state is state
    had = talk.member.owned
    talk.answer(error=error)
    lost = [command.partitions for command in talk.ordered if isinstance(command, ev.Lose)]
    assert lost == ([tuple(sorted(had))] if had else [])
    assert (talk.member.state, talk.member.generation, talk.member.owned) == (State.JOINING, NO_GENERATION, frozenset())
    assert not talk.member.may_commit
    if state is State.JOINING:
        assert talk.member.deadline() > talk.now, "a join that is refused itself is not sent again at once"
        talk.tick()
    again = talk.order(ev.SendConsumerHeartbeat)
    assert (again.epoch, again.member_id, again.full, again.owned) == (0, "me", True, ())
    talk.answer(owned(0, 1), epoch=5)
    assert talk.order(ev.Assign).partitions == tps(0, 1), "also where it is the same as before"


@pytest.mark.scenario("testFencingWhenStateIs*")
def test_fenced_while_leaving_it_has_left() -> None:
    talk = ConsumerConversation.settled(0)
    talk.tell(ev.LeaveWanted("SIGTERM"))
    talk.answer(error=FENCED_EPOCH)
    assert talk.order(ev.Lose).partitions == tps(0)
    assert talk.member.state is State.LEFT


@pytest.mark.scenario("testNewAssignmentReplacesPreviousOneWaitingOnMetadata", "0147 unknown topic id")
def test_partitions_that_waited_for_a_name_are_not_taken_up_once_they_were_taken_away() -> None:
    talk = ConsumerConversation(names={})
    talk.find()
    talk.answer(((ORDERS_ANEW, (0, 1)),), epoch=2)
    waiting = talk.order(ev.NameTopics)
    talk.answer(owned(5), epoch=3)
    talk.tell(ev.TopicsNamed(waiting, {ORDERS_ANEW: "refunds"}))
    assert "Assign" not in talk.kinds()
    talk.tell(ev.Tick(), after=2)
    talk.tell(ev.TopicsNamed(talk.order(ev.NameTopics), {ORDERS: "orders"}))
    assert talk.order(ev.Assign).partitions == tps(5)
    assert talk.member.owned == frozenset(tps(5))


@pytest.mark.scenario("testReconcilePartitionsRevokedWithFailedAutoCommitCompletesRevocationAnyway")
def test_whatever_came_of_the_commit_partitions_that_were_drained_are_acknowledged() -> None:
    talk = ConsumerConversation()
    reconciling(talk)
    revoke = talk.order(ev.Revoke)
    talk.answer()
    talk.tell(ev.CommitRefused(3, "me", UNKNOWN_MEMBER))
    talk.answer()
    talk.tell(ev.Released(revoke))
    assert talk.next_beat().owned == owned(0)


@pytest.mark.scenario("testAutoCommitSyncBeforeRevocationRetriesOnRetriableAndStaleEpoch")
def test_a_stale_epoch_in_the_middle_of_a_drain_is_asked_for_at_once_and_the_drain_goes_on() -> None:
    talk = ConsumerConversation()
    reconciling(talk)
    revoke = talk.order(ev.Revoke)
    talk.answer()
    talk.tell(ev.CommitRefused(3, "me", STALE_EPOCH))
    talk.order(ev.SendConsumerHeartbeat)
    talk.answer(epoch=4)
    assert (talk.member.state, talk.member.generation, talk.member.may_commit) == (State.RECONCILING, 4, True)
    talk.tell(ev.Released(revoke))
    assert talk.member.state is State.ACKNOWLEDGING


@pytest.mark.scenario("DuplicatePartitionAssignmentNoRewind")
def test_an_assignment_that_is_sent_again_is_not_taken_up_again() -> None:
    talk = ConsumerConversation.settled(0, 1)
    for _ in range(3):
        talk.answer(owned(0, 1, 1, 0), epoch=2)
        assert not {"Assign", "Revoke", "Lose"} & set(talk.kinds())
    assert talk.member.owned == frozenset(tps(0, 1))


@pytest.mark.scenario("0147 fatal")
@pytest.mark.parametrize("error", [24, 30, 42, 81, 82, 112, 128])
def test_what_only_a_person_can_cure_ends_the_service_and_says_the_remedy(error: int) -> None:
    talk = ConsumerConversation.settled(0, instance_id="pod-0")
    talk.answer(error=error, message="the brokers' own words")
    assert talk.order(ev.Lose).partitions == tps(0)
    told = talk.order(ev.Fail).message
    assert f"({error})" in told
    assert "the brokers' own words; " in told


@pytest.mark.scenario("0147 retriable")
@pytest.mark.parametrize("error", [-1, LOADING, 999])
def test_what_passes_is_asked_again_in_full_and_costs_nothing(error: int) -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(owned(7), error=error)
    assert talk.ordered == []
    assert talk.now < talk.member.deadline() < talk.now + 2, "after a pause"
    again = talk.next_beat()
    assert (again.epoch, again.full, again.owned) == (2, True, owned(0))
    assert talk.member.owned == frozenset(tps(0))


@pytest.mark.scenario("NegativeEpochIgnored")
@pytest.mark.parametrize("epoch", [-1, -2, 0])
def test_an_epoch_that_is_none_is_not_adopted_though_the_assignment_counts(epoch: int) -> None:
    talk = ConsumerConversation.settled(0)
    talk.answer(owned(0, 1), epoch=epoch)
    assert talk.member.generation == 2
    assert talk.member.owned == frozenset(tps(0, 1))
