"""A modelled coordinator, and members that are ours: drivers, connections, codec; real frames, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import pytest

from kunicorn.kafka.versions import Api
from kunicorn.positions import TopicPartition
from tests.fakes.broker import Asked
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.coordinator_broker import CoordinatorBroker
from tests.fakes.driver import Driver, until
from tests.fakes.simulation import TOPIC, TOPIC_ID
from tests.fakes.virtual_loop import Teller, in_virtual_time, with_scene

PARTITIONS = 4
SESSION = 10.0
PROTOCOLS = ("classic", "consumer")
both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
Story = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A broker that coordinates, and members of its group."""

    def __init__(self, broker: CoordinatorBroker) -> None:
        self.broker = broker
        self.members: list[Driver] = []

    async def start(self, **group: Any) -> Driver:
        """One more member."""
        member = Driver(self.broker, **group)
        self.members.append(member)
        await member.start()
        return member

    async def settled(self, *members: Driver, within: float = 120.0) -> None:
        """Until these share all there is, and none of them waits for anything."""

        def shared() -> bool:
            everything = {TopicPartition(TOPIC, number) for number in range(PARTITIONS)}
            owned = [tp for member in members for tp in member.owned]
            return all(m.stable for m in members) and sorted(owned) == sorted(everything)

        await until(shared, within)

    def asked(self, api: Api) -> list[Any]:
        """The requests of that kind, so far."""
        return [asked.message for asked in self.broker.asked if asked.api == api]


@asynccontextmanager
async def coordinated(protocol: str) -> AsyncIterator[Stage]:
    group = ClassicGroup() if protocol == "classic" else ConsumerGroup(TOPIC, TOPIC_ID, PARTITIONS, SESSION)
    async with CoordinatorBroker(1, group) as broker:
        broker.show(topics={TOPIC: PARTITIONS})
        keeping = asyncio.create_task(broker.keep_time())
        stage = Stage(broker)
        try:
            yield stage
        finally:
            keeping.cancel()
            await asyncio.gather(*(member.vanish() for member in stage.members))
        assert not [error for member in stage.members for error in member.fatal]


def play(protocol: str, story: Story, *, sockets: bool = True) -> None:
    async def whole() -> None:
        async with coordinated(protocol) as stage:
            await story(stage)

    in_virtual_time(whole, sockets=sockets)


told: Teller[Stage] = with_scene(lambda story, arguments: play(arguments.get("protocol", "classic"), story))
"""Tests of a coordinated group, which has the classic protocol where the test has none as a parameter."""


async def truth(stage: Stage, asked: Asked) -> Any:
    answer = stage.broker.answers[asked.api](asked)
    return await answer if isawaitable(answer) else answer


def heartbeats(protocol: str) -> Api:
    return Api.HEARTBEAT if protocol == "classic" else Api.CONSUMER_GROUP_HEARTBEAT
