"""The driver of the group's state machine: carries out its commands, tells it what came of them.

Every request is a task of its own, so that a heartbeat never waits for a plan, a drain or a commit (invariant 5).
Times are seconds of `clock.now`, the clock of the workers' lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.error_codes import ErrorCode
from kunicorn.group.protocol import NO_GENERATION, CommitAnswer
from kunicorn.group.states import OVER, State
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.settings import Settings
from kunicorn.supervisor.classic_requests import ClassicRequests
from kunicorn.supervisor.commits import Commits
from kunicorn.supervisor.consumer_requests import ConsumerRequests
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.handover import Handover, shown
from kunicorn.supervisor.look_up import LookUp
from kunicorn.supervisor.member import Member, classic_member, member_for
from kunicorn.supervisor.topics import Topics
from kunicorn.topics import Position, TopicPartition
from kunicorn.wire.coordinator import Coordinator

log = logs.get("kunicorn.membership")

_SESSION_EVERY = 30.0
"""Seconds until the brokers' session timeout for the group is asked for again: it may be lowered while we are in."""
_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Membership:
    """One member of one group. `over` is set when it has left or was refused for good."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        topics: Topics,
        fetchers: Fetchers,
        metrics: Metrics,
        extend_lease: Callable[[int], None],
        fatal: Callable[[Exception], None],
    ) -> None:
        self.over = asyncio.Event()
        self.handover: Handover
        """Set by the service: it and the membership need one another."""
        self._settings = settings
        self.member: Member = member_for(settings)
        self._coordinator = coordinator
        self._topics = topics
        topics.another_of_that_name = self._renew
        self._classic = ClassicRequests(settings, coordinator, topics, metrics)
        self._consumer = ConsumerRequests(settings, coordinator, topics, metrics)
        self._look_up = LookUp(settings.group.id, coordinator, self._consumer)
        self._fetchers = fetchers
        self._metrics = metrics
        self._extend_lease = extend_lease
        self._fatal = fatal
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._losing: set[asyncio.Task[None]] = set()
        self._settled = 0
        self._committed_as = (NO_GENERATION, "")

    def use(self, commits: Commits) -> None:
        """Whose commits joins wait for. Caller: the service, before `run`: they and the membership need one another."""
        self._classic.commits = self._consumer.commits = commits

    async def run(self) -> None:
        """Be a member until `leave` is through, or the group refuses us."""
        self._events.put_nowait(ev.JoinWanted())
        self._spawn(self._watch_topics())
        self._spawn(self._watch_session())
        while self.member.state not in OVER:
            event = await self._next_event()
            before = self.member.state
            for command in self.member.receive(event, clock.now()):
                self._carry_out(command)
            self._note(before)
        # Whoever is refused for good loses everything with the same event: workers are to stop, and be told why.
        await asyncio.gather(*self._losing, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.over.set()

    def leave(self, reason: str) -> None:
        """Drain everything, commit it, leave. Returns at once; `over` tells when it is through."""
        self.handover.uncommitted = 0
        self._events.put_nowait(ev.LeaveWanted(reason))

    @property
    def protocol(self) -> str:
        """ "classic" or "consumer": what we speak, which may differ from what was wished for."""
        return "consumer" if isinstance(self.member, ConsumerMember) else "classic"

    def identity(self) -> tuple[str | None, int]:
        """Member id and epoch, to read offsets under; neither where the protocol has no use for them."""
        member = self.member
        return (None, NO_GENERATION) if isinstance(member, ClassicMember) else (member.member_id, member.generation)

    @property
    def member_id(self) -> str:
        """See `Standing`."""
        return self.member.member_id

    @property
    def generation(self) -> int:
        """See `Standing`."""
        return self.member.generation

    # -- CommitTarget --------------------------------------------------------------------------------------------

    @property
    def may_commit(self) -> bool:
        """See `CommitTarget`."""
        return self.member.may_commit and self._coordinator.node is not None

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        """See `CommitTarget`."""
        member = self.member
        self._committed_as = (member.generation, member.member_id)
        answer = await self._coordinator.commit(
            generation=member.generation,
            member_id=member.member_id,
            instance_id=member.instance_id,
            offsets=offsets,
            topic_ids=self._fetchers.table.topic_ids(offsets),
            metadata="",
            timeout=self._settings.group.commit_timeout_ms / 1000,
        )
        if any(error in _TOPIC_GONE for error in answer.errors.values()):
            self._topics.doubt()
        return answer

    def commit_refused(self, error: int) -> None:
        """See `CommitTarget`."""
        self._events.put_nowait(ev.CommitRefused(*self._committed_as, error))

    def is_gone(self, topic: str) -> bool:
        """See `CommitTarget`."""
        return self._topics.is_gone(topic)

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _next_event(self) -> ev.Event:
        wait = self.member.deadline() - clock.now()
        if wait <= 0 and self._events.empty():
            return ev.Tick()
        try:
            async with asyncio.timeout(None if wait == float("inf") else max(wait, 0)):
                return await self._events.get()
        except TimeoutError:
            return ev.Tick()

    def _carry_out(self, command: ev.Command) -> None:  # noqa: C901, PLR0912 - an arm a command
        match command:
            case ev.FindCoordinator():
                self._tell(self._look_up.ask(self.protocol))
            case ev.ForgetCoordinator(reason):
                log.warning(f"the coordinator is looked up anew: {reason}")
                self._coordinator.forget()
            case ev.SendJoin():
                self._ask(command, self._classic.join(command))
            case ev.MakePlan():
                self._tell(self._classic.plan(command))
            case ev.SendSync():
                self._ask(command, self._classic.sync(command))
            case ev.SendHeartbeat():
                self._ask(command, self._classic.heartbeat(command))
            case ev.SendLeave():
                self._ask(command, self._classic.leave(command))
            case ev.SendConsumerHeartbeat():
                self._ask(command, self._consumer.heartbeat(command))
            case ev.NameTopics():
                self._tell(self._consumer.name_topics(command))
            case ev.FallBack(why):
                self._fall_back(why)
            case ev.Assign(partitions, generation):
                log.info(f"generation {generation} adds {len(partitions)} partitions", partitions=shown(partitions))
                self._fetchers.assign(partitions)
            case ev.Revoke():
                self._spawn(self._revoke(command))
            case ev.Lose(partitions, reason):
                log.warning(f"{len(partitions)} partitions are lost: {reason}", partitions=shown(partitions))
                self._metrics.partitions_lost.inc(len(partitions))
                losing = self._spawn(self.handover.lose(partitions))
                self._losing.add(losing)
                losing.add_done_callback(self._losing.discard)
            case ev.BeCertain(until):
                self._extend_lease(int(until * clock.NANOSECONDS))
            case ev.Fail(message):
                self._fatal(FatalGroupError(f"group {self._settings.group.id!r} refuses this member: {message}"))
            case _:
                assert_never(command)

    def _ask(self, request: ev.Request, asking: Awaitable[ev.Event]) -> None:
        async def answered() -> None:
            try:
                event = await asking
            except PeerError as error:
                event = ev.Unanswered(request, str(error))
            self._events.put_nowait(event)

        self._spawn(answered())

    def _tell(self, asking: Awaitable[ev.Event]) -> None:
        async def told() -> None:
            self._events.put_nowait(await asking)

        self._spawn(told())

    def _fall_back(self, why: str) -> None:
        log.warning(f'the brokers do not speak the consumer protocol, going on with group_protocol = "classic": {why}')
        self.member = classic_member(self._settings)
        self._topics.brokers_match = False
        self._events.put_nowait(ev.JoinWanted())

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- requests ------------------------------------------------------------------------------------------------

    async def _revoke(self, request: ev.Revoke) -> None:
        held, rest = await self.handover.revoke(request.partitions, lambda: self.member.may_follow)
        if rest is not None:
            self._spawn(rest)
        self._events.put_nowait(ev.Released(request, held))

    # -- beside the requests -------------------------------------------------------------------------------------

    async def _watch_topics(self) -> None:
        while True:
            reason = await self._topics.changes(self._settings.kafka.metadata_max_age_ms / 1000)
            self._events.put_nowait(ev.TopicsChanged(reason))

    async def _watch_session(self) -> None:
        while True:
            await asyncio.sleep(_SESSION_EVERY)
            told = await self._consumer.session_timeout_now() if self.protocol == "consumer" else None
            if told is not None:
                self._events.put_nowait(ev.SessionTold(told))

    def _renew(self) -> None:
        gone = self._fetchers.table.of_gone_topics()
        if not gone:
            return
        log.warning(
            f"{len(gone)} partitions belong to a topic that was deleted and created anew: what was consumed of the old "
            f"one is dropped, the new one is consumed from its beginning",
            partitions=shown(tuple(gone)),
        )
        if self.protocol == "consumer":
            # The coordinator knows topics by id: it takes these away and gives the new ones.
            self._fetchers.table.disown(gone)
            return
        now, group = clock.now(), self._settings.group
        drained, given_up = now + group.drain_timeout_ms / 1000, now + group.max_poll_interval_ms / 1000
        self._spawn(self._fetchers.renew(gone, drained, given_up))

    def _note(self, before: State) -> None:
        member = self.member
        if not member.leader:
            self._topics.stop_leading()
        while self._settled < member.history.count:
            self._settled += 1
            done = member.history.recent[-1]
            self._metrics.rebalances.labels(result=done.result, reason=done.cause.value).inc()
            self._metrics.rebalance_seconds.observe(done.seconds)
            log.info(
                f"rebalance {done.result} after {done.seconds:.3f} s: {done.reason}",
                generation=done.generation,
                member_id=member.member_id,
                partitions=len(member.owned),
            )
        if before is not member.state:
            log.debug(f"member is {member.state.value}, was {before.value}", generation=member.generation)
