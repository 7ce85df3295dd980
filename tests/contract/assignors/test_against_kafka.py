"""Our plans beside those of Kafka 4.3.1's own assignors for the same groups (recorded by `record.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.assignors.sticky import unpack_assignment
from kunicorn.group.protocol import Plan
from kunicorn.positions import TopicPartition
from tests.contract.assignors.groups import Group, member, moved, near
from tests.contract.assignors.record import RECORDING, RECORDING_WITH_RACKS
from tests.fakes.java_assignor import cooperative_sticky_plan


@dataclass(frozen=True)
class Recorded:
    """A group, Kafka's plan for it by assignor, and the user data Kafka's sticky members would send."""

    group: Group
    plans: Mapping[str, Plan]
    user_data: Mapping[str, bytes]


def _partitions(pairs: list[Any]) -> list[TopicPartition]:
    return sorted(TopicPartition(topic, number) for topic, number in pairs)


def _racks(told: Mapping[str, list[list[str | None]]]) -> dict[TopicPartition, frozenset[str]]:
    return {
        TopicPartition(topic, number): frozenset(rack for rack in racks if rack is not None)
        for topic, partitions in told.items()
        for number, racks in enumerate(partitions)
    }


def _recorded(line: str) -> Recorded:
    told = json.loads(line)
    members = [
        member(m["member_id"], m["topics"], _partitions(m["owned"]), m["generation"], m["instance_id"], m.get("rack"))
        for m in told["members"]
    ]
    return Recorded(
        Group(tuple(members), told["partitions"], _racks(told.get("replica_racks", {}))),
        {
            name: {member_id: _partitions(pairs) for member_id, pairs in plan.items()}
            for name, plan in told["plans"].items()
        },
        {m["member_id"]: bytes.fromhex(m["kafkas_user_data"]) for m in told["members"]},
    )


RECORDED = [_recorded(line) for line in RECORDING.read_text().splitlines()]
RACKED = [_recorded(line) for line in RECORDING_WITH_RACKS.read_text().splitlines()]


def _plan(name: str, group: Group) -> Plan:
    return ASSIGNORS[name].plan(group.members, group.partitions, group.racks)


def _unevenness(plan: Plan) -> int:
    return sum(len(partitions) ** 2 for partitions in plan.values())


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.scenario("RangeAssignorTest", "RoundRobinAssignorTest")
def test_range_and_roundrobin_plan_exactly_what_kafka_plans(name: str) -> None:
    for case in RECORDED:
        assert ASSIGNORS[name].plan(case.group.members, case.group.partitions) == case.plans[name]


def test_the_model_of_kafkas_cooperative_assignor_plans_exactly_what_kafka_plans() -> None:
    alike = [case for case in RECORDED if len({m.subscription.topics for m in case.group.members}) == 1]
    assert len(alike) > 20
    for case in alike:
        assert cooperative_sticky_plan(case.group.members, case.group.partitions) == case.plans["cooperative-sticky"]


@pytest.mark.scenario("AbstractStickyAssignorTest")
def test_sticky_is_never_less_even_than_kafka() -> None:
    for case in RECORDED:
        plan = ASSIGNORS["sticky"].plan(case.group.members, case.group.partitions)
        assert _unevenness(plan) <= _unevenness(case.plans["sticky"])


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@pytest.mark.scenario("AbstractStickyAssignorTest", "CooperativeStickyAssignorTest")
def test_with_equal_subscriptions_the_sticky_assignors_move_exactly_as_much_as_kafka(name: str) -> None:
    alike = [case for case in RECORDED if len({m.subscription.topics for m in case.group.members}) == 1]
    assert len(alike) > 20
    for case in alike:
        plan = ASSIGNORS[name].plan(case.group.members, case.group.partitions)
        assert moved(case.group, plan) == moved(case.group, case.plans[name])


def test_with_unequal_subscriptions_sticky_moves_no_more_than_kafka_in_all() -> None:
    ours = [ASSIGNORS["sticky"].plan(case.group.members, case.group.partitions) for case in RECORDED]
    by_us = sum(moved(case.group, plan) for case, plan in zip(RECORDED, ours, strict=True))
    by_kafka = sum(moved(case.group, case.plans["sticky"]) for case in RECORDED)
    assert by_us <= by_kafka


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.scenario("RangeAssignorTest", "RoundRobinAssignorTest")
def test_with_racks_range_and_roundrobin_plan_exactly_what_kafka_plans(name: str) -> None:
    """KIP-881; co-partitioned topics among them. Racks decide something in most of these groups."""
    changed = sum(_plan(name, replace(case.group, racks={})) != case.plans[name] for case in RACKED)
    assert changed > 20 or name == "roundrobin"
    for case in RACKED:
        assert _plan(name, case.group) == case.plans[name]


def test_with_racks_sticky_places_as_near_as_kafka_within_two_percent_as_evenly_and_moves_less() -> None:
    """Not exactly as near: who gets one partition more is settled before racks are looked at, so that it stays so."""
    ours = [_plan("sticky", case.group) for case in RACKED]
    for case, plan in zip(RACKED, ours, strict=True):
        assert _unevenness(plan) <= _unevenness(case.plans["sticky"])
    by_kafka = sum(near(case.group, case.plans["sticky"]) for case in RACKED)
    regardless = sum(near(case.group, _plan("sticky", replace(case.group, racks={}))) for case in RACKED)
    assert sum(near(case.group, plan) for case, plan in zip(RACKED, ours, strict=True)) >= 0.98 * by_kafka
    assert by_kafka > 1.3 * regardless, "racks decide little in these groups"
    moves = sum(moved(case.group, plan) for case, plan in zip(RACKED, ours, strict=True))
    assert moves <= sum(moved(case.group, case.plans["sticky"]) for case in RACKED)


def test_the_user_data_of_kafkas_sticky_members_is_understood() -> None:
    for case in RECORDED:
        for m in case.group.members:
            partitions, generation = unpack_assignment(case.user_data[m.member_id])
            assert (sorted(partitions), generation) == (list(m.subscription.owned), m.subscription.generation)
