"""Answers that are odd in one way each, through connection and driver: none costs a member its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from kunicorn.kafka.versions import Api
from kunicorn.observe.catalogue import REBALANCES
from tests.contract.conformance.coordinator.coordinated import (
    PARTITIONS,
    Stage,
    both_protocols,
    heartbeats,
    told,
    truth,
)
from tests.fakes.broker import Asked, Reply
from tests.fakes.driver import until
from tests.fakes.messages import response_frame
from tests.fakes.simulation import TOPIC

Odd = Callable[[bytes], bytes]
_ERROR = slice(9, 11)
"""Of a heartbeat's answer in either protocol: behind the correlation id, the header's tags and the throttle time."""

READABLE: dict[str, Odd] = {
    "a tag that nobody knows": lambda frame: frame[:-1] + b"\x01\x63\x02zz",
    "bytes behind it": lambda frame: frame + b"more",
    "an error that nobody knows": lambda frame: frame[:9] + (999).to_bytes(2, "big") + frame[_ERROR.stop :],
}
UNREADABLE: dict[str, Odd] = {
    "the next request's answer first": lambda frame: (
        (int.from_bytes(frame[:4], "big") + 1).to_bytes(4, "big") + frame[4:]
    ),
    "a count of billions": lambda frame: frame[:9] + b"\xff\xff\xff\xff\x0f",
    "nothing behind the header": lambda frame: frame[:5],
}


def odd(stage: Stage, make: Odd) -> Callable[[Asked], Awaitable[Reply]]:
    """What the broker says by itself, made odd."""

    async def scripted(asked: Asked) -> Reply:
        return make(response_frame(asked.correlation_id, await truth(stage, asked)))

    return scripted


def without(stage: Stage, **fields: Any) -> Callable[[Asked], Awaitable[Reply]]:
    """What the broker says by itself, with these fields instead."""

    async def scripted(asked: Asked) -> Reply:
        return replace(await truth(stage, asked), **fields)

    return scripted


async def undisturbed(stage: Stage, protocol: str, make: Odd) -> int:
    """Three odd answers to heartbeats; the member stays what it is. How many connections they cost."""
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    group = stage.broker.group
    assert group is not None
    before, connections = (group.rebalances, member.member.generation), stage.broker.connections
    stage.broker.plan(heartbeats(protocol), *[odd(stage, make)] * 3)
    await until(lambda: not stage.broker.planned[heartbeats(protocol)])
    await stage.settled(member)
    assert (group.rebalances, member.member.generation, member.lost) == (*before, 0)
    return stage.broker.connections - connections


@both_protocols
@pytest.mark.parametrize("oddity", READABLE)
@told
async def test_what_can_be_read_is_read_and_the_connection_stays(stage: Stage, protocol: str, oddity: str) -> None:
    assert await undisturbed(stage, protocol, READABLE[oddity]) == 0


@both_protocols
@pytest.mark.parametrize("oddity", UNREADABLE)
@told
async def test_what_cannot_be_read_costs_a_look_up_and_nothing_else(stage: Stage, protocol: str, oddity: str) -> None:
    assert await undisturbed(stage, protocol, UNREADABLE[oddity]) > 0


@pytest.mark.parametrize("topics", [TOPIC, f"^{TOPIC}"], ids=["by name", "by pattern"])
@pytest.mark.parametrize("fields", [{"brokers": None, "topics": None}, {"brokers": ()}, {"brokers": (), "topics": ()}])
@told
async def test_metadata_without_brokers_or_topics_takes_nothing_away(
    stage: Stage, fields: dict[str, Any], topics: str
) -> None:
    member = await stage.start(topics=[topics])
    await stage.settled(member)
    stage.broker.plan(Api.METADATA, *[without(stage, **fields)] * 3)
    member.topics.doubt()
    await until(lambda: len(stage.broker.planned[Api.METADATA]) < 3)
    stage.broker.planned.clear()
    member.topics.doubt()
    await stage.settled(member)
    assert (len(member.owned), member.lost) == (PARTITIONS, 0)


@both_protocols
@pytest.mark.parametrize(
    ("api", "array"),
    [
        (Api.FIND_COORDINATOR, "coordinators"),
        (Api.OFFSET_FETCH, "groups"),
        (Api.LIST_OFFSETS, "topics"),
        (Api.OFFSET_COMMIT, "topics"),
    ],
    ids=lambda each: each.title if isinstance(each, Api) else "",
)
@told
async def test_a_null_array_is_an_answer_that_says_nothing_and_the_question_is_asked_again(
    stage: Stage, protocol: str, api: Api, array: str
) -> None:
    stage.broker.plan(api, *[without(stage, **{array: None})] * 3)
    member = await stage.start(group_protocol=protocol)
    await stage.settled(member)
    await until(lambda: len(stage.broker.committed) == PARTITIONS)
    assert len(stage.broker.planned[api]) < 3


@told
async def test_an_assignment_that_cannot_be_read_is_asked_for_with_patience_over_the_same_connection_and_told_once(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.get_running_loop()
    stage.broker.plan(Api.SYNC_GROUP, *[without(stage, assignment=b"\0\0\0\0\0\5x")] * 6)
    member = await stage.start()
    await until(lambda: stage.asked(Api.SYNC_GROUP))
    began, connections, found = loop.time(), stage.broker.connections, len(stage.asked(Api.FIND_COORDINATOR))
    await stage.settled(member)
    assert len(stage.asked(Api.SYNC_GROUP)) == 7
    assert loop.time() - began > 2.0, "it was asked for again and again"
    assert stage.broker.connections - connections <= 2, "for offsets: the coordinator, and the leader of the log"
    assert (len(stage.asked(Api.FIND_COORDINATOR)), len(stage.asked(Api.JOIN_GROUP))) == (found, 2)
    assert capfd.readouterr().err.count("cannot be read") == 1


@told
async def test_a_member_that_cannot_read_its_assignment_leaves_when_told_to(stage: Stage) -> None:
    stage.broker.plan(Api.SYNC_GROUP, *[without(stage, assignment=b"\0\0\0\0\0\5x")] * 99)
    member = await stage.start()
    await until(lambda: len(stage.asked(Api.SYNC_GROUP)) == 3)
    member.source.leave("SIGTERM")
    await until(lambda: member.source.over, 10)


@told
async def test_a_plan_that_the_coordinator_cannot_store_is_made_again_with_patience_and_told_with_its_size(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = without(stage, error_code=KioErrorCode.unknown_server_error)
    stage.broker.planned[Api.SYNC_GROUP] = [refused] * 1000
    member = await stage.start()
    await until(lambda: stage.asked(Api.SYNC_GROUP))
    await asyncio.sleep(25)
    assert len(stage.asked(Api.JOIN_GROUP)) < 40
    told = [line for line in capfd.readouterr().err.splitlines() if "SyncGroup was answered with" in line]
    warnings = [line for line in told if "max.message.bytes of that topic" in line]
    assert len(warnings) == 3, "every ten seconds"
    assert "UNKNOWN_SERVER_ERROR (-1): see the log of the broker that answered" in warnings[0]
    assert "the plan has 38 bytes, for 1 members" in warnings[0]
    stage.broker.planned.clear()
    await stage.settled(member)
    [family] = member.metrics._counters[REBALANCES.name].collect()
    counted = {each.labels["result"]: each.value for each in family.samples if each.name.endswith("_total")}
    assert counted["completed"] == 1
    assert counted["failed"] >= 20
