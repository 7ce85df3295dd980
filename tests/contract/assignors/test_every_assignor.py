"""What every assignor promises, whichever the group has chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors import ASSIGNORS, Assignor
from kunicorn.group.protocol import Member, Subscription
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import RACKS, Group, after, groups, member, of, steady
from tests.lines import counted

pytestmark = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())


@steady
@given(group=groups(racked=True))
def test_every_member_has_an_entry_and_nobody_else(assignor: Assignor, group: Group) -> None:
    plan = assignor.plan(group.members, group.partitions, group.racks)
    assert plan.keys() == {member.member_id for member in group.members}


@steady
@given(group=groups(racked=True))
@pytest.mark.scenario("0120 asymmetric_subscription")
def test_nobody_gets_what_does_not_exist_or_what_it_does_not_subscribe_to(assignor: Assignor, group: Group) -> None:
    for member_id, partitions in assignor.plan(group.members, group.partitions, group.racks).items():
        topics = group.member(member_id).subscription.topics
        assert all(p.topic in topics and 0 <= p.partition < group.partitions[p.topic] for p in partitions)


@steady
@given(group=groups(racked=True))
@pytest.mark.scenario("test_valid_assignment")
def test_no_partition_is_given_twice(assignor: Assignor, group: Group) -> None:
    given_out = [
        p for partitions in assignor.plan(group.members, group.partitions, group.racks).values() for p in partitions
    ]
    assert len(given_out) == len(set(given_out))


@steady
@given(group=groups(claiming=False, racked=True))
@pytest.mark.scenario("test_valid_assignment")
def test_a_group_that_starts_gets_every_partition(assignor: Assignor, group: Group) -> None:
    plan = assignor.plan(group.members, group.partitions, group.racks)
    assert {p for partitions in plan.values() for p in partitions} == group.wanted


@steady
@given(group=groups(racked=True))
def test_only_what_must_be_revoked_first_is_left_out(assignor: Assignor, group: Group) -> None:
    plan = assignor.plan(group.members, group.partitions, group.racks)
    claimed = {p for member in group.members for p in member.subscription.owned} if assignor.cooperative else set()
    assert group.wanted - {p for partitions in plan.values() for p in partitions} <= claimed


@steady
@given(group=groups(racked=True), data=st.data())
def test_the_same_group_gets_the_same_plan_in_whatever_order_it_is_told(
    assignor: Assignor, group: Group, data: st.DataObject
) -> None:
    def shuffled(items: Any) -> Any:
        return tuple(data.draw(st.permutations(list(items))))

    members = [
        replace(m, subscription=replace(m.subscription, topics=shuffled(m.subscription.topics)))
        for m in shuffled(group.members)
    ]
    partitions = dict(shuffled(group.partitions.items()))
    assert assignor.plan(members, partitions, group.racks) == assignor.plan(
        group.members, group.partitions, group.racks
    )


@steady
@given(group=groups(racked=True))
def test_every_entry_is_sorted(assignor: Assignor, group: Group) -> None:
    assert all(
        list(mine) == sorted(mine) for mine in assignor.plan(group.members, group.partitions, group.racks).values()
    )


@steady
@given(user_data=st.none() | st.binary(max_size=40), generation=st.integers(-1, 2))
def test_user_data_of_a_strangers_making_does_no_harm(
    assignor: Assignor, user_data: bytes | None, generation: int
) -> None:
    stranger = Member("stranger", Subscription(("orders",), (), generation, None, user_data))
    plan = assignor.plan([stranger, member("ours")], {"orders": 4})
    assert sorted(p for partitions in plan.values() for p in partitions) == of("orders", 0, 1, 2, 3)


@steady
@given(group=groups(claiming=False, min_members=1, racked=True))
def test_a_group_in_which_nothing_changes_keeps_its_plan(assignor: Assignor, group: Group) -> None:
    first = assignor.plan(group.members, group.partitions, group.racks)
    assert assignor.plan(after(group, first, 1).members, group.partitions, group.racks) == first


@steady
@given(generation=st.integers(-1, 2**31 - 1), numbers=st.sets(st.integers(0, 9)))
def test_what_a_member_tells_of_itself_is_understood_by_a_leader_of_ours(
    assignor: Assignor, generation: int, numbers: set[int]
) -> None:
    owned = of("orders", *numbers)
    subscription = Subscription(("orders",), tuple(owned), generation, None, assignor.user_data(generation, owned))
    plan = assignor.plan([Member("alone", subscription)], {"orders": 10})
    assert plan == {"alone": of("orders", *range(10))}


def test_without_members_there_is_nothing_to_plan(assignor: Assignor) -> None:
    assert assignor.plan([], {"orders": 3}) == {}


def test_unknown_and_empty_topics_are_passed_over(assignor: Assignor) -> None:
    plan = assignor.plan([member("m", ("orders", "unknown", "empty"))], {"orders": 1, "empty": 0})
    assert plan == {"m": of("orders", 0)}


@pytest.mark.parametrize("each", [50, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("racked", [False, True], ids=["", "racks"])
@pytest.mark.parametrize("subscribed", [100, 50], ids=["equal", "unequal"])
def test_200_members_with_ten_times_the_partitions_are_planned_at_about_ten_times_the_cost(
    assignor: Assignor, subscribed: int, racked: bool, each: int
) -> None:
    few, many = (planning(assignor, subscribed, number, racked=racked) for number in (each // 10, each))
    # Counted, not timed: the same on every machine. Squared, it would be a hundred times as much.
    assert many < 20 * few


def planning(assignor: Assignor, subscribed: int, each: int, *, racked: bool) -> int:
    """Lines that the plan runs through when 50 members join 150, with 100 topics of `each` partitions."""
    names = [f"t{number:03}" for number in range(100)]
    members = [
        member(
            f"m{rank:03}",
            [names[(rank * 7 + step) % 100] for step in range(subscribed)],
            rack=RACKS[rank % 3] if racked else None,
        )
        for rank in range(200)
    ]
    partitions = dict.fromkeys(names, each)
    pairs = [frozenset(RACKS) - {rack} for rack in RACKS]
    racks = {TopicPartition(name, number): pairs[number % 3] for name in names for number in range(each)}
    group = Group(tuple(members), partitions, racks if racked else {})
    running = after(group, assignor.plan(members[:150], partitions, group.racks), 1)
    lines, plan = counted(lambda: assignor.plan(running.members, partitions, group.racks))
    assert set().union(*plan.values()) <= {TopicPartition(name, number) for name in names for number in range(each)}
    return lines
