"""Kafka's documented cases of the range assignor (RangeAssignorTest)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.group.assignors.range import RangeAssignor
from tests.contract.assignors.groups import Group, groups, member, of, steady

plan = RangeAssignor().plan


def test_one_consumer_without_topics_gets_nothing() -> None:
    assert plan([member("c", ())], {}) == {"c": []}


def test_one_consumer_gets_all_partitions_of_its_topics_and_of_no_others() -> None:
    assert plan([member("c", ("t1",))], {"t1": 3, "other": 3}) == {"c": of("t1", 0, 1, 2)}


def test_of_two_consumers_and_one_partition_the_first_gets_it() -> None:
    assert plan([member("c2", ("t",)), member("c1", ("t",))], {"t": 1}) == {"c1": of("t", 0), "c2": []}


def test_two_consumers_with_two_topics_of_three_partitions() -> None:
    both = ("t0", "t1")
    assert plan([member("c0", both), member("c1", both)], {"t0": 3, "t1": 3}) == {
        "c0": of("t0", 0, 1) + of("t1", 0, 1),
        "c1": of("t0", 2) + of("t1", 2),
    }


@pytest.mark.scenario("RangeAssignorTest")
def test_consumers_with_mixed_topics_share_each_topic_among_its_subscribers() -> None:
    members = [member("c1", ("t1",)), member("c2", ("t1", "t2")), member("c3", ("t1",))]
    assert plan(members, {"t1": 3, "t2": 2}) == {
        "c1": of("t1", 0),
        "c2": of("t1", 1) + of("t2", 0, 1),
        "c3": of("t1", 2),
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = [
        member("a", ("t",)),
        member("b", ("t",), instance_id="pod-2"),
        member("c", ("t",), instance_id="pod-1"),
    ]
    assert plan(members, {"t": 4}) == {"c": of("t", 0, 1), "b": of("t", 2), "a": of("t", 3)}


def test_a_static_member_that_returns_under_a_new_member_id_gets_the_same_partitions() -> None:
    def named(suffix: str) -> list[list[object]]:
        pods = [member(f"{suffix}{n}" if n == 2 else f"m{n}", ("t",), instance_id=f"pod-{n}") for n in range(4)]
        return [list(plan(pods, {"t": 9})[pod.member_id]) for pod in pods]

    assert named("a") == named("z")


@steady
@given(group=groups(), count=st.integers(1, 9))
def test_topics_with_the_same_subscribers_and_size_are_co_partitioned(group: Group, count: int) -> None:
    sizes = dict.fromkeys(("orders", "payments"), count)
    both = [m for m in group.members if {"orders", "payments"} <= set(m.subscription.topics)]
    for mine in plan(both, sizes).values():
        assert [n for topic, n in mine if topic == "orders"] == [n for topic, n in mine if topic == "payments"]
