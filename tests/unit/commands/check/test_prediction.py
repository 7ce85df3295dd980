"""What a member would be given, beside those there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kunicorn.commands.check.cluster import predicted
from kunicorn.errors import ExitCode
from kunicorn.group.protocol import Subscription
from kunicorn.kafka.admin import Described, DescribedMember
from kunicorn.kafka.consumer_protocol import encode_subscription
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from tests.fakes.complete_settings import settings_of

BOTH = {"partition_assignment_strategy": ["cooperative-sticky", "range"]}


def settings(**group: Any) -> Settings:
    return settings_of(group={"id": "shop", **group}, workers={"count": 4})


def group(strategy: str, *owned: int, topics: tuple[str, ...] = ("orders",), instance: str | None = None) -> Described:
    """Members that own so many partitions each."""
    members, first = [], 0
    for number, count in enumerate(owned):
        tps = tuple(TopicPartition("orders", first + n) for n in range(count))
        first += count
        data = encode_subscription(strategy, Subscription(topics, tps, 3)) if strategy else b""
        members.append(DescribedMember(f"m-{number}", instance, "c", "/10.0.0.7", tps, data))
    return Described(0, "", "Stable", members, strategy)


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (Described(ErrorCode.GROUP_ID_NOT_FOUND), "none now; this member would get 6 of 6 partitions, for 4 of its 4"),
        (group("cooperative-sticky", 3, 3), "2 now; this member would get 2 of 6 partitions, for 2 of its 4 workers"),
        (group("range", 6), "1 now; this member would get 3 of 6 partitions"),
        (group("", 2, 2, 2), "3 now; this member would get 2 of 6 partitions"),
        (group("cooperative-sticky", 0, topics=("refunds",)), "1 now; this member would get 6 of 6 partitions"),
    ],
    ids=["no group", "cooperative", "range", "consumer protocol", "another topic"],
)
def test_the_share_is_what_the_groups_strategy_would_plan(described: Described, said: str) -> None:
    finding = predicted(settings(**BOTH), described, {"orders": 6})
    assert finding.failure is None
    assert finding.text.startswith(said)


def test_a_member_beyond_the_partitions_is_warned_that_it_would_idle() -> None:
    finding = predicted(settings(), group("cooperative-sticky", 1, 1), {"orders": 2})
    assert (finding.result, finding.text) == (
        "warning",
        "2 already share 2 partitions: this member would idle",
    )


def test_a_static_member_that_is_there_is_replaced() -> None:
    described = group("cooperative-sticky", 6, instance="shop-0")
    finding = predicted(settings(group_instance_id="shop-0"), described, {"orders": 6})
    assert finding.text == "1; one of them is shop-0: this member would take its place and partitions"
    by_brokers = settings(group_instance_id="shop-0", group_protocol="consumer")
    assert predicted(by_brokers, group("", 6, instance="shop-0"), {"orders": 6}).text == (
        "1; one of them is shop-0: while it runs, the brokers do not let this member in; behind it this one would take "
        "its place and partitions"
    )


def test_a_classic_group_is_not_converted_unless_that_is_wanted() -> None:
    classic = replace(group("range", 3), classic=True)
    finding = predicted(settings(group_protocol="consumer"), classic, {"orders": 6})
    assert finding.failure is ExitCode.CONFIGURATION
    assert finding.text.startswith("group 'shop' is a classic group (Stable, 1 members); joining it with")
    wanted = settings(group_protocol="consumer", allow_protocol_upgrade=True)
    assert predicted(wanted, classic, {"orders": 6}).failure is None
    assert predicted(settings(**BOTH), classic, {"orders": 6}).failure is None


@pytest.mark.parametrize("strategy", ["range", "somebody's own"])
def test_a_strategy_that_this_member_does_not_know_is_warned_of_as_the_others_may_know_ours(strategy: str) -> None:
    finding = predicted(settings(), group(strategy, 6), {"orders": 6})
    assert finding.result == "warning"
    assert f"its 1 members have agreed upon {strategy!r}" in finding.text
    assert "unless all of them know another one of these, the group refuses this member" in finding.text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("upgrade", [False, True])
def test_a_group_of_other_members_than_consumers_is_named_before_a_join_is_refused(
    protocol: str, upgrade: bool
) -> None:
    connect = replace(group("", 0, 0), classic=True, other_type="connect")
    finding = predicted(settings(group_protocol=protocol, allow_protocol_upgrade=upgrade), connect, {"orders": 6})
    assert finding.failure is ExitCode.CONFIGURATION
    assert finding.text.startswith("group 'shop' is taken: its 2 members are of type 'connect', and brokers let no")


@pytest.mark.parametrize("kind", ["share", "streams"])
def test_a_group_of_another_kind_is_named_before_a_join_is_refused(kind: str) -> None:
    finding = predicted(settings(), Described(69, state="Empty", other_type=kind), {"orders": 6})
    assert finding.failure is ExitCode.CONFIGURATION
    assert finding.text.startswith(f"group 'shop' is taken: it is a {kind} group")
    assert finding.text.endswith("use another group.id")


def test_a_group_that_others_have_left_takes_consumers() -> None:
    empty = Described(0, "", "Empty", classic=True, other_type="connect")
    assert predicted(settings(), empty, {"orders": 6}).text.startswith("none now; this member would get 6 of 6")
