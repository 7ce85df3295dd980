"""Whose claim to a partition is believed (CooperativeStickyAssignorTest's conflicting previous assignments)."""

from __future__ import annotations

from kunicorn.group.assignors.eligible import Claim, Ownership, Roster
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import member, of

P0 = TopicPartition("orders", 0)


def settle(*claims: Claim, topics: tuple[str, ...] = ("orders",)) -> Ownership:
    members = [member(f"m{rank}", topics) for rank in range(len(claims))]
    return Ownership.settle(claims, Roster.of(members, {"orders": 2}))


def test_a_single_claim_is_believed_however_old() -> None:
    assert settle(Claim([P0], -1), Claim([], 9)).owner == {P0: 0}


def test_the_newer_generation_wins_and_the_older_owner_is_remembered() -> None:
    ownership = settle(Claim([P0], 4), Claim([P0], 5), Claim([P0], 3))
    assert ownership == Ownership({P0: 1}, {P0: 0})


def test_claimed_twice_in_the_same_generation_a_partition_is_nobodys() -> None:
    assert settle(Claim([P0], 4), Claim([P0], 4)) == Ownership()


def test_an_older_claim_does_not_win_because_two_newer_ones_cancel_out() -> None:
    assert settle(Claim([P0], 4), Claim([P0], 5), Claim([P0], 5)) == Ownership()


def test_a_member_that_names_a_partition_twice_does_not_contradict_itself() -> None:
    assert settle(Claim([P0, P0], 4)).owner == {P0: 0}


def test_partitions_that_do_not_exist_are_not_claimed() -> None:
    assert settle(Claim([*of("orders", -1, 2), *of("gone", 0)], 4)) == Ownership()


def test_partitions_of_a_topic_the_member_has_left_are_not_claimed() -> None:
    assert settle(Claim([P0], 4), topics=("payments",)) == Ownership()
