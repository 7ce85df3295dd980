"""`kunicorn topics` beside a real broker: what it shows, creates and changes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.errors import ConfigError
from tests.kafka import KafkaCluster
from tests.system.commands.desk import Desk
from tests.system.members import group_settings, merged, toml
from tests.waiting import wait_until

NAMES = ("cleanup.policy", "min.insync.replicas", "max.message.bytes", "retention.ms")
LARGEST = 2_000_000


@pytest.fixture
def desk(kafka: KafkaCluster, topic: str, tmp_path: Path) -> Desk:
    """Settings that ask for a dead-letter topic, two retry topics and two output topics, none of which exists."""
    kafka.create_topic(topic, 3, {"max.message.bytes": str(LARGEST), "retention.ms": "3600000"})
    handler = {"handler": {"on_failure": "dead_letter", "retry_topic_delays_ms": [1000, 60_000]}}
    other = {"topic": f"{topic}.invoices", "value": "json"}
    output = {"producing": {"delivery": "at_least_once", "topic": f"{topic}.totals", "topics": [other]}}
    config = tmp_path / "config.toml"
    config.write_text(toml(merged(group_settings(kafka.bootstrap, [topic], topic), handler, output)))
    return Desk(config)


def configs(kafka: KafkaCluster, topic: str) -> dict[str, str]:
    settings = kafka.topic_settings(topic)
    return {name: settings[name] for name in NAMES}


def partitions(kafka: KafkaCluster, topic: str) -> int:
    known = kafka.admin().list_topics(timeout=60).topics
    return len(known[topic].partitions) if topic in known else 0


def test_what_is_planned_is_created_once_and_then_there_is_nothing_to_do(
    kafka: KafkaCluster, desk: Desk, topic: str
) -> None:
    planned = desk.told("topics", "plan")
    names = {change["topic"]: change["role"] for change in planned["changes"]}
    assert sorted(names.values()) == ["dead letters", "output", "output", "retries", "retries"]
    assert not set(names) & set(kafka.admin().list_topics(timeout=60).topics), "a plan creates nothing"
    desk.said("topics", "apply", "--yes")
    # Brokers learn of what the controller has confirmed a moment later.
    wait_until(lambda: {partitions(kafka, name) for name in names} == {3}, "five topics of three partitions")
    assert configs(kafka, f"{topic}.dead-letters") == {
        "cleanup.policy": "delete",
        "min.insync.replicas": "1",
        "max.message.bytes": str(LARGEST + 65_536),
        "retention.ms": str(14 * 86_400_000 + 3_600_000),
    }
    assert desk.told("topics", "check") == {"changes": [], "by_hand": [], "fine": 6}
    assert "6 topics are as they should be" in desk.said("topics", "apply", "--yes")


def test_a_topic_that_is_there_is_corrected_and_keeps_its_partitions(
    kafka: KafkaCluster, desk: Desk, topic: str
) -> None:
    kafka.create_topic(f"{topic}.dead-letters", 1, {"cleanup.policy": "compact", "retention.ms": "-1"})
    shown = desk.said("topics", "plan")
    assert f"~ {topic}.dead-letters: dead letters" in shown
    assert "cleanup.policy = delete, now compact" in shown
    with pytest.raises(ConfigError, match=r"\d+ topics to create or change"):
        desk.said("topics", "check")
    desk.said("topics", "apply", "--yes")
    assert partitions(kafka, f"{topic}.dead-letters") == 1
    wait_until(lambda: configs(kafka, f"{topic}.dead-letters")["cleanup.policy"] == "delete", "the correction")
    assert configs(kafka, f"{topic}.dead-letters")["retention.ms"] == "-1"


def test_nothing_is_changed_unless_somebody_says_so(kafka: KafkaCluster, desk: Desk, topic: str) -> None:
    result = CliRunner().invoke(app, ["topics", "apply", "--config", str(desk.config)])
    assert isinstance(result.exception, ConfigError)
    assert "there is no terminal to ask for a confirmation" in str(result.exception)
    assert f"{topic}.totals" not in kafka.admin().list_topics(timeout=60).topics


def test_a_change_that_brokers_refuse_is_named_and_the_others_are_done(
    kafka: KafkaCluster, desk: Desk, topic: str
) -> None:
    with desk.config.open("a") as file:
        file.write("\n[topics]\nreplication_factor = 3\nmin_insync_replicas = 1\n")
    kafka.create_topic(f"{topic}.totals", 1, {"min.insync.replicas": "1"})
    with pytest.raises(ConfigError, match=r"4 of 4 changes were refused: .*INVALID_REPLICATION_FACTOR"):
        desk.said("topics", "apply", "--yes")
