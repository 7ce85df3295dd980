"""The modelled coordinator does what Kafka's does: a proof on it is one about members, not about the model."""

from __future__ import annotations

from uuid import UUID

import pytest

from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, Subscription, SyncAnswer
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.requests import Beat, Join, Leaver, Sync
from tests.fakes.seats import GroupState

SESSION, REBALANCE = 10.0, 30.0
TOPIC_ID = UUID(int=1)
WISHES = Subscription(("orders",))
ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Classic:
    """A classic group, and what its members were told last."""

    def __init__(self) -> None:
        self.group = ClassicGroup()
        self.now = 100.0
        self.joined: dict[str, JoinAnswer] = {}
        self.synced: dict[str, SyncAnswer] = {}

    def join(self, who: str, member_id: str = "", instance_id: str | None = None, *assignors: str) -> str:
        """JoinGroup of the process `who`, and again with the id it is given; returns the id it has now."""
        self.joined.pop(who, None)
        protocols = dict.fromkeys(assignors or ("range",), WISHES)
        request = Join(member_id, protocols, instance_id, SESSION, REBALANCE)
        self.group.join(request, lambda answer: self.joined.__setitem__(who, answer), self.now)
        answer = self.joined.get(who)
        if answer is not None and answer.error == E.MEMBER_ID_REQUIRED:
            return self.join(who, answer.member_id, instance_id, *assignors)
        return answer.member_id if answer is not None else member_id

    def sync(self, who: str, **plan: tuple[TopicPartition, ...]) -> None:
        mine = self.joined[who]
        given = {member.replace("_", "-"): partitions for member, partitions in plan.items()}
        request = Sync(mine.member_id, mine.generation, given)
        self.group.sync(request, lambda answer: self.synced.__setitem__(who, answer), self.now)

    def beat(self, who: str) -> int:
        mine = self.joined[who]
        return self.group.heartbeat(mine.member_id, mine.generation, None, self.now)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.group.tick(self.now)

    def pair(self) -> None:
        """Two stable members, `a` leading."""
        a = self.join("a")
        self.sync("a", m_1=(ZERO,))
        self.join("b")
        self.join("a", a)
        self.sync("b")
        self.sync("a", m_1=(ZERO,), m_2=(ONE,))
        assert (self.synced["a"].partitions, self.synced["b"].partitions) == ((ZERO,), (ONE,))


@pytest.mark.scenario("testHeartbeatDuringPreparingRebalance")
def test_a_heartbeat_hears_of_a_rebalance_and_keeps_the_session_alive() -> None:
    group = Classic()
    group.pair()
    group.join("c")
    assert group.group.state is GroupState.PREPARING
    for _ in range(3):
        group.pass_(SESSION - 1)
        assert group.beat("a") == E.REBALANCE_IN_PROGRESS


@pytest.mark.scenario("testHeartbeatDuringCompletingRebalance")
def test_a_heartbeat_is_taken_while_the_plan_is_awaited() -> None:
    group = Classic()
    group.join("a")
    assert group.group.state is GroupState.COMPLETING
    assert group.beat("a") == E.NONE
    assert group.group.commit("m-1", 1, None, group.now) == E.REBALANCE_IN_PROGRESS


@pytest.mark.scenario("testRebalanceTimesOutWhenSyncRequestIsNotReceived*", "TestClassicPendingSyncTimeout")
def test_a_member_that_joined_and_does_not_sync_is_removed_when_the_rebalance_timeout_is_over() -> None:
    group = Classic()
    group.pair()
    b = group.joined["b"].member_id
    group.join("b", b, None, "roundrobin", "range")
    group.join("a", group.joined["a"].member_id)
    group.sync("a", m_1=(ZERO, ONE))
    for _ in range(5):
        group.pass_(SESSION * 0.7)
        group.beat("a")
        group.group.heartbeat(b, group.group.generation, None, group.now)
    assert b not in group.group.seats
    assert group.beat("a") == E.REBALANCE_IN_PROGRESS


@pytest.mark.scenario("testStaticMember*", "TestStaticMemberClassicRejoin")
def test_a_static_member_that_returns_has_a_new_id_its_old_plan_and_moves_nobody() -> None:
    group = Classic()
    group.join("a", "", "pod-0")
    group.sync("a", m_1=(ZERO,))
    generation = group.group.generation
    again = group.join("a", "", "pod-0")
    assert again == "m-2"
    assert (group.joined["a"].generation, group.joined["a"].skip_assignment) == (generation, True)
    group.sync("a")
    assert group.synced["a"].partitions == (ZERO,)


@pytest.mark.scenario("testReplaceStaticMember*", "TestStaticMemberClassicFencing")
def test_the_process_that_had_the_instance_before_is_fenced_in_everything_it_asks() -> None:
    group = Classic()
    group.join("a", "", "pod-0")
    group.sync("a", m_1=(ZERO,))
    group.join("twin", "", "pod-0")
    generation = group.group.generation
    assert group.group.heartbeat("m-1", generation, "pod-0", group.now) == E.FENCED_INSTANCE_ID
    assert group.group.commit("m-1", generation, "pod-0", group.now) == E.FENCED_INSTANCE_ID
    assert group.group.leave(Leaver("m-1", "pod-0"), group.now) == E.FENCED_INSTANCE_ID
    group.join("a", "m-1", "pod-0")
    assert group.joined["a"].error == E.FENCED_INSTANCE_ID


@pytest.mark.scenario("TestStaticMemberClassicLeaveByInstance")
def test_an_instance_is_removed_by_its_name_alone() -> None:
    group = Classic()
    group.join("a", "", "pod-0")
    assert group.group.leave(Leaver("", "pod-0"), group.now) == E.NONE
    assert group.group.leave(Leaver("", "pod-0"), group.now) == E.UNKNOWN_MEMBER_ID


@pytest.mark.scenario("TestClassicProtocolVoting", "0132 strategy_ordering")
def test_the_assignor_that_most_members_put_first_is_chosen_of_those_that_all_offer() -> None:
    group = Classic()
    a = group.join("a", "", None, "cooperative-sticky", "range")
    group.sync("a")
    group.join("b", "", None, "roundrobin", "range")
    group.join("a", a, None, "cooperative-sticky", "range")
    assert {answer.assignor for answer in group.joined.values()} == {"range"}
    group.join("c", "", None, "sticky")
    assert group.joined["c"].error == E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.scenario("testPendingMemberShouldLeaveGroup")
def test_an_id_that_was_given_and_not_used_holds_up_a_rebalance_until_it_is_handed_back() -> None:
    group = Classic()
    told: list[JoinAnswer] = []
    group.group.join(Join("", {"range": WISHES}, None, SESSION, REBALANCE), told.append, group.now)
    group.join("a")
    assert "a" not in group.joined
    group.group.leave(Leaver(told[0].member_id), group.now)
    assert group.joined["a"].error == E.NONE


def test_a_member_of_which_nothing_is_heard_is_missed_after_its_session() -> None:
    group = Classic()
    group.pair()
    group.pass_(SESSION - 1)
    assert group.beat("a") == E.NONE
    group.pass_(2)
    assert group.beat("a") == E.REBALANCE_IN_PROGRESS
    assert group.beat("b") == E.UNKNOWN_MEMBER_ID


def test_another_coordinator_knows_the_group_as_the_last_plan_left_it() -> None:
    group = Classic()
    group.pair()
    generation = group.group.generation
    group.join("c")
    group.group.move(group.now)
    assert group.joined["c"].error == E.NOT_COORDINATOR
    assert (group.group.generation, group.beat("a"), group.beat("b")) == (generation, E.NONE, E.NONE)


# -- the consumer protocol -----------------------------------------------------------------------------------


def consumer_group() -> ConsumerGroup:
    return ConsumerGroup("orders", TOPIC_ID, 2, SESSION)


def owns(*numbers: int) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
    return ((TOPIC_ID, numbers),) if numbers else ()


def beat(
    group: ConsumerGroup, who: str, epoch: int, owned: tuple[tuple[UUID, tuple[int, ...]], ...] | None, now: float
) -> ConsumerHeartbeatAnswer:
    return group.heartbeat(Beat(who, epoch, owned, rebalance_timeout=REBALANCE), now)


@pytest.mark.scenario("testConsumerGroupMemberEpochValidation")
def test_a_wrong_epoch_is_fenced_and_the_one_before_forgiven_to_whoever_owns_no_more_than_it_may() -> None:
    group = consumer_group()
    first = beat(group, "a", 0, (), 0.0)
    assert (first.epoch, first.assignment) == (1, owns(0, 1))
    assert beat(group, "a", 2, None, 0.0).error == E.FENCED_MEMBER_EPOCH
    assert beat(group, "b", 1, None, 0.0).error == E.UNKNOWN_MEMBER_ID
    beat(group, "b", 0, (), 0.0)
    assert beat(group, "a", 1, None, 0.0).assignment == owns(0)
    assert beat(group, "a", 1, owns(0), 0.0).epoch == 2
    assert beat(group, "a", 1, owns(0), 0.0).epoch == 2, "the answer before was lost"
    assert beat(group, "a", 1, owns(0, 1), 0.0).error == E.FENCED_MEMBER_EPOCH
    assert beat(group, "a", 1, None, 0.0).error == E.FENCED_MEMBER_EPOCH


@pytest.mark.scenario("Test848PartitionHandoffNoDuplicates")
def test_a_partition_goes_to_its_next_owner_only_when_it_was_let_go_of() -> None:
    group = consumer_group()
    beat(group, "a", 0, (), 0.0)
    assert beat(group, "b", 0, (), 0.0).assignment == ()
    beat(group, "a", 1, None, 0.0)
    assert beat(group, "b", 2, None, 0.0).assignment is None
    assert beat(group, "a", 1, owns(0), 0.0).epoch == 2
    assert beat(group, "b", 2, None, 0.0).assignment == owns(1)


@pytest.mark.scenario("Test848RebalanceTimeout")
def test_who_does_not_let_go_within_the_rebalance_timeout_is_fenced_though_it_beats() -> None:
    group = consumer_group()
    beat(group, "a", 0, (), 0.0)
    beat(group, "b", 0, (), 0.0)
    beat(group, "a", 1, None, 0.0)
    for second in range(1, int(REBALANCE)):
        assert beat(group, "a", 1, None, second).error == E.NONE
        beat(group, "b", 2, None, second)
    assert beat(group, "a", 1, None, REBALANCE).error == E.UNKNOWN_MEMBER_ID
    assert beat(group, "b", 2, None, REBALANCE).assignment == owns(0, 1)


@pytest.mark.scenario("TestUnreleasedInstanceID*")
def test_an_instances_slot_is_taken_until_it_says_that_it_comes_back() -> None:
    group = consumer_group()
    group.heartbeat(Beat("a", 0, (), instance_id="pod-0"), 0.0)
    assert group.heartbeat(Beat("a2", 0, (), instance_id="pod-0"), 0.0).error == E.UNRELEASED_INSTANCE_ID
    group.heartbeat(Beat("a", -2, None, instance_id="pod-0"), 0.0)
    again = group.heartbeat(Beat("a2", 0, (), instance_id="pod-0"), 0.0)
    assert (again.error, again.epoch, again.assignment) == (E.NONE, 1, owns(0, 1))


@pytest.mark.scenario("consumer_protocol_migration_test.py")
def test_a_classic_member_among_others_lets_go_by_a_join_and_is_asked_for_it_by_its_heartbeat() -> None:
    group = consumer_group()
    told: list[JoinAnswer] = []
    group.join(Join("m", {"range": WISHES}), told.append, 0.0)
    synced: list[SyncAnswer] = []
    group.sync(Sync("m", told[-1].generation, {}), synced.append, 0.0)
    assert (told[-1].leader, synced[-1].partitions) == ("", (ZERO, ONE))
    beat(group, "b", 0, (), 0.0)
    assert group.classic_heartbeat("m", told[-1].generation, 0.0) == E.REBALANCE_IN_PROGRESS
    group.join(Join("m", {"range": Subscription(("orders",), (ONE,))}), told.append, 0.0)
    group.sync(Sync("m", told[-1].generation, {}), synced.append, 0.0)
    assert len(synced[-1].partitions) == 1
