"""The driver of the group's state machine.

`Membership` carries out the machine's commands and tells it what came of them. Every request is a task of its own, so
that a heartbeat never waits for a plan, a drain or a commit (invariant 5). Times are seconds of `clock.now`, the clock
of the workers' lease.

`GroupAssignment` is where partitions come from when the group assigns them: the membership, the commits and the revoke
hook, put together. `member_for` makes the member that the settings ask for.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import assert_never

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.errors import ErrorCode
from kunicorn.group.member import Timings
from kunicorn.group.protocol import NO_GENERATION, CommitAnswer
from kunicorn.group.states import OVER, State
from kunicorn.ipc import clock
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import GroupStatus, RebalanceStatus
from kunicorn.positions import Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.membership.requests import ClassicRequests, ConsumerRequests, LookUp
from kunicorn.supervisor.membership.revoke import Handover, shown
from kunicorn.supervisor.membership.source import Words
from kunicorn.supervisor.offsets.commits import Commits, Windows
from kunicorn.supervisor.offsets.start_offsets import Brokers, Starts, look_up
from kunicorn.supervisor.partitions.assignment import Fetchers
from kunicorn.supervisor.topics import Topics

Member = ClassicMember | ConsumerMember


def member_for(settings: Settings) -> Member:
    """A member of whichever protocol is wished for; it has joined nothing yet."""
    if settings.group.group_protocol == "classic":
        return classic_member(settings)
    group = settings.group
    return ConsumerMember(
        str(uuid.uuid4()), timings(settings), random.Random(), group.group_instance_id, group.group_remote_assignor
    )


def classic_member(settings: Settings) -> ClassicMember:
    """A classic one, whatever is wished for: what brokers without the consumer protocol get."""
    group = settings.group
    assignors = [ASSIGNORS[name] for name in group.partition_assignment_strategy]
    cooperative = {assignor.name: assignor.cooperative for assignor in assignors}
    return ClassicMember(cooperative, timings(settings), random.Random(), group.group_instance_id)


def timings(settings: Settings) -> Timings:
    """The member's times, from the settings' milliseconds."""
    group, kafka = settings.group, settings.kafka
    return Timings(
        session_timeout=group.session_timeout_ms / 1000,
        rebalance_timeout=group.max_poll_interval_ms / 1000,
        heartbeat_interval=group.heartbeat_interval_ms / 1000,
        fast_period=group.drain_timeout_ms / 1000 + 2.0,
        retry_backoff=kafka.retry_backoff_ms / 1000,
        retry_backoff_max=kafka.retry_backoff_max_ms / 1000,
    )


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


class GroupAssignment:
    """Implements `Source`."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        brokers: Brokers,
        topics: Topics,
        fetchers: Fetchers,
        metrics: Metrics,
        extend_lease: Callable[[int], None],
        fatal: Callable[[Exception], None],
    ) -> None:
        """Only puts the parts together."""
        self._settings = settings
        self._coordinator = coordinator
        self._brokers = brokers
        self._fetchers = fetchers
        self._membership = Membership(settings, coordinator, topics, fetchers, metrics, extend_lease, fatal)
        self.commits = Commits(self._membership, fetchers.table.consumed, fetchers.table.committed, metrics)
        self._handover = Handover(settings, fetchers, self.commits, metrics)
        self._membership.use(self.commits)
        if settings.producing.in_transactions:
            windows = Windows(settings.group.group_instance_id)
            windows.standing = self._membership
            fetchers.windows = self.commits.windows = windows
            fetchers.table.workers_commit = True
        self._membership.handover = self._handover
        brokers.identity = self._membership.identity

    @property
    def words(self) -> Words:
        """See `Source`."""
        static = self._settings.group.group_instance_id is not None
        last = "a static member keeps its place in the group" if static else "leaving the group"
        return Words(
            leaving=f"draining, committing; {last}",
            clean="everything handled is committed",
            unclean="not everything handled is committed: it will be handled again by the next owner",
            overdue="not out of the group",
        )

    @property
    def asked(self) -> asyncio.Event:
        """See `Source`."""
        return self._coordinator.join_sent

    @property
    def steady(self) -> bool:
        """See `Source`."""
        return self._membership.member.state is State.STABLE

    @property
    def over(self) -> bool:
        """See `Source`."""
        return self._membership.over.is_set()

    @property
    def unfinished(self) -> int:
        """See `Source`."""
        return self._handover.uncommitted

    async def run(self) -> None:
        """See `Source`."""
        await self._membership.run()

    def works(self) -> Sequence[Awaitable[None]]:
        """See `Source`."""
        return [self.commits.every(self._settings.group.commit_interval_ms / 1000)]

    def leave(self, reason: str) -> None:
        """See `Source`."""
        self._membership.leave(reason)

    def hurry(self) -> None:
        """See `Source`: the next owner handles what is in hand again."""
        self._handover.uncommitted += max(1, len(self._fetchers.table.consumed()))

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        """See `Source`: what the group has committed, else by policy."""
        settings = self._settings
        return await look_up(self._brokers, partitions, settings.group.auto_offset_reset, settings.retry_topics)

    def assign(self) -> None:
        """See `Source`."""

    def group(self, now: float) -> GroupStatus:
        """See `Source`."""
        member, node = self._membership.member, self._coordinator.node
        return GroupStatus(
            group_id=self._settings.group.id,
            protocol=self._membership.protocol,
            state=member.state.value,
            member_id=member.member_id,
            instance_id=member.instance_id,
            generation=member.generation,
            leader=member.leader,
            assignor=member.assignor,
            coordinator=f"{node.node_id} at {node.host}:{node.port}" if node is not None else None,
            joined=member.joined,
            heartbeat_age=None if member.heartbeat_ok_at is None else now - member.heartbeat_ok_at,
            lease_left=None if member.certain_until is None else member.certain_until - now,
            session_timeout=member.session_timeout,
            rebalances=member.history.count,
            last_rebalances=tuple(
                RebalanceStatus(r.generation, r.reason, r.result, r.seconds, now - r.ended_at)
                for r in member.history.recent
            ),
        )
