"""`kunicorn check` warns of topics that the end of a broker may take records from."""

from __future__ import annotations

from pathlib import Path

from kunicorn.commands.check.cluster import durability
from kunicorn.kafka.metadata import Broker, Metadata, PartitionInfo, TopicInfo
from tests.unit.settings.files import LEAST, loaded

LETTERS = 'on_failure = "dead_letter"\n'


def cluster(brokers: int, **replicas: int) -> Metadata:
    """Topics of one partition with so many replicas."""
    nodes = {number: Broker(number, "127.0.0.1", 9092) for number in range(brokers)}
    topics = {
        name: TopicInfo(name, partitions={0: PartitionInfo(0, replicas=tuple(range(count)))})
        for name, count in replicas.items()
    }
    return Metadata(nodes, topics)


def test_a_topic_with_one_replica_of_three_is_warned_of(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST + LETTERS)
    (told,) = durability(settings, ["orders"], cluster(3, orders=1))
    assert told.startswith("orders: input with 1 of 3 replicas, so that the end of a broker may lose records: ")


def test_the_dead_letter_topic_is_looked_at_too(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST + LETTERS + '[dead_letters]\ntopic = "letters"\n')
    (told,) = durability(settings, ["orders"], cluster(3, orders=3, letters=2))
    assert told.startswith("letters: dead letters with 2 of 3 replicas")


def test_a_cluster_of_one_broker_has_as_many_replicas_as_it_can(tmp_path: Path) -> None:
    assert list(durability(loaded(tmp_path), ["orders"], cluster(1, orders=1))) == []


def test_settings_that_no_topic_could_have_are_told(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST + LETTERS + "[topics]\nmin_insync_replicas = 3\n")
    (told,) = durability(settings, ["orders"], cluster(2, orders=2))
    assert "topics.min_insync_replicas = 3: more than the 2 replicas" in told
