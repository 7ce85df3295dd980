"""Kafka's documented cases of the round-robin assignor (RoundRobinAssignorTest)."""

from __future__ import annotations

import pytest
from hypothesis import given

from kunicorn.group.assignors.range import RoundRobinAssignor
from tests.contract.assignors.groups import Group, groups, loads, member, of, steady

plan = RoundRobinAssignor().plan


@pytest.mark.scenario("RoundRobinAssignorTest")
def test_two_consumers_with_two_topics_of_three_partitions_take_turns_across_topics() -> None:
    both = ("t0", "t1")
    assert plan([member("c0", both), member("c1", both)], {"t0": 3, "t1": 3}) == {
        "c0": of("t0", 0, 2) + of("t1", 1),
        "c1": of("t0", 1) + of("t1", 0, 2),
    }


def test_whoever_does_not_subscribe_is_passed_over() -> None:
    members = [member("c0", ("t0",)), member("c1", ("t0", "t1")), member("c2", ("t0", "t1", "t2"))]
    assert plan(members, {"t0": 1, "t1": 2, "t2": 3}) == {
        "c0": of("t0", 0),
        "c1": of("t1", 0),
        "c2": of("t1", 1) + of("t2", 0, 1, 2),
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = [member("a", ("t",)), member("b", ("t",), instance_id="pod-2"), member("c", ("t",), instance_id="pod-1")]
    assert plan(members, {"t": 3}) == {"c": of("t", 0), "b": of("t", 1), "a": of("t", 2)}


@steady
@given(group=groups(alike=True, min_members=1))
def test_with_equal_subscriptions_loads_differ_by_at_most_one(group: Group) -> None:
    sizes = loads(plan(group.members, group.partitions))
    assert sizes[0] - sizes[-1] <= 1
