"""A session with brokers that are played: their topics, and the edges of every log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kunicorn.clients.session import ClusterSession
from kunicorn.errors import ConfigError
from kunicorn.handler.config import takes
from kunicorn.kafka.admin import IsolationLevel
from kunicorn.positions import Edges, Offsets, TopicPartition


class PlayedLog(ClusterSession):
    """Topics with their number of partitions, each with the same log."""

    def __init__(self, topics: Mapping[str, int], log: Edges | None = None) -> None:
        self.there, self.log = dict(topics), log or Edges(0, 100, 1)
        self.denied: set[str] = set()
        """Topics that brokers leave out of the list of all topics, and refuse by name."""
        self.ids: dict[str, str] = {}
        """Ids of topics, other than the usual ones."""
        self.unknown: set[str] = set()
        """Topics that the broker which answers does not know yet."""
        self.cluster: Any = SimpleNamespace(ask_another=self.unknown.clear)

    def topics(
        self, wanted: Collection[str], besides: Collection[str] = (), setting: str = "group.topics"
    ) -> list[str]:
        return sorted(topic for topic in self.there if takes(wanted, topic) and topic not in self.unknown)

    def _numbers(self, topic: str) -> Collection[int]:
        return range(self.there[topic])

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        asked = list(topics)
        if refused := self.denied.intersection(asked):
            raise ConfigError(f"topic {min(refused)!r}: TOPIC_AUTHORIZATION_FAILED (29)")
        there = self.there.keys() - self.unknown
        return {topic: self.ids.get(topic, f"id of {topic}") for topic in asked if topic in there}

    def existing(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        there = {topic: count for topic, count in self.there.items() if topic not in self.unknown}
        return [tp for tp in partitions if tp.topic in self.denied or tp.partition < there.get(tp.topic, 0)]

    def edges(
        self, partitions: Iterable[TopicPartition], level: IsolationLevel | None = None
    ) -> dict[TopicPartition, Edges]:
        return dict.fromkeys(partitions, self.log)

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        """Records are as old as their offsets."""
        return {tp: max(time, self.log.first) if time < self.log.end else -1 for tp, time in times.items()}

    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {}

    @contextmanager
    def session(self, *_: Any, **__: Any) -> Iterator[PlayedLog]:
        """In place of `cluster_session`."""
        yield self
