"""What the brokers say of topics: partitions, first offsets and ends. Every function blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from kunicorn.errors import ConfigError
from kunicorn.pipeline.access import Access, Admin
from kunicorn.pipeline.ranges import Offsets
from kunicorn.topics import TopicPartition

T = TypeVar("T")

_TIMEOUT = 20.0
"""Seconds for one question."""
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID = Uuid(0, 0)
"""Of every topic, where brokers know no ids (Kafka before 2.8)."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Of each partition: the first offset there is, and the end. With read_committed, the last stable offset."""

    first: Offsets
    end: Offsets


class Log:
    """The cluster's topics. All methods raise `ConfigError` where the brokers do not answer or refuse."""

    def __init__(self, access: Access) -> None:
        self._admin = Admin(access)
        committed = access.kafka.isolation_level == "read_committed"
        self._isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """All partitions of the topics; a leading ^ makes a pattern, matched as the live service does.

        Raises `ConfigError` for a topic that does not exist, and if nothing matches.
        """
        known = self._topics()
        found: dict[str, int] = {}
        for topic in topics:
            matching = [name for name in known if re.match(topic, name)] if topic.startswith("^") else [topic]
            if missing := [name for name in matching if name not in known]:
                raise ConfigError(f"there is no topic {missing[0]!r} on this cluster; correct the name, or create it")
            found |= {name: known[name] for name in matching}
        if not found:
            raise ConfigError(f"no topic matches {', '.join(topics)}; correct group.topics")
        return [TopicPartition(topic, number) for topic, count in sorted(found.items()) for number in range(count)]

    def _topics(self) -> Mapping[str, int]:
        """Partitions by topic, without Kafka's own topics."""
        answer = asked(lambda: self._admin.now().list_topics(timeout=_TIMEOUT)).topics
        return {
            name: len(topic.partitions)
            for name, topic in answer.items()
            if topic.error is None and not name.startswith("__")
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of those topics that exist (KIP-516): by the same name, another id is another topic.

        Ask for them before asking for offsets: a topic that is created anew in between is then noticed the next time.
        """
        if not (wanted := sorted(set(topics))):
            return {}
        answers = asked(lambda: self._admin.now().describe_topics(TopicCollection(wanted), request_timeout=_TIMEOUT))
        found = {topic: self._topic_id(topic, answer) for topic, answer in answers.items()}
        return {topic: str(known) for topic, known in found.items() if known not in (None, _NO_ID)}

    def _topic_id(self, topic: str, answer: Future[Any]) -> Any:
        try:
            return answer.result(_TIMEOUT + 5).topic_id
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise _told_of(topic, error) from error

    def edges(self, partitions: Iterable[TopicPartition]) -> Edges:
        """First offsets and ends as they are now."""
        wanted = list(partitions)
        first = self._offsets(dict.fromkeys(wanted, _EARLIEST))
        return Edges(first, self._offsets(dict.fromkeys(wanted, _LATEST)))

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        """The first offset at or after each time (milliseconds since 1970); −1 where no record is so young."""
        return self._offsets({tp: OffsetSpec.for_timestamp(time) for tp, time in times.items()})

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        request = {ClientPartition(*tp): spec for tp, spec in specs.items()}
        answers = asked(
            lambda: self._admin.now().list_offsets(request, isolation_level=self._isolation, request_timeout=_TIMEOUT)
        )
        return {TopicPartition(tp.topic, tp.partition): _result(tp, answer).offset for tp, answer in answers.items()}


def _result(tp: ClientPartition, answer: Future[Any]) -> Any:
    try:
        return answer.result(_TIMEOUT + 5)
    except KafkaException as error:
        what = error.args[0]
        if what.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigError(f"there is no partition {tp.topic}-{tp.partition} on this cluster") from error
        raise _told_of(tp.topic, error) from error


def _told_of(topic: str, error: KafkaException) -> ConfigError:
    if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return ConfigError(f"this user may not read topic {topic!r}: grant it DESCRIBE and READ")
    return unanswered(error)


def asked(ask: Callable[[], T]) -> T:
    """The answer. Raises `ConfigError` where there is none."""
    try:
        return ask()
    except KafkaException as error:
        raise unanswered(error) from error


def unanswered(error: KafkaException) -> ConfigError:
    """What to say of a question without an answer."""
    return ConfigError(f"the brokers do not answer: {error.args[0].str()}; see kafka.bootstrap_servers and [kafka]")
