"""Spoilt answers through connection and driver: the member says why it looks for the coordinator anew, and is settled
again as soon as the answers make sense."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kunicorn.group.classic import ClassicMember
from kunicorn.wire.versions import Api
from tests.contract.conformance.coordinator.test_drivers import Stage, both_protocols, play
from tests.contract.conformance.endurance import came_through
from tests.fakes.driver import Driver, until
from tests.unit.wire.broker import Asked, Reply
from tests.unit.wire.mutations import mutations

SPOILT_IN_A_ROW, SPOILT_AT_THE_START = 6, 3
AT_THE_START = (Api.FIND_COORDINATOR, Api.OFFSET_FETCH, Api.LIST_OFFSETS, Api.OFFSET_COMMIT)
ANYWHERE = (Api.METADATA, Api.FIND_COORDINATOR, Api.OFFSET_FETCH, Api.OFFSET_COMMIT, Api.LIST_OFFSETS)
OF_A_MEMBER = {
    "classic": (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT),
    "consumer": (Api.CONSUMER_GROUP_HEARTBEAT, Api.DESCRIBE_CONFIGS),
}


def spoiler(rng: Random, sent: Counter[Api]) -> Reply:
    """A script that spoils what it answers, and counts that."""

    def spoilt(asked: Asked) -> Reply:
        sent[asked.api] += 1
        frames = dict(mutations(asked.api, 20, rng))
        frame = frames.get(asked.version, b"")
        return asked.correlation_id.to_bytes(4, "big") + frame[4:]

    return spoilt


async def survive(stage: Stage, member: Driver, apis: tuple[Api, ...], rng: Random) -> Counter[Api]:
    """Spoil some answers of each of these; afterwards the member settles by itself, unless one told it to fail.
    How many were spoilt."""
    sent: Counter[Api] = Counter()
    for api in apis:
        stage.broker.plan(api, *[spoiler(rng, sent)] * SPOILT_IN_A_ROW)
        if api is Api.METADATA:
            member.topics.doubt()
        await until(
            lambda api=api: not stage.broker.planned[api] or member.source.over or _asks_no_more(member, api), 900.0
        )
        if member.source.over:
            return sent
    # Spoilt answers may have said that we are over quota, each for a minute at most.
    await stage.settled(member, within=900.0)
    return sent


def _asks_no_more(member: Driver, api: Api) -> bool:
    """What is asked only now and then goes on with the next kind while its spoilt answers wait.

    The first answer of all may say, among other things, that brokers do not speak the consumer protocol: the member
    goes on as a classic one.
    """
    classic = isinstance(member.member, ClassicMember)
    return member.stable and api is not (Api.HEARTBEAT if classic else Api.CONSUMER_GROUP_HEARTBEAT)


def outlive(protocol: str, seed: int) -> Counter[Api]:
    sent: Counter[Api] = Counter()

    async def story(stage: Stage) -> None:
        rng = Random(seed)
        # These are asked at the start, and seldom later.
        for api in AT_THE_START:
            stage.broker.plan(api, *[spoiler(rng, sent)] * SPOILT_AT_THE_START)
        member = await stage.start(group_protocol=protocol)
        sent.update(await survive(stage, member, (*OF_A_MEMBER[protocol], *ANYWHERE), rng))
        # An answer that still can be read may say anything: also that the group refuses this member for good.
        member.fatal.clear()

    play(protocol, story)
    return sent


@both_protocols
@pytest.mark.parametrize("seed", [*range(6), 73])
def test_a_member_outlives_spoilt_answers_of_every_kind(protocol: str, seed: int) -> None:
    outlive(protocol, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@both_protocols
def test_members_outlive_spoilt_answers_of_every_kind_a_thousand_times(protocol: str) -> None:
    sent: Counter[Api] = Counter()
    for seed in range(1_000):
        sent += outlive(protocol, seed)
    came_through("members that got spoilt answers and settled", f"{protocol} protocol", 1_000)
    for api, times in sent.items():
        came_through(f"spoilt answers to members, {protocol} protocol", api.title, times)


@both_protocols
def test_an_answer_that_cannot_be_read_closes_the_coordinators_connections_and_the_reason_is_logged(
    protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story(stage: Stage) -> None:
        member = await stage.start(group_protocol=protocol)
        await stage.settled(member)
        api = OF_A_MEMBER[protocol][-1] if protocol == "classic" else Api.CONSUMER_GROUP_HEARTBEAT
        connections = stage.broker.connections
        stage.broker.plan(api, lambda asked: asked.correlation_id.to_bytes(4, "big") + b"\0\0")
        await until(lambda: stage.broker.connections > connections)
        await stage.settled(member)

    play(protocol, story)
    said = capfd.readouterr().err
    assert "the coordinator is looked up anew: the answer to" in said
    assert "cannot be read: BufferUnderflow" in said
