"""Questions of jobs to the cluster, without joining: a group's members and offsets, and topics' ends. Every call
blocks.

1. The broker is the fence: it refuses commits of strangers while the group has members (UNKNOWN_MEMBER_ID). So a live
   member that comes back stops a job, never the other way round.
2. Between two jobs the broker knows no difference. Each commits with its run's name as metadata, and before every
   commit checks that it finds its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    Uuid,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec

from kunicorn.clients.access import Access, Admin
from kunicorn.clients.session import visiting
from kunicorn.errors import ConfigError, FatalGroupError
from kunicorn.librdkafka.errors import fault_of
from kunicorn.positions import Offsets, TopicPartition
from kunicorn.settings import Settings

T = TypeVar("T")

_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID = Uuid(0, 0)
"""Id of every topic where brokers know no ids (Kafka before 2.8)."""


@dataclass(frozen=True, slots=True)
class Edges:
    """First offset and end of each partition. With read_committed the end is the last stable offset."""

    first: Offsets
    end: Offsets


class Log:
    """The cluster's topics, as brokers describe them. Methods raise `ConfigError` where these do not answer or
    refuse.
    """

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
        """Number of partitions by topic, without Kafka's internal topics."""
        answer = asked(lambda: self._admin.now().list_topics(timeout=_TIMEOUT)).topics
        return {
            name: len(topic.partitions)
            for name, topic in answer.items()
            if topic.error is None and not name.startswith("__")
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of those topics that exist (KIP-516): the same name under another id is another topic.

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
        """First offsets and ends, as of now."""
        wanted = list(partitions)
        first = self._offsets(dict.fromkeys(wanted, _EARLIEST))
        return Edges(first, self._offsets(dict.fromkeys(wanted, _LATEST)))

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        """First offset at or after each time (milliseconds since 1970); −1 where no record is so young."""
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
    if (what := error.args[0]).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return ConfigError(f"topic {topic!r}: {what.str()}: {fault_of(what.code()).remedy(topic='it')}")
    return unanswered(error)


def asked(ask: Callable[[], T]) -> T:
    """Answer of a confluent-kafka call. Raises `ConfigError` where there is none."""
    try:
        return ask()
    except KafkaException as error:
        raise unanswered(error) from error


def unanswered(error: KafkaException) -> ConfigError:
    """Error for a question without an answer."""
    return ConfigError(f"the brokers do not answer: {error.args[0].str()}; see kafka.bootstrap_servers and [kafka]")


_TIMEOUT = 20.0
_PAUSE = 1.0
_FENCED = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError.NON_EMPTY_GROUP, KafkaError.STALE_MEMBER_EPOCH, KafkaError.FENCED_MEMBER_EPOCH}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Committed:
    """Committed offset of the group, and the metadata beside it."""

    offset: int
    metadata: str


class GroupOffsets:
    """Committed offsets of one group. Every method blocks. Raises `ConfigError` where the brokers do not answer."""

    def __init__(self, access: Access, group_id: str) -> None:
        self._admin = Admin(access)
        self._group_id = group_id

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Committed offsets of those partitions that have one; open transactions are waited for (KIP-447)."""
        request = self._request([ClientPartition(*tp) for tp in partitions])
        answer = self._answer(
            self._admin.now().list_consumer_group_offsets([request], require_stable=True, request_timeout=_TIMEOUT)
        )
        return {
            TopicPartition(each.topic, each.partition): Committed(each.offset, each.metadata or "")
            for each in answer
            if each.offset >= 0
        }

    def commit(self, offsets: Offsets, metadata: str) -> None:
        """Commit without being a member. Raises `FatalGroupError` where the broker refuses."""
        if not offsets:
            return
        wanted = [ClientPartition(*tp, offset, metadata) for tp, offset in sorted(offsets.items())]
        answer = self._answer(
            self._admin.now().alter_consumer_group_offsets([self._request(wanted)], request_timeout=_TIMEOUT)
        )
        for each in answer:
            if each.error is not None:
                raise self._refused(each.error)

    def _request(self, partitions: list[ClientPartition]) -> ConsumerGroupTopicPartitions:
        return ConsumerGroupTopicPartitions(self._group_id, partitions)

    def _answer(self, futures: Mapping[str, Any]) -> list[ClientPartition]:
        try:
            found: list[ClientPartition] = futures[self._group_id].result(_TIMEOUT + 5).topic_partitions
        except KafkaException as error:
            if (what := error.args[0]).code() in {*_FENCED, KafkaError.GROUP_AUTHORIZATION_FAILED}:
                raise self._refused(what) from error
            raise unanswered(error) from error
        return found

    def _refused(self, error: KafkaError) -> FatalGroupError:
        if error.code() in _FENCED:
            return FatalGroupError(
                f"group {self._group_id!r} has members again and refuses our commit ({error.name()}): the live service "
                f"goes on from the last round that was committed and handles this one's records, too. Stop it first to "
                f"catch up; nothing is lost"
            )
        remedy = fault_of(error.code()).remedy()
        return FatalGroupError(f"group {self._group_id!r} refuses the commit: {error.str()}; {remedy}")


def group_members(settings: Settings) -> list[str]:
    """Names of the group's members, for people; none where it is empty or does not exist. Blocks.

    Raises `ConfigError`, `FatalGroupError`.
    """
    with visiting(settings) as visit:
        members = visit.described().members
    return [each.instance_id or f"{each.client_id} at {each.host.removeprefix('/')}" for each in members]


def wait_until_empty(settings: Settings, seconds: float) -> None:
    """Wait up to `seconds` for the members to leave. Blocks. Raises `FatalGroupError` where they do not."""
    deadline = time.monotonic() + seconds
    while members := group_members(settings):
        if time.monotonic() >= deadline:
            raise FatalGroupError(
                f"group {settings.group.id!r} has {len(members)} member(s): {', '.join(sorted(members)[:5])}. Stop the "
                f"live service first (--wait waits for it). A static member stays until its session times out: "
                f"kunicorn leave removes it"
            )
        time.sleep(min(_PAUSE, max(0.05, deadline - time.monotonic())))
