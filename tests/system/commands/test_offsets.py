"""`kunicorn offsets`, `lag` and `status` beside a real group: what they show, what they refuse, what they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kunicorn.errors import ConfigError
from tests.kafka import KafkaCluster
from tests.system.commands.desk import Desk
from tests.system.members import MemberProcess, Members, group_settings, merged, toml
from tests.system.producing import committed_offsets, produce

MembersOf = Callable[..., Members]
both_protocols = pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=[pytest.mark.consumer, pytest.mark.long])]
)


@pytest.fixture
def desk(kafka: KafkaCluster, topic: str, tmp_path: Path) -> Desk:
    """A topic of two partitions with 30 and 10 records, and nobody who has consumed any."""
    kafka.create_topic(topic, 2)
    produce(kafka.bootstrap, topic, 30, partition=0)
    produce(kafka.bootstrap, topic, 10, partition=1)
    config = tmp_path / "config.toml"
    config.write_text(toml(group_settings(kafka.bootstrap, [topic], topic)))
    return Desk(config)


@both_protocols
def test_a_reset_shows_its_plan_is_refused_beside_members_and_then_done(
    kafka: KafkaCluster, topic: str, desk: Desk, members_of: MembersOf, protocol: str
) -> None:
    members = members_of(kafka.bootstrap, topic, settings={"group": {"group_protocol": protocol}})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "everything to be committed")
    assert "2 partitions: 40 offsets would be handled again" in desk.said("offsets", "reset", "--to-earliest")
    with pytest.raises(ConfigError, match=r"has members, stop them first: .*\(kunicorn at 127\.0\.0\.1, 2 partitions"):
        desk.said("offsets", "reset", "--to-earliest", "--execute")
    assert committed(kafka, topic) == [30, 10]
    assert member.stop() == 0
    plan = desk.said("offsets", "reset", "--to-earliest", "--topic", f"{topic}:0")
    assert "nothing was changed; --execute does it" in plan
    assert committed(kafka, topic) == [30, 10]
    assert "done: 1 offsets are committed" in desk.said(
        "offsets", "reset", "--to-earliest", "--topic", f"{topic}:0", "--execute"
    )
    assert committed(kafka, topic) == [0, 10]
    again = members.start()
    again.wait(lambda: again.lag() == 0, "the first partition to be handled again")
    again.wait(lambda: sum(w["handled"] for w in again.workers()) == 30, "no more than those to be handled")
    assert again.stop() == 0


def test_every_way_of_saying_where_to_ends_there(kafka: KafkaCluster, topic: str, desk: Desk, tmp_path: Path) -> None:
    def reset(*arguments: str) -> list[int]:
        planned = desk.told("offsets", "reset", *arguments, "--execute")
        assert planned["executed"] is True
        assert [each["then"] for each in planned["partitions"]] == committed(kafka, topic)
        return committed(kafka, topic)

    assert reset("--to-offset", "7") == [7, 7]
    assert reset("--shift-by", "5") == [12, 10], "kept within the log"
    assert reset("--shift-by", "-2") == [10, 8]
    assert reset("--to-latest") == [30, 10]
    assert reset("--to-datetime", "1h") == [0, 0]
    assert reset("--to-datetime", "2100-01-01T00:00:00Z") == [30, 10], "no record is that young: the end"
    before = tmp_path / "before.csv"
    before.write_text(desk.said("offsets", "show", "--csv"))
    assert reset("--to-earliest") == [0, 0]
    assert reset("--from-file", str(before)) == [30, 10]
    before.write_text("elsewhere,0,1\n")
    with pytest.raises(ConfigError, match="names elsewhere-0, which the group does not consume"):
        reset("--from-file", str(before))


def test_lag_is_counted_and_dated_and_unknown_where_nothing_is_committed(
    kafka: KafkaCluster, topic: str, desk: Desk
) -> None:
    untouched = desk.told("lag")
    assert (untouched["state"], untouched["lag"], untouched["topics"][0]["unknown"]) == ("none", 0, 2)
    desk.said("offsets", "reset", "--to-offset", "10", "--execute")
    told = desk.told("lag")
    assert (told["state"], told["lag"], told["topics"][0]["worst"]) == ("Empty", 20, 20)
    first, second = told["partitions"]
    assert 0 < first["oldest_seconds"] < 120
    assert (second["lag"], second["oldest_seconds"]) == (0, 0.0)
    shown = desk.said("lag")
    assert f"{topic}-0" in shown
    assert f"{topic}-1" not in shown, "only those that are behind"


def test_offsets_are_shown_beside_their_logs_and_owners(
    kafka: KafkaCluster, topic: str, desk: Desk, members_of: MembersOf
) -> None:
    member = members_of(kafka.bootstrap, topic).start({"kafka": {"client_id": "shop-7"}})
    member.wait(lambda: member.lag() == 0, "everything to be committed")
    told = desk.told("offsets", "show")
    assert [(p["committed"], p["log_start"], p["log_end"], p["lag"]) for p in told["partitions"]] == [
        (30, 0, 30, 0),
        (10, 0, 10, 0),
    ]
    assert told["members"][0]["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert "shop-7" in desk.said("offsets", "show")
    check_status(member)
    assert member.stop() == 0


def check_status(member: MemberProcess) -> None:
    """`kunicorn status` with the member's own configuration."""
    desk = Desk(member.config)
    shown = desk.said("status")
    assert "stable, generation" in shown
    assert "2 partitions: 2 running" in shown
    assert len(desk.told("status")["partitions"]) == 2


def test_what_is_missing_is_named(kafka: KafkaCluster, topic: str, desk: Desk) -> None:
    settings = group_settings(kafka.bootstrap, [f"{topic}-absent"], topic)
    desk.config.write_text(toml(settings))
    with pytest.raises(ConfigError, match=r"UNKNOWN_TOPIC_OR_PARTITION .*; create the topic, or correct group\.topics"):
        desk.said("lag")
    desk.config.write_text(toml(merged(settings, {"group": {"topics": ["^" + topic]}})))
    assert [each["topic"] for each in desk.told("offsets", "show")["partitions"]] == [topic] * 2
    desk.config.write_text(toml(merged(settings, {"kafka": {"bootstrap_servers": ["127.0.0.1:1"]}})))
    with pytest.raises(ConfigError, match=r"correct kafka\.bootstrap_servers, or start them"):
        desk.said("offsets", "show")
    desk.config.write_text(toml({**settings, "group": {"id": topic}, "assign": {"partitions": [topic]}}))
    with pytest.raises(ConfigError, match="there is no group: these settings assign partitions by name"):
        desk.said("offsets", "reset", "--to-earliest")


def committed(kafka: KafkaCluster, topic: str) -> list[int]:
    """What the group has committed, by partition."""
    return list(committed_offsets(kafka.bootstrap, topic, topic, 2).values())
