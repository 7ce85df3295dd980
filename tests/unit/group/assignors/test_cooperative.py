"""The cooperative plan over several rounds (CooperativeStickyAssignorTest, KIP-429)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors.sticky import CooperativeStickyAssignor, pack_generation
from kunicorn.group.protocol import NO_GENERATION, Member, Plan, Subscription
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import (
    Group,
    after,
    groups,
    member,
    moved,
    of,
    partition_counts,
    steady,
    subscriptions,
)

plan = CooperativeStickyAssignor().plan


def owners(group: Group) -> dict[TopicPartition, list[str]]:
    """Who says to own each partition."""
    found: dict[TopicPartition, list[str]] = {}
    for m in group.members:
        for partition in set(m.subscription.owned):
            found.setdefault(partition, []).append(m.member_id)
    return found


def assigned(made: Plan) -> set[TopicPartition]:
    return {partition for partitions in made.values() for partition in partitions}


def test_a_group_that_starts_needs_one_round() -> None:
    group = Group((member("a"), member("b")), {"orders": 4})
    assert assigned(plan(group.members, group.partitions)) == group.wanted


def test_what_a_newcomer_is_to_get_is_first_in_nobodys_entry() -> None:
    group = Group((member("a", owned=of("orders", 0, 1, 2, 3), generation=1), member("b")), {"orders": 4})
    first = plan(group.members, group.partitions)
    assert first == {"a": of("orders", 0, 1), "b": []}
    second = plan(after(group, first, 2).members, group.partitions)
    assert second == {"a": of("orders", 0, 1), "b": of("orders", 2, 3)}


def test_what_a_member_that_left_had_is_given_away_at_once() -> None:
    members = [member("a", owned=of("orders", 0, 1), generation=1), member("c")]
    assert plan(members, {"orders": 4}) == {"a": of("orders", 0, 1), "c": of("orders", 2, 3)}


def test_a_partition_claimed_twice_in_a_generation_goes_to_nobody_until_both_have_let_go() -> None:
    claimed = of("orders", 0)
    group = Group((member("a", owned=claimed, generation=1), member("b", owned=claimed, generation=1)), {"orders": 2})
    first = plan(group.members, group.partitions)
    assert assigned(first) == set(of("orders", 1))
    assert assigned(plan(after(group, first, 2).members, group.partitions)) == group.wanted


def test_the_newest_owner_keeps_running_although_a_member_that_missed_a_generation_still_claims() -> None:
    claimed = of("orders", 0)
    members = [member("late", owned=claimed, generation=1), member("here", owned=claimed, generation=2)]
    assert plan(members, {"orders": 1}) == {"here": claimed, "late": []}


def test_a_partition_that_its_owner_has_unsubscribed_from_is_revoked_before_it_is_given_away() -> None:
    group = Group((member("a", (), of("orders", 0), 1), member("b")), {"orders": 1})
    first = plan(group.members, group.partitions)
    assert first == {"a": [], "b": []}
    assert plan(after(group, first, 2).members, group.partitions) == {"a": [], "b": of("orders", 0)}


def test_an_old_clients_generation_is_read_from_its_user_data() -> None:
    def old(name: str, generation: int) -> Member:
        owned = tuple(of("orders", 0))
        return Member(name, Subscription(("orders",), owned, NO_GENERATION, None, pack_generation(generation)))

    assert plan([old("a", 4), old("b", 5)], {"orders": 1}) == {"a": [], "b": of("orders", 0)}


@steady
@given(group=groups())
@pytest.mark.scenario("CooperativeStickyAssignorTest")
def test_nobody_is_given_what_another_member_claims(group: Group) -> None:
    claimants = owners(group)
    for member_id, partitions in plan(group.members, group.partitions).items():
        added = set(partitions) - set(group.member(member_id).subscription.owned)
        assert not added & claimants.keys()


@steady
@given(group=groups())
def test_whatever_members_claim_two_rounds_give_out_everything(group: Group) -> None:
    first = plan(group.members, group.partitions)
    settled = after(group, first, 4)
    second = plan(settled.members, group.partitions)
    assert moved(settled, second) == 0
    assert assigned(second) == group.wanted


@steady
@given(group=groups(claiming=False), data=st.data())
@pytest.mark.scenario("CooperativeStickyAssignorTest")
def test_through_all_changes_a_group_converges_in_two_rounds_and_no_partition_has_two_owners(
    group: Group, data: st.DataObject
) -> None:
    group = after(group, {}, 0)
    for generation in range(1, 9, 2):
        first = _round(group, generation)
        second = _round(first, generation + 1)
        assert not owners(first).keys() - owners(second).keys(), "the second round revokes something again"
        assert owners(second).keys() == group.wanted
        group = _changed(second, data)


def _round(group: Group, generation: int) -> Group:
    """The group after one plan. Members act on it at different times: nobody may start what another has yet to stop."""
    settled = after(group, plan(group.members, group.partitions), generation)
    before = owners(group)
    for partition, (owner, *others) in owners(settled).items():
        assert not others
        assert before.get(partition, [owner]) == [owner]
    return settled


def _changed(group: Group, data: st.DataObject) -> Group:
    """Members leave, join, and change what they subscribe to; topics grow, shrink and vanish."""
    stay = [m for m in group.members if data.draw(st.integers(0, 3))]
    for place, m in enumerate(stay):
        if not data.draw(st.integers(0, 3)):
            stay[place] = replace(m, subscription=replace(m.subscription, topics=data.draw(subscriptions)))
    newcomers = data.draw(st.sets(st.sampled_from([f"n{n}" for n in range(4)]), max_size=2))
    stay += [member(name, data.draw(subscriptions)) for name in newcomers - {m.member_id for m in stay}]
    partitions = data.draw(partition_counts) if not data.draw(st.integers(0, 3)) else group.partitions
    return Group(tuple(stay), partitions)
