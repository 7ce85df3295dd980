"""Racks: near partitions first, where that makes a difference (KIP-881)."""

from __future__ import annotations

import pytest
from hypothesis import given

from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.assignors.racks import Racks
from kunicorn.group.protocol import Member, Plan
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import Group, after, groups, loads, member, of, steady

A, B, C = (frozenset({rack}) for rack in "abc")
ORDERS = of("orders", 0, 1, 2, 3)

racked_assignors = pytest.mark.parametrize("name", ["range", "sticky", "cooperative-sticky"])


def at(member_id: str, rack: str | None, *topics: str) -> Member:
    """A member in that rack."""
    return member(member_id, topics or ("orders",), rack=rack)


def plan(name: str, members: list[Member], racks: dict[TopicPartition, frozenset[str]], **counts: int) -> Plan:
    return ASSIGNORS[name].plan(members, counts or {"orders": 4}, racks)


@racked_assignors
def test_partitions_go_to_the_members_that_have_a_replica_at_hand(name: str) -> None:
    racks = dict(zip(ORDERS, (B, A, B, A), strict=True))
    assert plan(name, [at("m0", "a"), at("m1", "b")], racks) == {"m0": of("orders", 1, 3), "m1": of("orders", 0, 2)}


@racked_assignors
def test_balance_goes_before_nearness(name: str) -> None:
    racks = dict.fromkeys(ORDERS, A) | {ORDERS[0]: B}
    assert loads(plan(name, [at("m0", "a"), at("m1", "c")], racks)) == [2, 2]


@racked_assignors
@pytest.mark.parametrize(
    ("of_member", "of_partitions"),
    [(None, (A, B, A, B)), ("", (A, B, A, B)), ("c", (A, B, A, B)), ("a", (A | B,) * 4), ("a", (frozenset(),) * 4)],
    ids=["no member names one", "an empty one", "of no replica", "all partitions in all racks", "of unknown brokers"],
)
def test_racks_that_decide_nothing_change_nothing(
    name: str, of_member: str | None, of_partitions: tuple[frozenset[str], ...]
) -> None:
    members = [at("m0", of_member), at("m1", None)]
    assert plan(name, members, dict(zip(ORDERS, of_partitions, strict=True))) == plan(name, members, {})


def test_co_partitioned_topics_stay_together_where_racks_allow_it() -> None:
    """Partition i of both goes to the first member near both, and only what is near nobody breaks the rule."""
    racks = dict(zip([*of("orders", 0, 1), *of("refunds", 0, 1)], (B, A | B, A | B, A), strict=True))
    members = [at("m0", "a", "orders", "refunds"), at("m1", "b", "orders", "refunds")]
    assert plan("range", members, racks, orders=2, refunds=2) == {
        "m0": [*of("orders", 1), *of("refunds", 1)],
        "m1": [*of("orders", 0), *of("refunds", 0)],
    }


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_what_is_far_from_its_owner_moves_to_a_member_near_it_and_what_is_near_stays(name: str) -> None:
    racks = dict(zip(ORDERS, (A, B, A, B), strict=True))
    past = [of("orders", 0, 1), of("orders", 2, 3)]
    members = [member(f"m{n}", owned=past[n], generation=1, rack=rack) for n, rack in enumerate("ab")]
    group = Group(tuple(members), {"orders": 4}, racks)
    for generation in (2, 3):
        group = after(group, ASSIGNORS[name].plan(group.members, group.partitions, racks), generation)
    assert [list(m.subscription.owned) for m in group.members] == [of("orders", 0, 2), of("orders", 1, 3)]


def test_a_partition_that_is_near_nobody_stays_where_it_is() -> None:
    racks = dict(zip(ORDERS, (C, C, A, B), strict=True))
    members = [
        member("m0", owned=of("orders", 1, 2), generation=1, rack="a"),
        member("m1", owned=of("orders", 0, 3), generation=1, rack="b"),
    ]
    assert plan("sticky", members, racks) == {"m0": of("orders", 1, 2), "m1": of("orders", 0, 3)}


@steady
@given(group=groups(alike=True, min_members=1, racked=True))
def test_no_two_members_with_equal_subscriptions_could_swap_something_far_for_something_near(group: Group) -> None:
    told = ASSIGNORS["sticky"].plan(group.members, group.partitions, group.racks)
    assert loads(told) == loads(ASSIGNORS["sticky"].plan(group.members, group.partitions)), "balance goes first"
    rack_of = {m.member_id: m.subscription.rack for m in group.members}
    if group.wanted and Racks.that_matter(group.members, range(len(group.members)), group.wanted, group.racks):
        far = [(m, p) for m, mine in told.items() for p in mine if rack_of[m] and rack_of[m] not in group.racks[p]]
        assert not [p for _, p in far for other, _ in far if rack_of[other] in group.racks[p]]


@steady
@given(group=groups(racked=True))
def test_cooperative_plans_settle_within_three_rounds_with_racks_too(group: Group) -> None:
    assignor = ASSIGNORS["cooperative-sticky"]
    for generation in (4, 5, 6):
        group = after(group, assignor.plan(group.members, group.partitions, group.racks), generation)
    settled = assignor.plan(group.members, group.partitions, group.racks)
    assert {p for mine in settled.values() for p in mine} == group.wanted
    assert after(group, settled, 6) == group


def test_only_racks_that_differ_are_looked_at() -> None:
    members = [at("m0", "a"), at("m1", "b")]
    assert Racks.that_matter(members, (0, 1), ORDERS, dict.fromkeys(ORDERS, A | B)) is None
    assert Racks.that_matter(members, (0, 1), ORDERS, {ORDERS[0]: A}) is not None, "the others are in none"
