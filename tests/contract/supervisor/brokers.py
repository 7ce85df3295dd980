"""Two brokers that share a topic's partitions and the coordinator's part, and fail as chance says: a whole request, its
answer alone, or single partitions in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple
from uuid import UUID

from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.contract.supervisor.truth import Log, Violation
from tests.contract.worker.choices import Choices
from tests.fakes.broker import Asked, HangUp, Reply, by_partition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.coordinator_broker import CoordinatorBroker
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.simulation import TOPIC

_BY_PARTITION: Mapping[Api, Sequence[int]] = {
    Api.OFFSET_COMMIT: (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE, E.REQUEST_TIMED_OUT),
    Api.OFFSET_FETCH: (E.UNSTABLE_OFFSET_COMMIT,),
    Api.LIST_OFFSETS: (E.NOT_LEADER_OR_FOLLOWER, E.LEADER_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION),
}
_EARLIEST = -2
_FOR_EVER = 600.0
"""Seconds: whoever asks has closed the connection long before."""
FAILING = (*_BY_PARTITION, Api.METADATA, Api.FIND_COORDINATOR, Api.JOIN_GROUP, Api.SYNC_GROUP)
"""Kinds of requests that a story may have fail. Heartbeats that fail in a row end a session, which is no fault of
ours."""


LATEST = 12.0
"""Seconds after which every broker has heard of a change."""
_NOTHING_FOR_A_WHILE = 40
"""Percent of the brokers that are late with a topic that was created anew: they hear first that the old one is gone."""


class Shown(NamedTuple):
    """The topic as a broker knows it."""

    topic_id: UUID
    partitions: Sequence[TopicPartition]


class Cloud:
    """What the brokers have in common."""

    def __init__(self, choices: Choices, group: ClassicGroup | ConsumerGroup, topic_id: UUID) -> None:
        self.choices, self.group, self.topic_id = choices, group, topic_id
        self.logs: dict[TopicPartition, Log] = {}
        self.failing: tuple[Api, ...] = ()
        self.percent = 0
        """Of the requests of those kinds."""
        self.loading_until = 0.0
        self.taken_at: dict[TopicPartition, float] = {}
        """When a commit of that partition was last taken, and its answer on its way."""
        self.refused_at: dict[str, float] = {}
        """When a commit of that member was last refused, as the group goes on without it, or is about to."""
        self.unserved_at = float("-inf")
        """When a commit, or whoever asked where to send it, last met something else than success."""
        self.away = self.named = False
        """The coordinator is dead and has no successor yet; and brokers name it still."""
        self.unheard: dict[str, float] = {}
        """Until when nothing of a client gets through, by its id; it does then."""
        self.brokers: list[StoryBroker] = []
        self.violations: list[Violation] = []
        """What was committed and must not be, for the story to raise."""

    @property
    def coordinating(self) -> StoryBroker:
        """The broker that coordinates."""
        return next(each for each in self.brokers if each.group is not None)

    def move(self, *, orderly: bool, loading: float) -> None:
        """The other broker coordinates, and has to read the log first."""
        before = self.coordinating
        after = next(each for each in self.brokers if each is not before)
        before.group, after.group = None, self.group
        self.away = False
        for each in self.brokers:
            each.coordinator = after
        self.loading_until = _now() + loading
        if not orderly:
            before.hang_up()
        self.group.move(_now())

    def part(self, *, named: bool) -> None:
        """The coordinator dies. `named`: brokers name it until it has a successor, which `move` brings."""
        self.away, self.named = True, named
        self.coordinating.hang_up()

    @property
    def shown(self) -> Shown:
        """The topic as it is."""
        return Shown(self.topic_id, tuple(self.logs))

    def topic_changes(self) -> None:
        """From now on; each broker hears of it when chance says. Of its requests only Metadata is answered as it knows
        it: what is assigned and committed is for the coordinator to say, which has the metadata that counts."""
        for each in self.brokers:
            each.learn_in(
                self.choices.pick((0.0, 0.2, 1.0, 5.0, LATEST)), gone=self.choices.chance(_NOTHING_FOR_A_WHILE)
            )

    def troubles(self, api: Api) -> bool:
        """Whether chance has it that this request, or part of it, fails."""
        return api in self.failing and self.choices.chance(self.percent) and self.fails(api)

    def fails(self, api: Api) -> bool:
        """Note that it does."""
        if api in (Api.OFFSET_COMMIT, Api.FIND_COORDINATOR):
            self.unserved_at = _now()
        return True


class StoryBroker(CoordinatorBroker):
    """One of them."""

    def __init__(self, node_id: int, cloud: Cloud) -> None:
        super().__init__(node_id, None)
        self._cloud = cloud
        cloud.brokers.append(self)
        self._known: list[tuple[float, Shown | None]] = []
        """What it answers with, and until when; from then on with the topic as it is."""
        self.answers |= {
            Api.METADATA: self._metadata,
            Api.LIST_OFFSETS: self._ends,
        }

    def learn_in(self, seconds: float, *, gone: bool) -> None:
        """Hear so late of what is about to change. `gone`: hear first that there is no such topic any more."""
        now, shown = _now(), self._shown()
        half = [(now + seconds / 2, shown)] if gone else []
        self._known = [*half, (now + seconds, None if gone else shown)]

    def _shown(self) -> Shown | None:
        return next((shown for until, shown in self._known if _now() < until), self._cloud.shown)

    # -- whole requests ------------------------------------------------------------------------------------------------

    def _scripted(self, asked: Asked) -> Reply | Awaitable[Reply]:
        cloud = self._cloud
        if cloud.unheard and _now() < (until := cloud.unheard.get(asked.client_id, 0.0)):
            cloud.fails(asked.api)
            return self._late(asked, until)
        if cloud.away and self.group is not None and asked.api in _OF_COORDINATORS:
            cloud.fails(asked.api)
            return HangUp
        if cloud.away and not cloud.named and asked.api == Api.FIND_COORDINATOR:
            cloud.fails(asked.api)
            return self._nobody(asked)
        if asked.api in _OF_COORDINATORS and self.group is not None and _now() < cloud.loading_until:
            cloud.fails(asked.api)
            return self._refused(asked, E.COORDINATOR_LOAD_IN_PROGRESS)
        if asked.api in cloud.failing and cloud.troubles(asked.api):
            return self._spoilt(asked, cloud.choices.below(4))
        return self.answers[asked.api](asked)

    async def _late(self, asked: Asked, when: float) -> Reply:
        await asyncio.sleep(when - _now())
        return await _awaited(self._scripted(asked))

    async def _spoilt(self, asked: Asked, how: int) -> Reply:
        if how == 0 and asked.api in _BY_PARTITION:
            return await _awaited(self.answers[asked.api](asked))  # its partitions fail, one or the other
        if how == 1:
            return HangUp
        answer = await _awaited(self.answers[asked.api](asked))
        if how == 2:
            await asyncio.sleep(self._cloud.choices.below(20) / 10)
            return answer
        # Behind a request that is parked for minutes nobody notices a silence.
        if asked.api not in (Api.JOIN_GROUP, Api.SYNC_GROUP) and self._cloud.choices.chance(50):
            await asyncio.sleep(_FOR_EVER)
        return HangUp

    def _nobody(self, asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        row = nested(schema, "coordinators")
        return blank(schema, coordinators=(blank(row, key="g", error_code=E.COORDINATOR_NOT_AVAILABLE, node_id=-1),))

    def _refused(self, asked: Asked, error: int) -> Reply:
        if asked.api == Api.OFFSET_COMMIT:
            return self._committed(asked, dict.fromkeys(_named(asked.message), error))
        if asked.api == Api.OFFSET_FETCH:
            row = nested(RESPONSES[asked.api, asked.version], "groups")
            return blank_response(asked.api, asked.version, groups=(blank(row, group_id="g", error_code=error),))
        if asked.api == Api.LEAVE_GROUP:
            return blank_response(asked.api, asked.version, error_code=error)
        return blank_response(asked.api, asked.version, error_code=error)

    def _error(self, api: Api) -> int:
        return int(self._cloud.choices.pick(_BY_PARTITION[api])) if self._cloud.troubles(api) else 0

    # -- offsets -------------------------------------------------------------------------------------------------------

    def _commit(self, asked: Asked) -> Reply:
        cloud, message, error = self._cloud, asked.message, int(E.NOT_COORDINATOR)
        generation = message.generation_id_or_member_epoch
        if isinstance(self.group, ClassicGroup):
            error = self.group.commit(message.member_id, generation, message.group_instance_id, _now())
        elif self.group is not None:
            error = self.group.commit(message.member_id, generation, _now())
        if error:
            cloud.fails(asked.api)
            cloud.refused_at[message.member_id] = _now()
        errors: dict[TopicPartition, int] = {}
        for topic in message.topics:
            for each in topic.partitions:
                tp = TopicPartition(TOPIC, each.partition_index)
                gone = getattr(topic, "topic_id", cloud.topic_id) != cloud.topic_id or tp not in cloud.logs
                errors[tp] = int(error or (E.UNKNOWN_TOPIC_ID if gone else self._error(Api.OFFSET_COMMIT)))
                # One that timed out is in the log all the same.
                if errors[tp] in (E.NONE, E.REQUEST_TIMED_OUT):
                    cloud.taken_at[tp] = _now()
                    try:
                        cloud.logs[tp].commit(each.committed_offset, each.committed_metadata or "")
                    except Violation as violation:
                        cloud.violations.append(violation)
        return self._committed(asked, errors)

    def _committed(self, asked: Asked, errors: Mapping[TopicPartition, int]) -> Reply:
        return by_partition(asked, lambda each: {"error_code": errors[TopicPartition(TOPIC, each.partition_index)]})

    def _fetch(self, asked: Asked) -> Reply:
        if self.group is None:
            return self._refused(asked, E.NOT_COORDINATOR)
        schema = RESPONSES[asked.api, asked.version]
        group_row = nested(schema, "groups")
        topic_row = nested(group_row, "topics")
        row = nested(topic_row, "partitions")
        topics = []
        for topic in asked.message.groups[0].topics or ():
            rows = []
            for number in topic.partition_indexes:
                log, error = self._cloud.logs.get(TopicPartition(TOPIC, number)), self._error(Api.OFFSET_FETCH)
                offset = log.committed if log is not None and not error else -1
                said = log.metadata if log is not None else ""
                rows.append(
                    blank(row, partition_index=number, committed_offset=offset, metadata=said, error_code=error)
                )
            topics.append(topic_row(name=topic.name, partitions=tuple(rows)))
        return blank(schema, groups=(blank(group_row, group_id="g", topics=tuple(topics)),))

    def _ends(self, asked: Asked) -> Reply:
        def end(each: Any) -> Mapping[str, Any]:
            log = self._cloud.logs.get(TopicPartition(TOPIC, each.partition_index))
            error = self._error(Api.LIST_OFFSETS) if log is not None else int(E.UNKNOWN_TOPIC_OR_PARTITION)
            at = -1 if log is None or error else log.begin if _stamp(each.timestamp) == _EARLIEST else log.end
            return {"offset": at, "error_code": error}

        return by_partition(asked, end)

    def _metadata(self, asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        broker, topic = nested(schema, "brokers"), nested(schema, "topics")
        row = nested(topic, "partitions")
        cloud, shown = self._cloud, self._shown()
        topics = asked.message.topics or ()
        told: tuple[Any, ...]
        if shown is None:
            told = (blank(topic, name=TOPIC, error_code=E.UNKNOWN_TOPIC_OR_PARTITION),)
        elif topics and all(each.name is None and each.topic_id != shown.topic_id for each in topics):
            told = ()
        else:
            partitions = tuple(
                blank(row, partition_index=n, leader_id=1 + n % len(cloud.brokers), leader_epoch=1)
                for n in (tp.partition for tp in shown.partitions)
            )
            told = (blank(topic, name=TOPIC, topic_id=shown.topic_id, partitions=partitions),)
        brokers = tuple(broker(node_id=b.node_id, host="127.0.0.1", port=b.port) for b in cloud.brokers)
        return blank(schema, brokers=brokers, topics=told)


_OF_COORDINATORS = frozenset(
    {
        Api.JOIN_GROUP,
        Api.SYNC_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH,
    }
)


def _named(message: Any) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, each.partition_index) for topic in message.topics for each in topic.partitions]


def _stamp(timestamp: Any) -> int:
    return int(timestamp)


async def _awaited(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


def _now() -> float:
    return asyncio.get_running_loop().time()
