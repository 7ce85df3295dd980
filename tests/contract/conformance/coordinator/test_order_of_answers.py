"""Answers in another order than that of their requests, twice, unasked for, or when nobody waits any more: none is
taken for another's, the connection that brought it ends, and the member keeps its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import pytest

from kunicorn.errors import PeerError
from kunicorn.kafka.versions import Api
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.membership.requests import ConsumerRequests
from tests.contract.conformance.coordinator.coordinated import (
    PARTITIONS,
    Stage,
    both_protocols,
    heartbeats,
    play,
    truth,
)
from tests.contract.conformance.coordinator.told import Told
from tests.contract.conformance.coordinator.weather import ASK_AGAIN, Weather
from tests.fakes.broker import Asked, Reply, Silence
from tests.fakes.coordinator_broker import START
from tests.fakes.driver import until
from tests.fakes.messages import blank_response, response_frame
from tests.fakes.simulation import TOPIC

CLOSED = "a connection is closed, and another one takes its place"
MISPLACED = "which is not the next to be answered"
LATE = 35.0
"""Seconds; no request is waited for longer, but for a parked JoinGroup or SyncGroup."""
Story = Callable[["Swapped"], Awaitable[None]]


class Swapped:
    """One member; the answers to its next requests of some kinds wait for one another, and go out in another order."""

    def __init__(self, weather: Weather) -> None:
        self.weather, self.stage, self.member = weather, weather.stage, weather.member
        self.held: list[Asked] = []
        self._frames: list[bytes] = []
        self._all = 0

    def hold(self, *apis: Api) -> None:
        """The next request of each of these; an API that is named twice, the next two."""
        self._all = len(apis)
        for api in apis:
            self.stage.broker.plan(api, self._keep)

    async def _keep(self, asked: Asked) -> Reply:
        self.held.append(asked)
        self._frames.append(response_frame(asked.correlation_id, await truth(self.stage, asked)))
        if len(self.held) == self._all:
            for each, frame in [*zip(self.held, self._frames, strict=True)][::-1]:
                self.stage.broker.send(frame, each.connection)
        return Silence

    async def over(self) -> None:
        """They have gone out, over one connection, and it has ended."""
        await until(lambda: len(self.held) == self._all, 60.0)
        (connection,) = {asked.connection for asked in self.held}
        await until(lambda: connection not in self.stage.broker.open)

    def again(self, api: Api) -> int:
        """How often that was asked since."""
        asked = self.stage.broker.asked
        return sum(each.api == api for each in asked[asked.index(self.held[-1]) + 1 :])


async def control_of_a_classic_member(swapped: Swapped) -> None:
    swapped.stage.broker.plan(Api.HEARTBEAT, blank_response(Api.HEARTBEAT, 4, error_code=27))
    swapped.hold(Api.SYNC_GROUP, Api.HEARTBEAT)
    await swapped.over()
    joins = len(swapped.stage.asked(Api.JOIN_GROUP))
    await until(lambda: swapped.again(Api.SYNC_GROUP) == 1 and swapped.again(Api.HEARTBEAT) > 0)
    assert len(swapped.stage.asked(Api.JOIN_GROUP)) == joins, "the assignment is asked for, not joined for"


async def control_of_a_consumer(swapped: Swapped) -> None:
    member = swapped.member
    swapped.hold(Api.DESCRIBE_CONFIGS, Api.CONSUMER_GROUP_HEARTBEAT)
    requests = ConsumerRequests(member.settings, member.connections, member.source.commits, member.metrics)
    assert await requests.session_timeout() is None
    await swapped.over()
    await until(lambda: swapped.again(Api.CONSUMER_GROUP_HEARTBEAT) > 0)
    await requests.session_timeout()
    assert swapped.again(Api.DESCRIBE_CONFIGS) == 1, "what was not answered is asked again with the next look-up"


async def offsets(swapped: Swapped) -> None:
    wanted, member = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)], swapped.member
    swapped.hold(Api.OFFSET_FETCH, Api.OFFSET_COMMIT)
    await swapped.weather.consume()
    with pytest.raises(PeerError, match=MISPLACED):
        await member.source.look_up(wanted)
    await swapped.over()
    found = await member.source.look_up(wanted)
    assert {start.offset for start in found.committed.values()} == {START + 1}, "the broker had carried it out"
    await until(lambda: swapped.again(Api.OFFSET_COMMIT) > 0)


async def metadata(swapped: Swapped) -> None:
    swapped.hold(Api.METADATA, Api.FIND_COORDINATOR)
    await swapped.weather.doubt()
    await until(lambda: bool(swapped.held))
    await swapped.weather.lose_coordinator()
    await swapped.over()
    await until(lambda: swapped.again(Api.METADATA) == 1 and swapped.again(Api.FIND_COORDINATOR) > 0)


async def ends_of_logs(swapped: Swapped) -> None:
    """Where the logs begin and where they end, both at once: one taken for the other would skip the whole log."""
    swapped.hold(Api.LIST_OFFSETS, Api.LIST_OFFSETS)
    await swapped.weather.fall_out_of_range()
    await swapped.over()
    await until(lambda: swapped.again(Api.LIST_OFFSETS) >= 2)
    (worker,) = swapped.member.workers
    await until(lambda: len(worker.positions) == PARTITIONS)
    assert set(worker.positions.values()) == {START}


CONNECTIONS: Sequence[tuple[str, Story]] = [
    ("classic", control_of_a_classic_member),
    ("consumer", control_of_a_consumer),
    ("classic", offsets),
    ("consumer", offsets),
    ("classic", metadata),
    ("consumer", metadata),
    ("classic", ends_of_logs),
    ("consumer", ends_of_logs),
]
ANSWERED: Mapping[str, Sequence[Api]] = {
    "classic": (Api.HEARTBEAT, Api.OFFSET_FETCH, Api.OFFSET_COMMIT, Api.METADATA, Api.FIND_COORDINATOR,
                Api.LIST_OFFSETS),
    "consumer": (Api.CONSUMER_GROUP_HEARTBEAT, Api.OFFSET_COMMIT, Api.METADATA, Api.FIND_COORDINATOR,
                 Api.LIST_OFFSETS),
}  # fmt: skip
REASONS = {
    **ASK_AGAIN,
    Api.METADATA: Weather.doubt,
    Api.OFFSET_FETCH: Weather.evict,
    Api.LIST_OFFSETS: Weather.ask_lag,
}
every_answer = pytest.mark.parametrize(
    ("protocol", "api"),
    [(protocol, api) for protocol, apis in ANSWERED.items() for api in apis],
    ids=lambda each: each.title if isinstance(each, Api) else each,
)


def keeping_its_place(protocol: str, api: Api, story: Callable[[Weather], Awaitable[None]]) -> None:
    """A member through that; it is the same member of the same group afterwards, and has lost nothing."""

    async def whole(stage: Stage) -> None:
        weather = Weather(stage, protocol, api, Random(1), Told())
        await weather.begin()
        member = weather.member
        await until(lambda: len(stage.broker.committed) == PARTITIONS)
        who = member.member.member_id
        await story(weather)
        stage.broker.planned.clear()
        await stage.settled(member)
        # Start offsets are only asked for where partitions are new.
        lost = PARTITIONS if api is Api.OFFSET_FETCH else 0
        assert (member.member.member_id, member.lost) == (who, lost)

    play(protocol, whole)


@pytest.mark.parametrize(
    ("protocol", "story"), CONNECTIONS, ids=[f"{protocol}-{story.__name__}" for protocol, story in CONNECTIONS]
)
def test_answers_in_another_order_are_nobodys_and_all_of_them_are_asked_for_again(
    protocol: str, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    # A worker plays along: offsets are there to be committed, and to fall out of range.
    keeping_its_place(protocol, Api.OFFSET_COMMIT, lambda weather: story(Swapped(weather)))
    assert any(CLOSED in line and MISPLACED in line for line in caplog.messages)


@every_answer
def test_an_answer_that_comes_twice_ends_the_connection_and_costs_nothing_else(
    protocol: str, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(weather: Weather) -> None:
        twice: list[int] = []

        async def send(asked: Asked) -> Reply:
            frame = response_frame(asked.correlation_id, await truth(weather.stage, asked))
            weather.stage.broker.send(frame, asked.connection)
            twice.append(asked.connection)
            return frame

        weather.stage.broker.plan(api, send)
        await asked_for(weather, twice)
        await until(lambda: twice[0] not in weather.stage.broker.open)

    keeping_its_place(protocol, api, story)
    assert any(CLOSED in line and MISPLACED in line for line in caplog.messages)


@every_answer
def test_an_answer_that_nobody_waits_for_any_more_is_taken_for_no_other(protocol: str, api: Api) -> None:
    async def story(weather: Weather) -> None:
        late: list[int] = []

        async def send(asked: Asked) -> Reply:
            answer = await truth(weather.stage, asked)
            late.append(asked.connection)
            await asyncio.sleep(LATE)
            late.append(asked.connection)
            return answer

        weather.stage.broker.plan(api, send)
        before = len(weather.stage.asked(api))
        await asked_for(weather, late)
        await until(lambda: len(weather.stage.asked(api)) > before + 1, LATE - 1)
        assert len(late) == 1, "it was asked again before that answer came"
        await until(lambda: len(late) == 2)
        standing = weather.stage.broker.open - {late[0]}
        await asyncio.sleep(1.0)
        assert standing <= weather.stage.broker.open

    keeping_its_place(protocol, api, story)


@both_protocols
def test_answers_that_nobody_asked_for_end_every_connection_and_cost_nothing_else(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(weather: Weather) -> None:
        broker = weather.stage.broker
        await weather.ask_lag()
        before = broker.open
        broker.send(response_frame(7, blank_response(Api.HEARTBEAT, 4)))
        await until(lambda: not before & broker.open)
        assert sum(CLOSED in line for line in caplog.messages) == len(before) >= 4
        asked = len(weather.stage.asked(heartbeats(protocol)))
        await until(lambda: len(weather.stage.asked(heartbeats(protocol))) > asked + 3)
        await weather.ask_lag()

    keeping_its_place(protocol, Api.OFFSET_COMMIT, story)


async def asked_for(weather: Weather, came: Sequence[int]) -> None:
    """Until it was asked, for whatever reason that takes."""
    for _ in range(20):
        await REASONS[weather.api](weather)
        try:
            await until(lambda: bool(came), 2.0)
        except AssertionError:
            continue
        return
    pytest.fail(f"{weather.api.title} is not asked")
