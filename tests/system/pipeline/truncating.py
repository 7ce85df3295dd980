"""Logs that an unclean election truncates: what only their leader has is gone, and others take its offsets."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import NewTopic

from tests.kafka import KafkaCluster
from tests.system.producing import produce
from tests.waiting import wait_until

SECONDS = 180.0
"""For brokers to come, go, and agree."""
REPLICATED, ALONE, AFTER = 100, 50, 80
"""Records of a log that both replicas have, that only its leader has, and that come after the election."""
_CONFIG = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}


class Replicas:
    """Of three brokers those two that lead and follow: what one of them has alone is lost with it."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self._leader, self._follower = kafka.broker(1), kafka.broker(2)

    def create(self, topics: Sequence[str]) -> None:
        """Topics of one partition, with what both have and what only the leader has."""
        wanted = [NewTopic(each, num_partitions=1, replica_assignment=[[1, 2]], config=_CONFIG) for each in topics]
        for done in self.kafka.admin().create_topics(wanted).values():
            done.result(60)
        self._produce(topics, REPLICATED, b"both")
        self.kafka.wait_until_whole()
        self._follower.kill()
        self._produce(topics, ALONE, b"alone")

    def elect(self, topics: Sequence[str]) -> None:
        """The leader dies, and the other one leads."""
        self._leader.kill()
        self._follower.start()
        wait_until(lambda: self._led(topics) == {self._follower.id}, "an unclean election", SECONDS, every=0.2)

    def grow(self, topics: Sequence[str]) -> None:
        """Others come, beyond the former end."""
        self._produce(topics, AFTER, b"after")

    def heal(self) -> None:
        """Both are there again."""
        self._leader.start()
        self.kafka.wait_until_whole()

    def _produce(self, topics: Sequence[str], records: int, value: bytes) -> None:
        for each in topics:
            produce(self.kafka.bootstrap, each, records, value=value)

    def _led(self, topics: Sequence[str]) -> set[int]:
        known = self.kafka.admin().list_topics(timeout=60).topics
        return {known[each].partitions[0].leader for each in topics}
