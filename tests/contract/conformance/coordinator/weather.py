"""One member whose answers to one kind of request are spoilt, and what has to become of each such answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from random import Random
from typing import Any

from kunicorn.errors import ConfigError, FatalGroupError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.classic import ClassicMember
from kunicorn.kafka.auth import Sasl
from kunicorn.kafka.versions import Api
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.membership.requests import ClassicRequests, ConsumerRequests
from kunicorn.supervisor.partitions import lag
from tests.contract.conformance.coordinator.coordinated import PARTITIONS, Stage
from tests.contract.conformance.coordinator.told import Told
from tests.fakes.broker import Asked, Reply
from tests.fakes.driver import Driver, until
from tests.fakes.messages import blank_response, response_frame
from tests.fakes.mutations import Spoiler, spoilt_frame
from tests.fakes.requests import Leaver
from tests.fakes.simulation import TOPIC

IN_A_ROW = 50
"""Spoilt answers, before the member gets sensible ones only and has to settle."""
_PATIENCE = 20.0
"""Seconds of the turned clock in which an answer is asked for again; after that somebody has to give a reason."""
_IN_VAIN = 50
"""Times that somebody may give a reason in vain."""
_COMMITS_EVERY = 200
"""Milliseconds."""
_MOST_CONNECTIONS = 5
"""Of one member to one broker: metadata, control, offsets, ends of logs, and one that is being opened."""
_SELDOM, _AGAIN, _BETWEEN = 0.2, 20, 0.05
"""How many of a member's rare questions are asked for their own reason, which costs a whole start or a rebalance; how
often else, and how many seconds apart, so that heartbeats come in between."""
_SETTLED_WITHIN = 900.0
"""Spoilt answers may have said that we are over quota, each for a minute at most."""

OF_EVERYBODY = (
    Api.API_VERSIONS,
    Api.SASL_HANDSHAKE,
    Api.SASL_AUTHENTICATE,
    Api.METADATA,
    Api.FIND_COORDINATOR,
    Api.OFFSET_FETCH,
    Api.OFFSET_COMMIT,
    Api.LIST_OFFSETS,
    Api.OFFSET_FOR_LEADER_EPOCH,
)
OF_ONE_PROTOCOL: Mapping[str, tuple[Api, ...]] = {
    "classic": (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP),
    "consumer": (Api.CONSUMER_GROUP_HEARTBEAT, Api.DESCRIBE_CONFIGS, Api.DESCRIBE_GROUPS),
}
ASKED = [(protocol, api) for protocol, own in OF_ONE_PROTOCOL.items() for api in (*own, *OF_EVERYBODY)]
_LOGIN = (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE)
_BY_WORKERS = (Api.OFFSET_COMMIT, Api.OFFSET_FOR_LEADER_EPOCH)
_PASSWORD = Sasl("PLAIN", username="alice", password=lambda: "hunter2")
_NOT_COORDINATOR, _ILLEGAL_GENERATION, _REBALANCE_IN_PROGRESS, _FENCED_MEMBER_EPOCH = 16, 22, 27, 110


class Weather:
    """Caller: a story on that stage."""

    def __init__(self, stage: Stage, protocol: str, api: Api, rng: Random, told: Told) -> None:
        self.stage, self.protocol, self.api, self.rng, self.told = stage, protocol, api, rng, told
        self.sent = 0
        self.member: Driver
        self._spoiler = Spoiler(api, rng)

    async def blow(self, count: int) -> None:
        """Spoil so many answers. After each row of them the member settles by itself, unless one told it to give up."""
        await self.begin()
        while self.sent < count:
            await self._row(min(IN_A_ROW, count - self.sent))
            await self._renew_if_over()
            await self.stage.settled(self.member, within=_SETTLED_WITHIN)
            await self._check()

    async def _row(self, spoilt_ones: int) -> None:
        broker, in_vain = self.stage.broker, 0
        broker.asked.clear()
        broker.plan(self.api, *[self._spoil] * spoilt_ones)
        while broker.planned.get(self.api):
            await self._renew_if_over()
            in_vain = 0 if await self._asked_again(self.sent) else in_vain + 1
            assert in_vain < _IN_VAIN, f"{self.api.title} is not asked"

    async def _asked_again(self, before: int) -> bool:
        await ASK_AGAIN[self.api](self)
        with suppress(AssertionError):
            await until(lambda: self.sent > before or self._over(), _PATIENCE, every=0.25)
        return self.sent > before

    async def _check(self) -> None:
        """Whatever could not be read has ended its connection, and was told."""
        assert not self.told.owed, f"not logged: {list(self.told.owed)}"
        assert not self.told.bugs, self.told.bugs
        await until(lambda: len(self.stage.broker.open) <= _MOST_CONNECTIONS)

    async def _renew_if_over(self) -> None:
        """An answer that still can be read may say anything: also that this member is refused for good."""
        if not self._over():
            return
        for end in self.member.fatal:
            if not isinstance(end, ConfigError | FatalGroupError):
                raise end
        planned, self.stage.broker.planned = self.stage.broker.planned, {}
        await self._vanish()
        await self.begin()
        self.stage.broker.planned.update(planned)

    async def begin(self) -> None:
        """One member, that has its place."""
        self.member = await self._enter()
        await self.stage.settled(self.member, within=_SETTLED_WITHIN)

    async def _enter(self) -> Driver:
        return await self.stage.start(
            group_protocol=self.protocol,
            workers=1 if self.api in _BY_WORKERS else 0,
            sasl=_PASSWORD if self.api in _LOGIN else None,
            commit_interval_ms=_COMMITS_EVERY,
        )

    async def _vanish(self) -> None:
        self.stage.members.remove(self.member)
        await self.member.vanish()
        group = self.stage.broker.group
        assert group is not None
        # Else its successor waits for the end of its session.
        group.leave(Leaver(self.member.member.member_id), asyncio.get_running_loop().time())

    def _over(self) -> bool:
        member = self.member
        fell_back = self.protocol == "consumer" and self._classic
        return member.source.over or bool(member.fatal) or (fell_back and self.api in OF_ONE_PROTOCOL["consumer"])

    # -- spoiling

    def _spoil(self, asked: Asked) -> Reply | Awaitable[Reply]:
        """What the broker would have said, or anything at all, with a few bytes changed."""
        if self.api in OF_EVERYBODY and self.rng.random() < 0.5:
            return self._spoilt_truth(asked)
        return self._sent(self._spoiler.answer(asked.version, asked.correlation_id))

    async def _spoilt_truth(self, asked: Asked) -> Reply:
        answer = self.stage.broker.answers[asked.api](asked)
        truth = await answer if isawaitable(answer) else answer
        return self._sent(spoilt_frame(response_frame(asked.correlation_id, truth), self.rng))

    def _sent(self, frame: bytes) -> Reply:
        self.sent += 1
        return frame

    # -- reasons to ask again

    async def wait(self) -> None:
        """It is asked all the time."""

    async def reset(self) -> None:
        """All connections end."""
        self.stage.broker.hang_up()

    async def restart(self) -> None:
        """Another member comes in its place."""
        await self._vanish()
        self.member = await self._enter()

    async def leave(self) -> None:
        """It is asked once, at the end."""
        self.member.source.leave("the test is over")

    async def check(self) -> None:
        """Whether the group is a classic one is asked at the start, until it is answered."""
        await self._beside(self.restart, lambda: self._requests().check_conversion())

    async def ask_session(self) -> None:
        """How long a session is, too."""
        await self._beside(self.restart, lambda: self._requests().session_timeout())

    async def take_leave(self) -> None:
        """So do others, in this member's name."""
        await self._beside(self.leave, lambda: self._requests().leave(ev.SendLeave(1, "another", "the test is over")))

    async def look_around(self) -> None:
        """The topics are to be known."""
        await self._beside(self.doubt, self.member.topics.refresh)

    async def look_up(self) -> None:
        """So is where each partition starts."""
        wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        await self._beside(self.evict, lambda: self.member.source.look_up(wanted))

    async def measure(self) -> None:
        """So is the lag."""
        await self._beside(self.evict, self.ask_lag)

    async def ask_lag(self) -> None:
        """Where the logs end."""
        await lag.refresh_ends(self.member.brokers, self.member.assignment, self.member.assignment.table)

    async def _beside(self, seldom: Callable[[], Awaitable[None]], ask: Callable[[], Awaitable[Any]]) -> None:
        """Now and then what makes a member ask; else the same question, again and again, beside its other ones."""
        with suppress(AssertionError):
            await until(lambda: self.member.stable or self._over(), _PATIENCE, every=0.1)
        if self.rng.random() < _SELDOM:
            await seldom()
            return
        for _ in range(_AGAIN):
            if self._over() or not self.stage.broker.planned.get(self.api):
                return
            with suppress(PeerError, ConfigError, FatalGroupError):
                await ask()
            await asyncio.sleep(_BETWEEN)

    def _requests(self) -> Any:
        kind = ClassicRequests if self._classic else ConsumerRequests
        member = self.member
        return kind(member.settings, member.connections, member.source.commits, member.metrics)

    async def lose_coordinator(self) -> None:
        """It is elsewhere."""
        self._refuse_heartbeat(_NOT_COORDINATOR)

    async def doubt(self) -> None:
        """The metadata may be old."""
        self.member.topics.doubt()

    async def announce(self) -> None:
        """The group rebalances."""
        self._refuse_heartbeat(_REBALANCE_IN_PROGRESS)

    async def evict(self) -> None:
        """The coordinator lets go of the member, and the group has committed nothing: it has to find its starts."""
        self.stage.broker.committed.clear()
        self._refuse_heartbeat(_ILLEGAL_GENERATION if self._classic else _FENCED_MEMBER_EPOCH)

    async def consume(self) -> None:
        """Offsets are there to be committed."""
        for worker in self.member.workers:
            worker.go_on()

    async def fall_out_of_range(self) -> None:
        """The log was cut off where it is fetched: the end of the last epoch seen has to be found."""
        for worker in self.member.workers:
            worker.fall_out_of_range()

    def _refuse_heartbeat(self, error: int) -> None:
        api = Api.HEARTBEAT if self._classic else Api.CONSUMER_GROUP_HEARTBEAT
        if not self.stage.broker.planned.get(api):
            self.stage.broker.plan(api, lambda asked: blank_response(asked.api, asked.version, error_code=error))

    @property
    def _classic(self) -> bool:
        return isinstance(self.member.member, ClassicMember)


ASK_AGAIN: Mapping[Api, Callable[[Weather], Awaitable[None]]] = {
    Api.API_VERSIONS: Weather.reset,
    Api.SASL_HANDSHAKE: Weather.reset,
    Api.SASL_AUTHENTICATE: Weather.reset,
    Api.METADATA: Weather.look_around,
    Api.FIND_COORDINATOR: Weather.lose_coordinator,
    Api.OFFSET_FETCH: Weather.look_up,
    Api.OFFSET_COMMIT: Weather.consume,
    Api.LIST_OFFSETS: Weather.measure,
    Api.OFFSET_FOR_LEADER_EPOCH: Weather.fall_out_of_range,
    Api.JOIN_GROUP: Weather.announce,
    Api.SYNC_GROUP: Weather.announce,
    Api.HEARTBEAT: Weather.wait,
    Api.LEAVE_GROUP: Weather.take_leave,
    Api.CONSUMER_GROUP_HEARTBEAT: Weather.wait,
    Api.DESCRIBE_CONFIGS: Weather.ask_session,
    Api.DESCRIBE_GROUPS: Weather.check,
}
