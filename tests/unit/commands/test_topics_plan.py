"""What `kunicorn topics` would do, before it is done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kunicorn.commands.topics.plan import Change, Found, Plan, Role, Topic, found_in, needs, plan
from kunicorn.errors import ConfigError
from kunicorn.kafka.metadata import Broker, Metadata, PartitionInfo, TopicInfo
from kunicorn.settings import Settings
from tests.unit.settings.files import LEAST, loaded

DAY = 86_400_000
USUAL = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY),
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
ORDERS = Topic(12, 3, USUAL)
LETTERS = 'on_failure = "dead_letter"\n'


def made(tmp_path: Path, more: str = "") -> Settings:
    return loaded(tmp_path, LEAST + more)


def planned(settings: Settings, topics: Mapping[str, Topic], brokers: int = 3) -> Plan:
    found = Found(brokers, topics, ["orders"])
    return plan(found, needs(settings, found))


def then(change: Change) -> dict[str, str]:
    return {name: value for name, (_, value) in change.configs.items()}


def test_a_dead_letter_topic_outlives_its_letters_and_takes_the_largest_with_their_headers(tmp_path: Path) -> None:
    (change,) = planned(made(tmp_path, LETTERS), {"orders": ORDERS}).changes
    assert (change.name, change.role, change.create) == ("orders.dead-letters", Role.LETTERS, True)
    assert (change.partitions, change.replicas) == (12, 3)
    assert then(change) == {
        "cleanup.policy": "delete",
        "min.insync.replicas": "2",
        "max.message.bytes": str(1_048_588 + 65_536),
        "retention.ms": str((14 + 7) * DAY),
    }


@pytest.mark.parametrize(
    "configs", [{"retention.ms": "-1"}, {"cleanup.policy": "compact"}, {"retention.ms": str(2**63 - 1)}]
)
def test_letters_of_records_that_are_kept_for_ever_are_kept_for_ever(
    tmp_path: Path, configs: Mapping[str, str]
) -> None:
    (change,) = planned(made(tmp_path, LETTERS), {"orders": Topic(12, 3, {**USUAL, **configs})}).changes
    assert then(change)["retention.ms"] == "-1"


def test_no_letters_are_larger_than_brokers_let_any_record_be(tmp_path: Path) -> None:
    """They refuse a setting beyond, and the topic could never be created."""
    (change,) = planned(
        made(tmp_path, LETTERS), {"orders": Topic(12, 3, {"max.message.bytes": str(2**31 - 1)})}
    ).changes
    assert then(change)["max.message.bytes"] == str(2**31 - 1)


def test_a_retry_topic_outlives_its_delay_and_the_longest_outage(tmp_path: Path) -> None:
    retries = "retry_topic_delays_ms = [3600000]\n"
    changes = planned(made(tmp_path, retries), {"orders": ORDERS}).changes
    (change,) = [each for each in changes if each.role is Role.RETRIES]
    assert then(change)["retention.ms"] == str(14 * DAY + 3_600_000)


def test_an_output_topic_is_durable_and_otherwise_its_owners_to_set(tmp_path: Path) -> None:
    output = '[producing]\ndelivery = "at_least_once"\ntopic = "totals"\n'
    (change,) = planned(made(tmp_path, output), {"orders": ORDERS}).changes
    assert (change.name, then(change)) == ("totals", {"min.insync.replicas": "2"})


def test_a_topic_that_is_assigned_by_number_is_created_with_that_partition(tmp_path: Path) -> None:
    """`apply` adds none later, and the service refuses to start without."""
    assigned = LEAST.replace('[group]\nid = "orders"\ntopics = ["orders"]', '[assign]\npartitions = ["orders:0-11"]')
    settings = loaded(tmp_path, assigned + "[topics]\npartitions = 8\n")
    (change,) = planned(settings, {}).changes
    assert (change.name, change.partitions) == ("orders", 12)


def test_a_topic_that_takes_letters_and_outputs_is_created_once_and_as_letters_need_it(tmp_path: Path) -> None:
    """Brokers refuse the second creation, and `apply` would fail for what it has just made."""
    both = LETTERS + '[producing]\ndelivery = "at_least_once"\ntopic = "orders.dead-letters"\n'
    found = planned(made(tmp_path, both), {"orders": ORDERS})
    assert [(change.name, change.role) for change in found.changes] == [("orders.dead-letters", Role.LETTERS)]


def test_each_topic_with_an_encoding_of_its_own_is_an_output_topic_too(tmp_path: Path) -> None:
    topics = '[[producing.topics]]\ntopic = "{}"\nvalue = "json"\n'
    output = '[producing]\ndelivery = "at_least_once"\ntopic = "totals"\n'
    settings = made(tmp_path, output + topics.format("invoices") + topics.format("totals"))
    changes = planned(settings, {"orders": ORDERS}).changes
    assert [(change.name, str(change.role)) for change in changes] == [("invoices", "output"), ("totals", "output")]
    assert settings.other_topics == {"invoices": "producing.topics", "totals": "producing.topic"}


def test_the_settings_say_partitions_replicas_and_retention(tmp_path: Path) -> None:
    own = "[topics]\npartitions = 4\nreplication_factor = 2\nmin_insync_replicas = 2\nretention_ms = 86400000\n"
    (change,) = planned(made(tmp_path, LETTERS + own), {"orders": ORDERS}).changes
    assert (change.partitions, change.replicas) == (4, 2)
    assert then(change)["min.insync.replicas"] == "2"
    assert then(change)["retention.ms"] == str(8 * DAY)


def test_what_is_too_low_is_raised_and_nothing_is_lowered(tmp_path: Path) -> None:
    small = Topic(1, 3, {**USUAL, "cleanup.policy": "compact", "retention.ms": str(DAY), "min.insync.replicas": "1"})
    large = Topic(1, 3, {**USUAL, "retention.ms": "-1", "max.message.bytes": "9000000", "min.insync.replicas": "3"})
    settings = made(tmp_path, LETTERS)
    (change,) = planned(settings, {"orders": ORDERS, "orders.dead-letters": small}).changes
    assert not change.create
    assert change.configs == {
        "cleanup.policy": ("compact", "delete"),
        "min.insync.replicas": ("1", "2"),
        "max.message.bytes": ("1048588", str(1_048_588 + 65_536)),
        "retention.ms": (str(DAY), str(21 * DAY)),
    }
    assert planned(settings, {"orders": ORDERS, "orders.dead-letters": large}).changes == []


def test_a_topic_with_too_few_replicas_is_not_told_to_keep_more_in_sync_than_it_has(tmp_path: Path) -> None:
    alone = Topic(1, 1, {**USUAL, "min.insync.replicas": "1", "retention.ms": "-1", "max.message.bytes": "9000000"})
    found = planned(made(tmp_path, LETTERS), {"orders": ORDERS, "orders.dead-letters": alone})
    assert found.changes == []
    assert len(found.by_hand) == 1
    assert "orders.dead-letters: dead letters with 1 of 3 replicas" in found.by_hand[0]
    assert found.fine == 1


@pytest.mark.parametrize(
    ("own", "then_in_sync"), [("", []), ("replication_factor = 2\n", []), ("min_insync_replicas = 2\n", ["2"])]
)
def test_a_topic_with_two_replicas_of_three_may_be_written_to_without_one_unless_the_settings_say_otherwise(
    tmp_path: Path, own: str, then_in_sync: list[str]
) -> None:
    pair = Topic(1, 2, {**USUAL, "min.insync.replicas": "1", "retention.ms": "-1", "max.message.bytes": "9000000"})
    found = planned(made(tmp_path, f"{LETTERS}[topics]\n{own}"), {"orders": ORDERS, "orders.dead-letters": pair})
    assert [then(change)["min.insync.replicas"] for change in found.changes] == then_in_sync


def test_an_input_that_may_lose_records_is_told_of_and_left_alone(tmp_path: Path) -> None:
    unsafe = Topic(12, 3, {**USUAL, "unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
    found = planned(made(tmp_path), {"orders": unsafe})
    assert (found.changes, found.fine) == ([], 0)
    assert "orders: input with unclean.leader.election.enable = true" in found.by_hand[0]


def test_a_single_broker_is_enough_for_a_desk(tmp_path: Path) -> None:
    (change,) = planned(made(tmp_path, LETTERS), {"orders": Topic(2, 1, USUAL)}, brokers=1).changes
    assert (change.replicas, then(change)["min.insync.replicas"]) == (1, "1")


def test_a_missing_input_is_created_only_where_its_partitions_are_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topic orders \(input\): it does not exist; set topics.partitions"):
        planned(made(tmp_path), {})
    (change,) = planned(made(tmp_path, "[topics]\npartitions = 6\n"), {}).changes
    assert (change.name, change.partitions, change.configs) == ("orders", 6, {})


def test_more_in_sync_than_there_are_replicas_is_refused(tmp_path: Path) -> None:
    own = "[topics]\nreplication_factor = 2\nmin_insync_replicas = 3\n"
    with pytest.raises(ConfigError, match=r"topics\.min_insync_replicas = 3: more than the 2 replicas"):
        planned(made(tmp_path, own), {"orders": ORDERS})


def test_settings_that_brokers_do_not_tell_are_left_alone(tmp_path: Path) -> None:
    found = planned(made(tmp_path, LETTERS), {"orders": ORDERS, "orders.dead-letters": Topic(1, 3, {})})
    assert (found.changes, found.by_hand, found.fine) == ([], [], 2)


def test_a_dead_letter_topic_takes_timestamps_as_far_ahead_as_the_consumed_topics_do(tmp_path: Path) -> None:
    ahead = "message.timestamp.after.max.ms"
    orders = Topic(12, 3, {**USUAL, ahead: "9000000000"})
    (change,) = planned(made(tmp_path, LETTERS), {"orders": orders}).changes
    assert then(change)[ahead] == "9000000000"
    letters = Topic(12, 3, {**USUAL, "max.message.bytes": "9000000", "retention.ms": "-1", ahead: "3600000"})
    (change,) = planned(made(tmp_path, LETTERS), {"orders": orders, "orders.dead-letters": letters}).changes
    assert change.configs == {ahead: ("3600000", "9000000000")}
    usual = Topic(12, 3, {**USUAL, ahead: "3600000"})
    (change,) = planned(made(tmp_path, LETTERS), {"orders": usual}).changes
    assert ahead not in then(change)


def test_brokers_that_do_not_tell_how_large_records_may_be_leave_that_of_letters_to_the_brokers(tmp_path: Path) -> None:
    silent = {name: value for name, value in USUAL.items() if name != "max.message.bytes"}
    settings = made(tmp_path, LETTERS)
    (change,) = planned(settings, {"orders": Topic(12, 3, silent)}).changes
    assert "max.message.bytes" not in then(change)


def test_a_topic_that_is_made_while_a_broker_restarts_has_as_many_replicas_as_on_another_day(tmp_path: Path) -> None:
    orders = TopicInfo("orders", partitions={0: PartitionInfo(leader=1, replicas=(1, 2, 3))})
    up = {number: Broker(number, "kafka", 9092) for number in (1, 2)}
    found = found_in(Metadata(up, {"orders": orders}), ["orders"], [], {"orders": USUAL})
    (change,) = plan(found, needs(made(tmp_path, LETTERS), found)).changes
    assert (change.replicas, then(change)["min.insync.replicas"]) == (3, "2")
