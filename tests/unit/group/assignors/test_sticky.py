"""The sticky plan: Kafka's documented examples (StickyAssignor, AbstractStickyAssignorTest) and what it promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors.sticky import StickyAssignor, pack_assignment
from kunicorn.group.protocol import Member, Subscription
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import Group, after, groups, member, moved, of, steady

plan = StickyAssignor().plan


def without(group: Group, *member_ids: str) -> Group:
    return replace(group, members=tuple(m for m in group.members if m.member_id not in member_ids))


def running(group: Group) -> Group:
    """The group once its first plan is in force."""
    return after(group, plan(group.members, group.partitions), 1)


def test_a_group_with_equal_subscriptions_starts_as_the_documented_example_does() -> None:
    topics = ("t0", "t1", "t2", "t3")
    assert plan([member(name, topics) for name in ("C0", "C1", "C2")], dict.fromkeys(topics, 2)) == {
        "C0": of("t0", 0) + of("t1", 1) + of("t3", 0),
        "C1": of("t0", 1) + of("t2", 0) + of("t3", 1),
        "C2": of("t1", 0) + of("t2", 1),
    }


def test_a_group_with_unequal_subscriptions_starts_and_shrinks_as_the_documented_example_does() -> None:
    members = (member("C0", ("t0",)), member("C1", ("t0", "t1")), member("C2", ("t0", "t1", "t2")))
    group = Group(members, {"t0": 1, "t1": 2, "t2": 3})
    assert plan(group.members, group.partitions) == {
        "C0": of("t0", 0),
        "C1": of("t1", 0, 1),
        "C2": of("t2", 0, 1, 2),
    }
    rest = without(running(group), "C0")
    assert plan(rest.members, rest.partitions) == {"C1": of("t0", 0) + of("t1", 0, 1), "C2": of("t2", 0, 1, 2)}


def test_a_deleted_topic_is_forgotten_and_the_rest_stays_if_it_is_even() -> None:
    group = running(Group((member("a", ("t", "u")), member("b", ("t", "u"))), {"t": 4, "u": 4}))
    assert moved(group, plan(group.members, {"t": 4})) == 4


def test_a_member_with_too_many_gives_up_some_of_every_topic() -> None:
    owned = of("t", 0, 1, 2, 3) + of("u", 0, 1, 2, 3)
    members = [member("a", ("t", "u"), owned, 1), member("b", ("t", "u"))]
    assert plan(members, {"t": 4, "u": 4})["a"] == of("t", 0, 1) + of("u", 0, 1)


def test_a_partition_its_owner_must_give_up_goes_back_to_who_had_it_before() -> None:
    members = [
        member("a", ("t",), of("t", 0, 1, 2, 3, 4, 5), 2),
        member("b", ("t",)),
        member("c", ("t",), of("t", 2, 3), 1),
    ]
    assert plan(members, {"t": 6}) == {"a": of("t", 0, 1), "b": of("t", 4, 5), "c": of("t", 2, 3)}


def test_members_that_revoked_everything_before_they_joined_are_known_by_their_user_data() -> None:
    def rejoining(name: str, *numbers: int) -> Member:
        return Member(name, Subscription(("t",), (), 1, None, pack_assignment(of("t", *numbers), 1)))

    assert plan([rejoining("a", 1, 2), rejoining("b", 0, 3)], {"t": 4}) == {"a": of("t", 1, 2), "b": of("t", 0, 3)}


def test_the_claim_of_a_member_that_missed_a_generation_loses() -> None:
    members = [member("late", ("t",), of("t", 0, 1), 1), member("here", ("t",), of("t", 0, 1), 2)]
    assert plan(members, {"t": 4}) == {"here": of("t", 0, 1), "late": of("t", 2, 3)}


@steady
@given(group=groups())
@pytest.mark.scenario("AbstractStickyAssignorTest", "0120 asymmetric_subscription")
def test_no_member_could_take_a_partition_from_one_with_two_more(group: Group) -> None:
    made = plan(group.members, group.partitions)
    for giver in group.members:
        for taker in group.members:
            if len(made[giver.member_id]) >= len(made[taker.member_id]) + 2:
                assert not {p.topic for p in made[giver.member_id]} & set(taker.subscription.topics)


@steady
@given(group=groups(alike=True, min_members=1, claiming=False), data=st.data())
def test_with_equal_subscriptions_no_even_plan_moves_less(group: Group, data: st.DataObject) -> None:
    owners: dict[str, list[TopicPartition]] = {m.member_id: [] for m in group.members}
    for partition in sorted(group.wanted):
        owner = data.draw(st.none() | st.sampled_from(sorted(owners)))
        if owner is not None:
            owners[owner].append(partition)
    group = after(group, owners, 1)
    share, extra = divmod(len(group.wanted), len(group.members))
    held = sorted((len(partitions) for partitions in owners.values()), reverse=True)
    least = sum(max(0, count - share - (place < extra)) for place, count in enumerate(held))
    assert moved(group, plan(group.members, group.partitions)) == least


@steady
@given(group=groups(claiming=False), gone=st.sets(st.sampled_from([f"m{n}" for n in range(6)])))
def test_members_that_leave_cost_the_others_only_what_evenness_demands(group: Group, gone: set[str]) -> None:
    rest = without(running(group), *gone)
    first = plan(rest.members, rest.partitions)
    assert plan(after(rest, first, 2).members, rest.partitions) == first
