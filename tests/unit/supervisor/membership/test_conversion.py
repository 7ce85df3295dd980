"""A classic group that a member with the consumer protocol finds: what joining it would do there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn.errors import ConfigError
from kunicorn.group import events as ev
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.versions import RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.membership.requests import ConsumerRequests, LookUp
from tests.fakes.broker import Asked, FakeBroker, Reply, cluster_of
from tests.fakes.complete_settings import settings_of
from tests.fakes.coordinator_broker import CoordinatorBroker
from tests.fakes.messages import blank, blank_response, nested

SETTINGS = settings_of(group={"group_protocol": "consumer"})


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    """The coordinator of a classic group that has only offsets left; it speaks the consumer protocol."""
    async with CoordinatorBroker(1, None) as broker:
        broker.show(topics={"orders": 1})
        broker.script[Api.DESCRIBE_GROUPS] = _described
        yield _refusing(broker, ErrorCode.GROUP_ID_NOT_FOUND)


def _described(asked: Asked, error: int = 0) -> Reply:
    row = nested(RESPONSES[asked.api, asked.version], "groups")
    group = blank(row, group_id="g", group_state="Empty", protocol_type="consumer", error_code=error)
    return blank_response(asked.api, asked.version, groups=(group,))


def _refusing(broker: FakeBroker, error: int) -> FakeBroker:
    broker.script[Api.CONSUMER_GROUP_HEARTBEAT] = lambda asked: blank_response(
        asked.api, asked.version, error_code=error
    )
    return broker


@asynccontextmanager
async def looking_up(broker: FakeBroker) -> AsyncIterator[LookUp]:
    """A member's look-up of its coordinator before it joins."""
    cluster = cluster_of(broker)
    coordinator = Coordinator(cluster, "g")
    connections: Any = SimpleNamespace(coordinator=coordinator, topics=None)
    commits: Any = SimpleNamespace(pending=False)
    try:
        yield LookUp("g", coordinator, ConsumerRequests(SETTINGS, connections, commits, Metrics()))
        assert not coordinator.join_sent.is_set(), "asking is not joining"
    finally:
        await cluster.close()


async def test_a_classic_group_is_not_converted_where_nobody_asked_for_it(broker: FakeBroker) -> None:
    async with looking_up(broker) as look_up:
        with pytest.raises(ConfigError, match=r"allow_protocol_upgrade = true"):
            await look_up.find("consumer")
    (asked,) = (each.message for each in broker.asked if each.api is Api.CONSUMER_GROUP_HEARTBEAT)
    assert asked.member_epoch == -1, "that of a member that leaves converts nothing"


@pytest.mark.parametrize("offered", [False, True])
async def test_brokers_that_do_not_speak_the_protocol_convert_nothing_and_are_joined(
    broker: FakeBroker, offered: bool
) -> None:
    if not offered:
        del broker.versions[Api.CONSUMER_GROUP_HEARTBEAT]
    _refusing(broker, ErrorCode.UNSUPPORTED_VERSION)
    async with looking_up(broker) as look_up:
        assert isinstance(await look_up.find("consumer"), ev.CoordinatorFound)
        _refusing(broker, ErrorCode.GROUP_ID_NOT_FOUND)
        if offered:
            with pytest.raises(ConfigError):
                await look_up.find("consumer")


async def test_a_coordinator_that_moves_while_it_is_asked_is_looked_up_anew(broker: FakeBroker) -> None:
    _refusing(broker, ErrorCode.NOT_COORDINATOR)
    async with looking_up(broker) as look_up:
        refused = await look_up.find("consumer")
        assert isinstance(refused, ev.CoordinatorRefused)
        assert refused.error == ErrorCode.NOT_COORDINATOR


async def test_a_group_that_cannot_be_described_now_is_not_joined_before_it_is(broker: FakeBroker) -> None:
    broker.script[Api.DESCRIBE_GROUPS] = lambda asked: _described(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
    async with looking_up(broker) as look_up:
        refused = await look_up.find("consumer")
        assert isinstance(refused, ev.CoordinatorRefused)
        assert "whether it is a classic one is not told: UNKNOWN_SERVER_ERROR (-1)" in refused.why
        broker.script[Api.DESCRIBE_GROUPS] = lambda asked: _described(asked, ErrorCode.GROUP_ID_NOT_FOUND)
        assert isinstance(await look_up.find("consumer"), ev.CoordinatorFound)
