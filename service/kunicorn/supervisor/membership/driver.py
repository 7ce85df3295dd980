"""The driver of the group member's state machine, and the assignment source made of it.

`GroupDriver` carries out the machine's commands and puts their results into its queue of events. Every request is a
task of its own, so that a heartbeat never waits for a plan, a drain or a commit (invariant 5). Times are seconds of
`clock.now`, the clock of the workers' lease.

`GroupAssignment` is the assignment source of a group: driver, committer and revoke hook put together. `member_for`
makes the state machine that the settings ask for.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar, assert_never

from kunicorn.errors import FatalGroupError, PeerError
from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.member import Timings
from kunicorn.group.states import OVER, PartitionState, State
from kunicorn.ipc import clock
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import GroupStatus, RebalanceStatus
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.membership.requests import CommitRequests, Events, GroupRequests
from kunicorn.supervisor.membership.revoke import Revocation
from kunicorn.supervisor.membership.source import StopMessages, new_topics
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.start_offsets import Starts, look_up
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.text import listed

Member = ClassicMember | ConsumerMember


def member_for(settings: Settings) -> Member:
    """The state machine of `group_protocol`, which has joined nothing yet."""
    if settings.group.group_protocol == "classic":
        return classic_member(settings)
    group = settings.group
    return ConsumerMember(
        str(uuid.uuid4()), timings(settings), random.Random(), group.group_instance_id, group.group_remote_assignor
    )


def classic_member(settings: Settings) -> ClassicMember:
    """The state machine of a classic member, which brokers without the consumer protocol get, too."""
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

_Asked = TypeVar("_Asked")
_Request = TypeVar("_Request", bound=ev.Request)

_SESSION_EVERY = 30.0
"""Seconds until the brokers' session timeout for the group is asked for again: it may be lowered while we are in."""


class GroupDriver:
    """Drives one member of one group. `over` is set when it has left the group."""

    def __init__(
        self, settings: Settings, requests: GroupRequests, revocation: Revocation, tasks: ServiceTasks, metrics: Metrics
    ) -> None:
        self.over = asyncio.Event()
        self.member: Member = member_for(settings)
        self._settings = settings
        self._state = requests.connections.member
        self._coordinator = requests.connections.coordinator
        self._topics = requests.connections.topics
        self._requests = requests
        self._events = requests.events
        self._revocation = revocation
        self._assignment = revocation.assignment
        self._tasks = tasks
        self._metrics = metrics
        self._under_way: set[asyncio.Task[None]] = set()
        self._losing: set[asyncio.Task[None]] = set()
        self._settled = 0

    async def run(self) -> None:
        """Stay a member until `leave` is through. Raises `FatalGroupError` if the group refuses us."""
        self._events.put_nowait(ev.JoinWanted())
        self._spawn(self._watch_topics())
        self._spawn(self._watch_topic_ids())
        self._spawn(self._watch_session())
        while self.member.state not in OVER:
            event = await self._next_event()
            self._drop_recreated()
            before = self.member.state
            commands = self.member.receive(event, clock.now())
            self._publish()
            for command in commands:
                self._carry_out(command)
            self._note(before)
        # An eviction while it left: what is lost then is still to be stopped.
        await asyncio.gather(*self._losing, return_exceptions=True)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self.over.set()

    def leave(self, reason: str) -> None:
        """Begin to drain, commit and leave. Returns at once; `over` is set when the member has left."""
        self._revocation.begin_leaving()
        self._events.put_nowait(ev.LeaveWanted(reason))

    @property
    def protocol(self) -> str:
        """ "classic" or "consumer": what we speak, which may differ from what was wished for."""
        return "consumer" if isinstance(self.member, ConsumerMember) else "classic"

    def _publish(self) -> None:
        """Write `MemberState` before commands are carried out: no commit may follow a JoinGroup (invariant 2)."""
        member, state = self.member, self._state
        state.state, state.joined = member.state, member.joined
        state.consumer_protocol = isinstance(member, ConsumerMember)
        state.member_id, state.generation = member.member_id, member.generation
        state.generation_commits = member.may_commit
        state.coordinator_known = self._coordinator.node is not None
        state.cluster_id = self._topics.cluster_id
        state.changed.notify()
        self._assignment.table.changed.notify()

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
                self._report(self._requests.look_up.find, self.protocol)
            case ev.ForgetCoordinator(reason):
                log.warning(f"the coordinator is looked up anew: {reason}")
                self._coordinator.forget()
                self._publish()
            case ev.SendJoin():
                self._request(self._requests.classic.join, command)
            case ev.MakePlan():
                self._report(self._requests.classic.plan, command)
            case ev.SendSync():
                self._request(self._requests.classic.sync, command)
            case ev.SendHeartbeat():
                self._request(self._requests.classic.heartbeat, command)
            case ev.SendLeave():
                self._request(self._requests.classic.leave, command)
            case ev.SendConsumerHeartbeat():
                self._request(self._requests.consumer.heartbeat, command)
            case ev.NameTopics():
                self._report(self._requests.consumer.name_topics, command)
            case ev.FallBack(why):
                self._fall_back(why)
            case ev.Assign(partitions, generation):
                log.info(f"generation {generation} adds {len(partitions)} partitions", partitions=listed(partitions))
                self._assignment.assign(partitions)
            case ev.Revoke():
                self._spawn(self._revoke(command))
            case ev.Lose(partitions, reason):
                log.warning(f"{len(partitions)} partitions are lost: {reason}", partitions=listed(partitions))
                self._metrics.count(catalogue.PARTITIONS_LOST, len(partitions))
                losing = self._spawn(self._revocation.lose(partitions))
                self._losing.add(losing)
                losing.add_done_callback(self._losing.discard)
            case ev.ExtendLease(until):
                self._assignment.pool.extend_lease(int(until * clock.NANOSECONDS))
            case ev.Fail(message):
                raise FatalGroupError(f"group {self._settings.group.id!r} refuses this member: {message}")
            case _:
                assert_never(command)

    def _request(self, ask: Callable[[_Request], Awaitable[ev.Event]], request: _Request) -> None:
        # Asked within the task: of a coroutine whose task is cancelled before, Python says that nobody awaited it.
        async def answered() -> None:
            try:
                event = await ask(request)
            except PeerError as error:
                event = ev.Unanswered(request, str(error))
            self._events.put_nowait(event)

        self._spawn(answered())

    def _report(self, ask: Callable[[_Asked], Awaitable[ev.Event]], about: _Asked) -> None:
        async def told() -> None:
            self._events.put_nowait(await ask(about))

        self._spawn(told())

    def _fall_back(self, why: str) -> None:
        log.warning(f'the brokers do not speak the consumer protocol, going on with group_protocol = "classic": {why}')
        self.member = classic_member(self._settings)
        self._publish()
        self._topics.match_here()
        self._events.put_nowait(ev.JoinWanted())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._tasks.start(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    # -- requests ------------------------------------------------------------------------------------------------

    async def _revoke(self, request: ev.Revoke) -> None:
        held, rest = await self._revocation.revoke(request.partitions, lambda: self.member.can_revoke_later)
        if rest is not None:
            self._spawn(rest)
        self._events.put_nowait(ev.Released(request, held))

    # -- beside the requests -------------------------------------------------------------------------------------

    async def _watch_topics(self) -> None:
        while True:
            reason = await self._topics.changes(self._settings.kafka.metadata_max_age_ms / 1000)
            self._events.put_nowait(ev.TopicsChanged(reason))

    async def _watch_topic_ids(self) -> None:
        while True:
            await self._topics.recreated.wait()
            self._drop_recreated()

    async def _watch_session(self) -> None:
        while True:
            await asyncio.sleep(_SESSION_EVERY)
            told = await self._requests.consumer.session_timeout_now() if self.protocol == "consumer" else None
            if told is not None:
                self._events.put_nowait(ev.SessionTold(told))

    def _drop_recreated(self) -> None:
        """Release partitions of topics that were created anew. Called before each event, too, as the event may assign
        partitions of the new topic."""
        if not self._topics.recreated.is_set():
            return
        self._topics.recreated.clear()
        table = self._assignment.table
        if back := table.own_again():
            log.info(
                f"{len(back)} partitions belong to the topic that has their name after all: a broker was behind, and "
                f"what is consumed of them is committed again",
                partitions=listed(tuple(back)),
            )
            # Their look-ups have ended while the topic seemed to be gone.
            if without := [table[tp] for tp in back if table[tp].state is PartitionState.RESOLVING]:
                table.look_up(without)
        gone = table.of_gone_topics()
        if isinstance(self.member, ConsumerMember):
            # The coordinator knows topics by id: it takes these away and gives the new ones. Not those that it gave as
            # the new ones already, while a broker that was behind was believed.
            misplaced, current = table.of_gone_topics(also_disowned=True), self._topics.topic_id
            given = dict.fromkeys(tp for tp in misplaced if self.member.topic_id(tp) == current(tp.topic))
            if taken := [tp for tp in gone if tp not in given]:
                log.warning(new_topics(taken), partitions=listed(tuple(taken)))
                table.disown(taken)
            gone = list(given)
        if not gone:
            return
        log.warning(new_topics(gone), partitions=listed(tuple(gone)))
        now, group = clock.now(), self._settings.group
        drained, given_up = now + group.drain_timeout_ms / 1000, now + group.max_poll_interval_ms / 1000
        self._spawn(self._assignment.renew(gone, drained, given_up))

    def _note(self, before: State) -> None:
        member = self.member
        if not member.leader:
            self._topics.stop_leading()
        while self._settled < member.history.count:
            self._settled += 1
            done = member.history.recent[-1]
            self._metrics.count(catalogue.REBALANCES, result=done.result, reason=done.cause.value)
            self._metrics.observe(catalogue.REBALANCE_SECONDS, done.seconds)
            log.info(
                f"rebalance {done.result} after {done.seconds:.3f} s: {done.reason}",
                generation=done.generation,
                member_id=member.member_id,
                partitions=len(member.owned),
            )
        if before is not member.state:
            log.debug(f"member is {member.state.value}, was {before.value}", generation=member.generation)


class GroupAssignment:
    """Implements `AssignmentSource`."""

    goes_by_ids = True

    def __init__(
        self,
        settings: Settings,
        connections: Connections,
        assignment: Assignment,
        tasks: ServiceTasks,
        metrics: Metrics,
    ) -> None:
        """Only puts the parts together."""
        self._settings = settings
        self._state = connections.member
        self._coordinator = connections.coordinator
        self._brokers = connections.brokers
        self._assignment = assignment
        events: Events = asyncio.Queue()
        table = assignment.table
        target = CommitRequests(settings, connections, table, events)
        self.commits = OffsetCommitter(target, table.consumed, table.committed, metrics, assignment.transactions)
        self._revocation = Revocation(settings, assignment, self.commits, metrics)
        requests = GroupRequests(settings, connections, self.commits, events, metrics)
        self._driver = GroupDriver(settings, requests, self._revocation, tasks, metrics)

    @property
    def stop_messages(self) -> StopMessages:
        static = self._settings.group.group_instance_id is not None
        last = "a static member keeps its place in the group" if static else "leaving the group"
        return StopMessages(
            leaving=f"draining, committing; {last}",
            clean="everything handled is committed",
            unclean="not everything handled is committed: it will be handled again by the next owner",
            overdue="not out of the group",
        )

    @property
    def requested(self) -> asyncio.Event:
        return self._coordinator.join_sent

    @property
    def steady(self) -> bool:
        return self._state.stable

    @property
    def over(self) -> bool:
        return self._driver.over.is_set()

    @property
    def through(self) -> bool:
        """See `AssignmentSource`: a group always has more to come."""
        return False

    @property
    def unfinished(self) -> int:
        return self._revocation.uncommitted

    async def run(self) -> None:
        await self._driver.run()

    def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self.commits.commit_every(self._settings.group.commit_interval_ms / 1000)]

    def leave(self, reason: str) -> None:
        self._driver.leave(reason)

    def stop_at_once(self) -> None:
        """See `AssignmentSource`: the next owner handles what is in hand again."""
        self._revocation.give_up(max(1, len(self._assignment.table.consumed())))

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        """See `AssignmentSource`: what the group has committed, else by policy."""
        settings = self._settings
        return await look_up(self._brokers, partitions, settings.group.auto_offset_reset, settings.retry_topics)

    def assign(self) -> None:
        """See `AssignmentSource`."""

    def group(self, now: float) -> GroupStatus:
        member, node = self._driver.member, self._coordinator.node
        return GroupStatus(
            group_id=self._settings.group.id,
            protocol=self._driver.protocol,
            state=member.state.value,
            member_id=member.member_id,
            instance_id=member.instance_id,
            generation=member.generation,
            leader=member.leader,
            assignor=member.assignor,
            coordinator=f"{node.node_id} at {node.host}:{node.port}" if node is not None else None,
            joined=member.joined,
            heartbeat_age=None if member.heartbeat_ok_at is None else now - member.heartbeat_ok_at,
            lease_left=None if member.lease_until is None else member.lease_until - now,
            session_timeout=member.session_timeout,
            rebalances=member.history.count,
            last_rebalances=tuple(
                RebalanceStatus(r.generation, r.reason, r.result, r.seconds, now - r.ended_at)
                for r in member.history.recent
            ),
        )
