"""A broker that coordinates one modelled group: real frames over real sockets, decided upon by the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer, TopicPartitions
from kunicorn.kafka.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.broker import Asked, FakeBroker, Reply, Script, by_partition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.messages import blank, blank_response, nested
from tests.fakes.requests import Beat, Join, Leaver, Sync
from tests.fakes.simulation import TOPIC, TOPIC_ID

_NO_CLASSIC_GROUP = 69
START = 100
"""Where every log begins and ends."""


class CoordinatorBroker(FakeBroker):
    """Coordinates "g", leads all of `orders`. Without a group it answers NOT_COORDINATOR."""

    def __init__(self, node_id: int, group: ClassicGroup | ConsumerGroup | None) -> None:
        super().__init__(node_id)
        self.group = group
        self.coordinator: CoordinatorBroker = self
        self.committed: dict[TopicPartition, int] = {}
        self.commits: list[tuple[int, dict[TopicPartition, int]]] = []
        """Each OffsetCommit taken: under which generation, and what."""
        self.answers: dict[Api, Script] = {
            **dict.fromkeys(OURS, lambda asked: blank_response(asked.api, asked.version)),
            Api.API_VERSIONS: self.api_versions,
            Api.FIND_COORDINATOR: self._find,
            Api.JOIN_GROUP: self._join,
            Api.SYNC_GROUP: self._sync,
            Api.HEARTBEAT: self._heartbeat,
            Api.LEAVE_GROUP: self._leave,
            Api.CONSUMER_GROUP_HEARTBEAT: self._consumer_heartbeat,
            Api.OFFSET_COMMIT: self._commit,
            Api.OFFSET_FETCH: self._fetch,
            Api.DESCRIBE_GROUPS: self._describe,
            Api.LIST_OFFSETS: lambda asked: by_partition(asked, lambda _: {"offset": START}),
            Api.OFFSET_FOR_LEADER_EPOCH: _no_epoch_known,
        }
        """What it says by itself."""
        self.planned: dict[Api, list[Reply]] = {}
        """What comes first, by kind of request: a reply, or a script."""
        self.script |= dict.fromkeys(self.answers, self._scripted)

    async def keep_time(self) -> None:
        """Let the group's timers go off; for ever."""
        while True:
            await asyncio.sleep(0.25)
            if self.group is not None:
                self.group.tick(_now())

    def show(self, *brokers: FakeBroker, topics: Mapping[str, int]) -> None:
        """Answer Metadata with these brokers, and with so many partitions of these topics; this one leads them all."""

        def metadata(asked: Asked) -> Reply:
            schema = RESPONSES[asked.api, asked.version]
            broker, topic = nested(schema, "brokers"), nested(schema, "topics")
            row = nested(topic, "partitions")
            return blank(
                schema,
                brokers=tuple(broker(node_id=b.node_id, host="127.0.0.1", port=b.port) for b in brokers or (self,)),
                topics=tuple(
                    blank(
                        topic, name=name, topic_id=TOPIC_ID if name == TOPIC else UUID(int=len(name)),
                        partitions=tuple(
                            blank(row, partition_index=n, leader_id=self.node_id, leader_epoch=1) for n in range(count)
                        ),
                    )
                    for name, count in topics.items()
                ),
            )  # fmt: skip

        self.answers[Api.METADATA] = metadata

    def plan(self, api: Api, *replies: Reply) -> None:
        """Answer the next requests of this kind so; kio's messages, bytes, `HangUp`, `Silence`, or scripts."""
        self.planned.setdefault(api, []).extend(replies)

    def _scripted(self, asked: Asked) -> Reply | Awaitable[Reply]:
        planned = self.planned.get(asked.api)
        if not planned:
            return self.answers[asked.api](asked)
        reply = planned.pop(0)
        return reply(asked) if callable(reply) and not isinstance(reply, type) else reply

    def _find(self, asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        node = {"node_id": self.coordinator.node_id, "host": "127.0.0.1", "port": self.coordinator.port}
        if asked.version < 4:
            return blank(schema, **node)
        row = nested(schema, "coordinators")
        return blank(schema, coordinators=(blank(row, key="g", **node),))

    async def _join(self, asked: Asked) -> Reply:
        message = asked.message
        wishes = {each.name: decode_subscription(each.name, "", each.metadata) for each in message.protocols}
        request = Join(
            message.member_id, wishes, message.group_instance_id,
            message.session_timeout.total_seconds(), message.rebalance_timeout.total_seconds(), message.protocol_type,
        )  # fmt: skip
        group = self.group
        if group is None:
            return joined_message(asked.version, JoinAnswer(E.NOT_COORDINATOR))
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        group.join(request, _once(answer), _now())
        return joined_message(asked.version, await answer)

    async def _sync(self, asked: Asked) -> Reply:
        message = asked.message
        plan = {each.member_id: decode_assignment(each.assignment) for each in message.assignments}
        request = Sync(
            message.member_id,
            message.generation_id,
            plan,
            message.group_instance_id,
            getattr(message, "protocol_name", None),
        )
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        if self.group is None:
            answer.set_result(SyncAnswer(E.NOT_COORDINATOR))
        else:
            self.group.sync(request, _once(answer), _now())
        told = await answer
        return synced_message(asked.version, told)

    def _heartbeat(self, asked: Asked) -> Reply:
        message, error = asked.message, int(E.NOT_COORDINATOR)
        if isinstance(self.group, ClassicGroup):
            error = self.group.heartbeat(message.member_id, message.generation_id, message.group_instance_id, _now())
        elif self.group is not None:
            error = self.group.classic_heartbeat(message.member_id, message.generation_id, _now())
        return blank_response(asked.api, asked.version, error_code=error)

    def _leave(self, asked: Asked) -> Reply:
        if self.group is None:
            return blank_response(asked.api, asked.version, error_code=E.NOT_COORDINATOR)
        row = nested(RESPONSES[asked.api, asked.version], "members")
        left = [
            blank(
                row, member_id=who.member_id,
                error_code=self.group.leave(Leaver(who.member_id, who.group_instance_id), _now()),
            )
            for who in asked.message.members
        ]  # fmt: skip
        return blank_response(asked.api, asked.version, members=tuple(left))

    def _consumer_heartbeat(self, asked: Asked) -> Reply:
        if not isinstance(self.group, ConsumerGroup):
            return blank_response(asked.api, asked.version, error_code=E.NOT_COORDINATOR)
        message = asked.message
        owned: TopicPartitions | None = None
        if message.topic_partitions is not None:
            owned = tuple((each.topic_id, tuple(each.partitions)) for each in message.topic_partitions)
        full = message.subscribed_topic_names is not None
        told = self.group.heartbeat(
            Beat(message.member_id, message.member_epoch, owned, full, message.instance_id, 60.0), _now()
        )
        return heard_message(asked.version, told)

    def _commit(self, asked: Asked) -> Reply:
        message, error = asked.message, int(E.NOT_COORDINATOR)
        generation = message.generation_id_or_member_epoch
        if isinstance(self.group, ClassicGroup):
            error = self.group.commit(message.member_id, generation, message.group_instance_id, _now())
        elif self.group is not None:
            error = self.group.commit(message.member_id, generation, _now())
        offsets = {
            TopicPartition(getattr(topic, "name", TOPIC), each.partition_index): each.committed_offset
            for topic in message.topics
            for each in topic.partitions
        }
        if error == E.NONE:
            self.committed |= offsets
            self.commits.append((generation, offsets))
        return by_partition(asked, lambda _: {"error_code": error})

    def _fetch(self, asked: Asked) -> Reply:
        schema = RESPONSES[asked.api, asked.version]
        group_row = nested(schema, "groups")
        topic_row = nested(group_row, "topics")
        row = nested(topic_row, "partitions")
        wanted = asked.message.groups[0]
        topics = tuple(
            topic_row(
                name=topic.name,
                partitions=tuple(
                    blank(
                        row, partition_index=n, committed_offset=self.committed.get(TopicPartition(topic.name, n), -1)
                    )
                    for n in topic.partition_indexes
                ),
            )
            for topic in wanted.topics or ()
        )
        return blank(schema, groups=(blank(group_row, group_id=wanted.group_id, topics=topics),))

    def _describe(self, asked: Asked) -> Reply:
        row = nested(RESPONSES[asked.api, asked.version], "groups")
        if isinstance(self.group, ClassicGroup):
            member = nested(row, "members")
            members = tuple(
                blank(member, member_id=seat.member_id, member_assignment=encode_assignment(seat.assigned))
                for seat in self.group.seats.values()
            )
            known = blank(row, group_id="g", group_state=self.group.state.value, protocol_type="consumer",
                          protocol_data=self.group.assignor or "", members=members)  # fmt: skip
            return blank_response(asked.api, asked.version, groups=(known,))
        return blank_response(
            asked.api, asked.version, groups=(blank(row, group_id="g", error_code=_NO_CLASSIC_GROUP),)
        )


def joined_message(version: int, told: JoinAnswer) -> Any:
    """JoinGroup's answer, as kio's message of that version."""
    row = nested(RESPONSES[Api.JOIN_GROUP, version], "members")
    members = tuple(
        row(
            member_id=each.member_id, group_instance_id=each.instance_id,
            metadata=encode_subscription(told.assignor or "", each.subscription),
        )
        for each in told.members
    )  # fmt: skip
    return blank_response(
        Api.JOIN_GROUP, version, error_code=told.error, generation_id=told.generation, member_id=told.member_id,
        leader=told.leader, protocol_type=told.protocol_type, protocol_name=told.assignor,
        skip_assignment=told.skip_assignment, members=members,
    )  # fmt: skip


def synced_message(version: int, told: SyncAnswer) -> Any:
    """SyncGroup's answer."""
    return blank_response(
        Api.SYNC_GROUP, version, error_code=told.error, protocol_type=told.protocol_type,
        protocol_name=told.assignor, assignment=encode_assignment(told.partitions),
    )  # fmt: skip


def heard_message(version: int, told: ConsumerHeartbeatAnswer) -> Any:
    """ConsumerGroupHeartbeat's answer."""
    assignment = None
    if told.assignment is not None:
        whole = nested(RESPONSES[Api.CONSUMER_GROUP_HEARTBEAT, version], "assignment")
        row = nested(whole, "topic_partitions")
        assignment = blank(whole, topic_partitions=tuple(row(topic_id=i, partitions=n) for i, n in told.assignment))
    return blank_response(
        Api.CONSUMER_GROUP_HEARTBEAT, version, error_code=told.error, member_epoch=told.epoch, assignment=assignment
    )


def _once(answer: asyncio.Future[Any]) -> Callable[[Any], None]:
    def told(what: Any) -> None:
        if not answer.done():
            answer.set_result(what)

    return told


def _now() -> float:
    return asyncio.get_running_loop().time()


def _no_epoch_known(asked: Asked) -> Reply:
    """No log is ever cut."""
    topic_row = nested(RESPONSES[asked.api, asked.version], "topics")
    row = nested(topic_row, "partitions")
    topics = tuple(
        topic_row(topic=topic.topic, partitions=tuple(blank(row, partition=at.partition) for at in topic.partitions))
        for topic in asked.message.topics
    )
    return blank_response(asked.api, asked.version, topics=topics)
