"""Spoilt answers through connection and driver: the member says why it looks for the coordinator anew, and is settled
again as soon as the answers make sense."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from random import Random

import pytest

from kunicorn.group.classic import ClassicMember
from kunicorn.wire.schemas import RESPONSES
from kunicorn.wire.versions import Api
from tests.contract.conformance.coordinator.test_drivers import Stage, both_protocols, play
from tests.contract.conformance.endurance import came_through
from tests.fakes.driver import Driver, until
from tests.unit.wire.broker import Asked, Reply
from tests.unit.wire.messages import blank_response, response_frame, sample
from tests.unit.wire.mutations import spoilt

FEW, MANY = 6, 1_000
IN_A_ROW = 6
"""Spoilt answers, before the member gets a sensible one."""
PATIENCE = 20.0
"""Seconds of the turned clock in which an answer is asked for again; after that somebody has to give a reason."""
GIVEN_UP = 50
"""Times that somebody may give a reason in vain."""
MOST_MEMORY = 64 * 1024
"""KiB that the process may grow by."""

OF_EVERYBODY = (Api.API_VERSIONS, Api.METADATA, Api.FIND_COORDINATOR, Api.OFFSET_FETCH, Api.OFFSET_COMMIT,
                Api.LIST_OFFSETS)  # fmt: skip
OF_ONE_PROTOCOL = {
    "classic": (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT),
    "consumer": (Api.CONSUMER_GROUP_HEARTBEAT, Api.DESCRIBE_CONFIGS, Api.DESCRIBE_GROUPS),
}
ASKED = [(protocol, api) for protocol, own in OF_ONE_PROTOCOL.items() for api in (*own, *OF_EVERYBODY)]
every_answer = pytest.mark.parametrize(
    ("protocol", "api"), ASKED, ids=[f"{protocol}-{api.title}" for protocol, api in ASKED]
)

NOT_COORDINATOR, ILLEGAL_GENERATION, FENCED_MEMBER_EPOCH = 16, 22, 110


class Weather:
    """One member whose answers to one kind of request are spoilt."""

    def __init__(self, stage: Stage, protocol: str, api: Api, rng: Random) -> None:
        self.stage, self.protocol, self.api, self.rng = stage, protocol, api, rng
        self.sent = 0
        self.member: Driver

    async def blow(self, count: int) -> None:
        """Spoil so many answers; afterwards the member settles by itself, unless one told it to give up."""
        self.member = await self.stage.start(group_protocol=self.protocol)
        await self.stage.settled(self.member)
        planned, in_vain = self.stage.broker.planned, 0
        while self.sent < count:
            before = self.sent
            await self._renew_if_over()
            self.stage.broker.asked.clear()
            self.stage.broker.plan(self.api, *[self._spoil] * IN_A_ROW)
            await ASK_AGAIN[self.api](self)
            with suppress(AssertionError):
                await until(lambda: not planned.get(self.api) or self._over(), PATIENCE, every=0.5)
            planned.clear()
            in_vain = 0 if self.sent > before else in_vain + 1
            assert in_vain < GIVEN_UP, f"{self.api.title} is not asked"
        await self._renew_if_over()
        # Spoilt answers may have said that we are over quota, each for a minute at most.
        await self.stage.settled(self.member, within=900.0)

    async def _renew_if_over(self) -> None:
        """An answer that still can be read may say anything: also that this member is refused for good."""
        if self._over():
            self.stage.broker.planned.clear()
            await self.restart()
            await self.stage.settled(self.member, within=900.0)

    async def _vanish(self) -> None:
        self.stage.members.remove(self.member)
        await self.member.vanish()

    def _over(self) -> bool:
        member = self.member
        fell_back = self.protocol == "consumer" and self._classic
        return member.source.over or bool(member.fatal) or (fell_back and self.api in OF_ONE_PROTOCOL["consumer"])

    def _spoil(self, asked: Asked) -> Reply | Awaitable[Reply]:
        """What the broker would have said, or anything at all, with a few bytes changed."""
        self.sent += 1
        if self.api in OF_EVERYBODY and self.rng.random() < 0.5:
            return self._spoilt_truth(asked)
        message = sample(RESPONSES[asked.api, asked.version], self.rng)
        return spoilt(response_frame(asked.correlation_id, message), self.rng)

    async def _spoilt_truth(self, asked: Asked) -> Reply:
        answer = self.stage.broker.answers[asked.api](asked)
        truth = await answer if isawaitable(answer) else answer
        return spoilt(response_frame(asked.correlation_id, truth), self.rng)

    # -- reasons to ask again

    async def wait(self) -> None:
        """It is asked all the time."""

    async def reset(self) -> None:
        """All connections end."""
        self.stage.broker.hang_up()

    async def restart(self) -> None:
        """It is asked at the start, until it is answered."""
        await self._vanish()
        self.member = await self.stage.start(group_protocol=self.protocol)

    async def lose_coordinator(self) -> None:
        """It is elsewhere."""
        self._refuse_heartbeat(NOT_COORDINATOR)

    async def doubt(self) -> None:
        """The metadata may be old."""
        self.member.topics.doubt()

    async def evict(self) -> None:
        """The coordinator lets go of the member, and the group has committed nothing: it has to find its starts."""
        self.stage.broker.committed.clear()
        self._refuse_heartbeat(ILLEGAL_GENERATION if self._classic else FENCED_MEMBER_EPOCH)

    def _refuse_heartbeat(self, error: int) -> None:
        api = Api.HEARTBEAT if self._classic else Api.CONSUMER_GROUP_HEARTBEAT
        self.stage.broker.plan(api, lambda asked: blank_response(asked.api, asked.version, error_code=error))

    @property
    def _classic(self) -> bool:
        return isinstance(self.member.member, ClassicMember)


ASK_AGAIN: Mapping[Api, Callable[[Weather], Awaitable[None]]] = {
    Api.API_VERSIONS: Weather.reset,
    Api.METADATA: Weather.doubt,
    Api.FIND_COORDINATOR: Weather.lose_coordinator,
    Api.OFFSET_FETCH: Weather.evict,
    Api.OFFSET_COMMIT: Weather.evict,
    Api.LIST_OFFSETS: Weather.evict,
    Api.JOIN_GROUP: Weather.evict,
    Api.SYNC_GROUP: Weather.evict,
    Api.HEARTBEAT: Weather.wait,
    Api.CONSUMER_GROUP_HEARTBEAT: Weather.wait,
    Api.DESCRIBE_CONFIGS: Weather.restart,
    Api.DESCRIBE_GROUPS: Weather.restart,
}


def outlive(protocol: str, api: Api, count: int) -> None:
    async def story(stage: Stage) -> None:
        await Weather(stage, protocol, api, Random(f"spoilt {protocol} {api}")).blow(count)

    play(protocol, story)


@every_answer
def test_a_member_outlives_spoilt_answers_of_every_kind(protocol: str, api: Api) -> None:
    outlive(protocol, api, FEW)


@pytest.mark.long
@pytest.mark.timeout(1800)
@every_answer
def test_a_member_outlives_a_thousand_spoilt_answers_of_every_kind(protocol: str, api: Api) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outlive(protocol, api, MANY)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY
    came_through(f"spoilt answers to a member, {protocol} protocol", api.title, MANY)


@both_protocols
def test_an_answer_that_cannot_be_read_closes_the_coordinators_connections_and_the_reason_is_logged(
    protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def story(stage: Stage) -> None:
        member = await stage.start(group_protocol=protocol)
        await stage.settled(member)
        api = Api.HEARTBEAT if protocol == "classic" else Api.CONSUMER_GROUP_HEARTBEAT
        connections = stage.broker.connections
        stage.broker.plan(api, lambda asked: asked.correlation_id.to_bytes(4, "big") + b"\0\0")
        await until(lambda: stage.broker.connections > connections)
        await stage.settled(member)

    play(protocol, story)
    said = capfd.readouterr().err
    assert "the coordinator is looked up anew: the answer to" in said
    assert "cannot be read: BufferUnderflow" in said
