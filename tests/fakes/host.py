"""A member's process as far as a group can tell: the real state machine, and the driver and workers played.

Its requests travel over one connection to whichever node it takes for the coordinator; when one goes unanswered for too
long the connection is closed, and with it all that is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Protocol, assert_never

from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, Plan, Subscription, SyncAnswer
from kunicorn.group.states import OVER, State
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.requests import Beat, Join, Leaver, Sync
from tests.fakes.simulation import TOPIC, TOPIC_ID, Simulation

HEARTBEAT_TIMEOUT = 3.0
COMMIT_TIMEOUT = 5.0
_PARKED_MARGIN = 5.0

Answer = Callable[[ev.Event], None]
Asking = Callable[[Answer], None]
REFUSALS: Mapping[type[ev.Request], Callable[[ev.Request, int], ev.Event]] = {
    ev.SendJoin: lambda request, error: ev.Joined(request, JoinAnswer(error)),  # type: ignore[arg-type]
    ev.SendSync: lambda request, error: ev.Synced(request, SyncAnswer(error), 0.0),  # type: ignore[arg-type]
    ev.SendHeartbeat: lambda request, error: ev.HeartbeatAnswered(request, error, False),  # type: ignore[arg-type]
    ev.SendLeave: ev.LeaveAnswered,  # type: ignore[dict-item]
    ev.SendConsumerHeartbeat: lambda request, error: ev.ConsumerHeartbeatAnswered(
        request,  # type: ignore[arg-type]
        ConsumerHeartbeatAnswer(error),
        False,
    ),
}


class Member(Protocol):
    """A member's decisions."""

    @property
    def state(self) -> State: ...
    @property
    def member_id(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def leader(self) -> bool: ...
    @property
    def owned(self) -> frozenset[TopicPartition]: ...
    @property
    def may_commit(self) -> bool: ...
    def deadline(self) -> float: ...
    def receive(self, event: ev.Event, now: float) -> list[ev.Command]: ...


class Host:
    """One process. `drain` is how many seconds its workers take to let go."""

    def __init__(
        self, world: Simulation, name: str, assignor: str | None, instance_id: str | None = None, drain: float = 0.1
    ) -> None:
        """`assignor`: of a classic member; None for one with the consumer protocol."""
        self.name = name
        self.instance_id = instance_id
        self.world = world
        self.assignor = assignor
        self.alive = True
        self.running: set[TopicPartition] = set()
        self.lost = 0
        """Partitions that it had to let go of without a commit."""
        self.lease = float("-inf")
        self.drain = drain
        self.member = self._member(Random(world.rng.random()))
        self._node: int | None = None
        self._waiting: set[ev.Request] = set()
        self._draining: ev.Revoke | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._parked = world.timings.rebalance_timeout + _PARKED_MARGIN
        self._ticking = 0
        self._hearing = 0
        self._last_arrival = world.now
        world.hosts.append(self)
        self.tell(ev.JoinWanted())

    def _member(self, rng: Random) -> Member:
        if self.assignor is None:
            return ConsumerMember(self.name, self.world.timings, rng, self.instance_id)
        cooperative = {self.assignor: ASSIGNORS[self.assignor].cooperative}
        return ClassicMember(cooperative, self.world.timings, rng, self.instance_id)

    @property
    def identity(self) -> str:
        """See `Holder`."""
        return self.instance_id or self.name

    @property
    def certain(self) -> bool:
        """See `Holder`."""
        return self.alive and self.world.now < self.lease

    def handling(self) -> set[TopicPartition]:
        """What its workers may be handling now: they pause where the lease ends."""
        return self.running if self.certain else set()

    @property
    def drains(self) -> bool:
        """Whether its workers were told to let go of something, and it waits for them or for the commit."""
        return self._draining is not None

    def crash(self) -> None:
        """Nothing is heard of it any more."""
        self.alive = False
        self._stop_running(set(self.running))

    def cut_off(self) -> None:
        """Its connection breaks: no answer that is on its way, or still to be given, arrives."""
        self._hearing += 1
        self._disconnect("connection reset")

    def leave(self) -> None:
        """Stop in order."""
        self.tell(ev.LeaveWanted("stopped"))

    def commit(self) -> None:
        """What the timer does: commit one more record of each partition."""
        world, member, node = self.world, self.member, self._node
        if node is None or not member.may_commit or not self.running:
            return
        offsets = {tp: self._positions[tp] + 1 for tp in self.handling()}
        generation, member_id = member.generation, member.member_id

        def arrive() -> None:
            if node == world.coordinator and world.take_commit(self, offsets, generation, member_id) == 0:
                self._positions |= offsets

        world.after(0.002, arrive)

    def tell(self, event: ev.Event) -> None:
        """What the driver's loop does with an event."""
        if not self.alive or self.member.state in OVER:
            return
        for command in self.world.meter.decide(self, event, self.world.now):
            self._carry_out(command)
        if self.member.state in OVER:
            assert not self.running, f"{self.name} is gone with {self.running}"
            self.alive = False
            return
        self._ticking += 1
        mine, due = self._ticking, self.member.deadline()
        if due != float("inf"):
            self.world.after(max(0.0, due - self.world.now), lambda: self._tick(mine))

    def _tick(self, mine: int) -> None:
        if mine == self._ticking:
            self.tell(ev.Tick())

    def _carry_out(self, command: ev.Command) -> None:  # noqa: C901, PLR0912 - an arm a command
        match command:
            case ev.FindCoordinator():
                self.world.after(self.world.rng.uniform(0, 0.05), self._found)
            case ev.ForgetCoordinator():
                self._disconnect("the coordinator was forgotten")
            case ev.SendJoin():
                self._ask(command, self._parked, lambda answer: self._join(command, answer))
            case ev.SendSync():
                self._ask(command, self._parked, partial(self._sync, command, self.world.now))
            case ev.SendHeartbeat():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._heartbeat(command, answer))
            case ev.SendLeave():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._leave(command, answer))
            case ev.SendConsumerHeartbeat():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._consumer_heartbeat(command, answer))
            case ev.MakePlan():
                plan, seconds = self.world.meter.plan(self, command)
                self.world.after(seconds, lambda: self.tell(ev.Planned(command, plan)))
            case ev.NameTopics():
                self.world.after(0.01, lambda: self.tell(ev.TopicsNamed(command, {TOPIC_ID: TOPIC})))
            case ev.Assign(partitions, _):
                self._positions |= {tp: self.world.committed[tp] for tp in partitions if tp not in self.running}
                self._run(set(partitions) - self.running)
            case ev.Revoke():
                self._draining = command
                self.world.after(self.drain, lambda: self._drained(command, self.world.now + COMMIT_TIMEOUT))
            case ev.Lose(partitions, _):
                self._draining = None
                self._stop_running(self.running.intersection(partitions))
                self.lost += len(partitions)
            case ev.ExtendLease(until):
                self.lease = until
            case ev.Fail(message):
                raise AssertionError(f"{self.name} failed: {message}")
            case ev.FallBack(why):
                raise AssertionError(f"{self.name} falls back: {why}")
            case _:
                assert_never(command)

    def _run(self, partitions: set[TopicPartition]) -> None:
        self.running |= partitions
        self.world.owners.take(self, partitions, self.world.now)

    def _stop_running(self, partitions: set[TopicPartition]) -> None:
        self.running -= partitions
        self.world.owners.release(self, partitions, self.world.now)

    # -- the connection --------------------------------------------------------------------------------------------

    def _found(self) -> None:
        self._node = self.world.coordinator
        self.tell(ev.CoordinatorFound())

    def _ask(self, request: ev.Request, timeout: float, asking: Asking) -> None:
        world, node = self.world, self._node
        if node is None:
            world.after(0.0, lambda: self.tell(ev.Unanswered(request, "the coordinator is not known now")))
            return
        self._waiting.add(request)
        world.meter.asked(self, request)
        hearing = self._hearing

        def answer(event: ev.Event) -> None:
            world.send(lambda: self._hear(request, event) if hearing == self._hearing else None)

        def arrive() -> None:
            if node != world.coordinator:
                answer(REFUSALS[type(request)](request, E.NOT_COORDINATOR))
            elif world.now < world.loading_until:
                answer(REFUSALS[type(request)](request, E.COORDINATOR_LOAD_IN_PROGRESS))
            else:
                asking(answer)

        self._last_arrival = world.send(arrive, behind=self._last_arrival)
        world.after(timeout, lambda: self._give_up(request))

    def _hear(self, request: ev.Request, event: ev.Event) -> None:
        # One that was given up, or is heard again, is told all the same: the member has to know by itself.
        self._waiting.discard(request)
        self.tell(self.world.meter.answered(self, event))

    def _give_up(self, request: ev.Request) -> None:
        if request in self._waiting:
            self._disconnect("timed out")

    def _disconnect(self, why: str) -> None:
        waiting, self._waiting = self._waiting, set()
        for request in waiting:
            self.world.after(0.0, lambda request=request: self.tell(ev.Unanswered(request, why)))  # type: ignore[misc]

    # -- requests, as they arrive at the coordinator -----------------------------------------------------------------

    def wishes(self, request: ev.SendJoin) -> Subscription:
        """What a join says of this member to the leader."""
        assert self.assignor is not None
        user_data = ASSIGNORS[self.assignor].user_data(request.generation, request.assigned)
        return Subscription((TOPIC,), request.owned, request.generation, None, user_data)

    def plan(self, request: ev.MakePlan) -> Plan:
        """The plan that this member, which leads, makes."""
        return {} if request.skip else ASSIGNORS[request.assignor].plan(request.members, self.world.counts, {})

    def _join(self, request: ev.SendJoin, answer: Answer) -> None:
        assert self.assignor is not None
        timings = self.world.timings
        join = Join(
            request.member_id, {self.assignor: self.wishes(request)}, self.instance_id,
            timings.session_timeout, timings.rebalance_timeout,
        )  # fmt: skip
        self.world.group.join(join, lambda told: answer(ev.Joined(request, told)), self.world.now)

    def _sync(self, request: ev.SendSync, sent_at: float, answer: Answer) -> None:
        sync = Sync(request.member_id, request.generation, request.plan, self.instance_id, request.assignor)

        def given(told: SyncAnswer) -> None:
            self.world.owners.check_given(self, told.partitions)
            answer(ev.Synced(request, told, sent_at))

        self.world.group.sync(sync, given, self.world.now)

    def _heartbeat(self, request: ev.SendHeartbeat, answer: Answer) -> None:
        group, now = self.world.group, self.world.now
        if isinstance(group, ClassicGroup):
            error = group.heartbeat(request.member_id, request.generation, self.instance_id, now)
        else:
            error = group.classic_heartbeat(request.member_id, request.generation, now)
        answer(ev.HeartbeatAnswered(request, error, False))

    def _leave(self, request: ev.SendLeave, answer: Answer) -> None:
        error = self.world.group.leave(Leaver(request.member_id, self.instance_id), self.world.now)
        answer(ev.LeaveAnswered(request, error))

    def _consumer_heartbeat(self, request: ev.SendConsumerHeartbeat, answer: Answer) -> None:
        assert not isinstance(self.world.group, ClassicGroup)
        timeout = self.world.timings.rebalance_timeout
        beat = Beat(request.member_id, request.epoch, request.owned, request.full, self.instance_id, timeout)
        told = self.world.group.heartbeat(beat, self.world.now)
        numbers = [number for _, of_topic in told.assignment or () for number in of_topic]
        self.world.owners.check_given(self, [TopicPartition(TOPIC, number) for number in numbers])
        answer(ev.ConsumerHeartbeatAnswered(request, told, False))

    # -- the revoke hook -------------------------------------------------------------------------------------------

    def _drained(self, request: ev.Revoke, deadline: float) -> None:
        """Nothing is handled any more; commit until it is taken, or the time for it is over.

        What was lost meanwhile and then given to us again is under another grant, which this drain does not end.
        """
        if request is not self._draining:
            return
        drained = self.running.intersection(request.partitions)
        offsets = {tp: self._positions[tp] + 1 for tp in drained}
        self._stop_running(drained)
        self._commit(request, offsets, deadline)

    def _commit(self, request: ev.Revoke, offsets: dict[TopicPartition, int], deadline: float) -> None:
        world, member = self.world, self.member
        if not offsets or world.now >= deadline:
            self.tell(ev.Released(request))
            return
        if not self.alive or not member.may_commit or self._node is None:
            world.after(0.1, lambda: self._commit(request, offsets, deadline))
            return
        generation, member_id, node = member.generation, member.member_id, self._node

        world.meter.committed(self, offsets)

        def arrive() -> None:
            error: int = E.NOT_COORDINATOR
            if node == world.coordinator:
                error = world.take_commit(self, offsets, generation, member_id)
            world.after(0.002, lambda: answered(error))

        def answered(error: int) -> None:
            if error == 0:
                self.tell(ev.Released(request))
                return
            self.tell(ev.CommitRefused(generation, member_id, error))
            world.after(0.1, lambda: self._commit(request, offsets, deadline))

        world.after(0.002, arrive)
