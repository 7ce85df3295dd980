"""A member's process as far as a group can tell: the real state machine, and the driver and workers played.

Its requests travel over one connection to whichever node it takes for the coordinator; when one goes unanswered for too
long the connection is closed, and with it all that is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import assert_never

from kunicorn.group import events as ev
from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, Subscription, SyncAnswer
from kunicorn.group.states import OVER
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.requests import Beat, Join, Leaver, Sync
from tests.fakes.simulation import TIMINGS, TOPIC, TOPIC_ID, Simulation

HEARTBEAT_TIMEOUT = 3.0
COMMIT_TIMEOUT = 5.0
_PARKED = TIMINGS.rebalance_timeout + 5.0

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


class Host:
    """One process. `drain` is how many seconds its workers take to let go."""

    def __init__(
        self, world: Simulation, name: str, assignor: str | None, instance_id: str | None = None, drain: float = 0.1
    ) -> None:
        """`assignor`: of a classic member; None for one with the consumer protocol."""
        self.name = name
        self.instance_id = instance_id
        self.alive = True
        self.running: set[TopicPartition] = set()
        self.lost = 0
        """Partitions that it had to let go of without a commit."""
        self.lease = float("-inf")
        self.drain = drain
        rng = Random(world.rng.random())
        self.member: ClassicMember | ConsumerMember = (
            ConsumerMember(name, TIMINGS, rng, instance_id)
            if assignor is None
            else ClassicMember({assignor: ASSIGNORS[assignor].cooperative}, TIMINGS, rng, instance_id)
        )
        self._world = world
        self._assignor = assignor
        self._node: int | None = None
        self._waiting: set[ev.Request] = set()
        self._draining: ev.Revoke | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._ticking = 0
        self._hearing = 0
        self._last_arrival = world.now
        world.hosts.append(self)
        self.tell(ev.JoinWanted())

    def handling(self) -> set[TopicPartition]:
        """What its workers may be handling now: they pause where the lease ends."""
        return self.running if self._world.now < self.lease else set()

    @property
    def drains(self) -> bool:
        """Whether its workers were told to let go of something, and it waits for them or for the commit."""
        return self._draining is not None

    def crash(self) -> None:
        """Nothing is heard of it any more."""
        self.alive = False
        self.running.clear()

    def cut_off(self) -> None:
        """Its connection breaks: no answer that is on its way, or still to be given, arrives."""
        self._hearing += 1
        self._disconnect("connection reset")

    def leave(self) -> None:
        """Stop in order."""
        self.tell(ev.LeaveWanted("stopped"))

    def commit(self) -> None:
        """What the timer does: commit one more record of each partition."""
        world, member, node = self._world, self.member, self._node
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
        for command in self.member.receive(event, self._world.now):
            self._carry_out(command)
        if self.member.state in OVER:
            assert not self.running, f"{self.name} is gone with {self.running}"
            self.alive = False
            return
        self._ticking += 1
        mine, due = self._ticking, self.member.deadline()
        if due != float("inf"):
            self._world.after(max(0.0, due - self._world.now), lambda: self._tick(mine))

    def _tick(self, mine: int) -> None:
        if mine == self._ticking:
            self.tell(ev.Tick())

    def _carry_out(self, command: ev.Command) -> None:  # noqa: C901, PLR0912 - an arm a command
        match command:
            case ev.FindCoordinator():
                self._world.after(self._world.rng.uniform(0, 0.05), self._found)
            case ev.ForgetCoordinator():
                self._disconnect("the coordinator was forgotten")
            case ev.SendJoin():
                self._ask(command, _PARKED, lambda answer: self._join(command, answer))
            case ev.SendSync():
                self._ask(command, _PARKED, partial(self._sync, command, self._world.now))
            case ev.SendHeartbeat():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._heartbeat(command, answer))
            case ev.SendLeave():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._leave(command, answer))
            case ev.SendConsumerHeartbeat():
                self._ask(command, HEARTBEAT_TIMEOUT, lambda answer: self._consumer_heartbeat(command, answer))
            case ev.MakePlan():
                self._world.after(self._world.rng.uniform(0, 0.3), lambda: self.tell(self._planned(command)))
            case ev.NameTopics():
                self._world.after(0.01, lambda: self.tell(ev.TopicsNamed(command, {TOPIC_ID: TOPIC})))
            case ev.Assign(partitions, _):
                self._positions |= {tp: self._world.committed[tp] for tp in partitions if tp not in self.running}
                self.running |= set(partitions)
            case ev.Revoke():
                self._draining = command
                self._world.after(self.drain, lambda: self._drained(command, self._world.now + COMMIT_TIMEOUT))
            case ev.Lose(partitions, _):
                self._draining = None
                self.running -= set(partitions)
                self.lost += len(partitions)
            case ev.ExtendLease(until):
                self.lease = until
            case ev.Fail(message):
                raise AssertionError(f"{self.name} failed: {message}")
            case ev.FallBack(why):
                raise AssertionError(f"{self.name} falls back: {why}")
            case _:
                assert_never(command)

    # -- the connection --------------------------------------------------------------------------------------------

    def _found(self) -> None:
        self._node = self._world.coordinator
        self.tell(ev.CoordinatorFound())

    def _ask(self, request: ev.Request, timeout: float, asking: Asking) -> None:
        world, node = self._world, self._node
        if node is None:
            world.after(0.0, lambda: self.tell(ev.Unanswered(request, "the coordinator is not known now")))
            return
        self._waiting.add(request)

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
        self.tell(event)

    def _give_up(self, request: ev.Request) -> None:
        if request in self._waiting:
            self._disconnect("timed out")

    def _disconnect(self, why: str) -> None:
        waiting, self._waiting = self._waiting, set()
        for request in waiting:
            self._world.after(0.0, lambda request=request: self.tell(ev.Unanswered(request, why)))  # type: ignore[misc]

    # -- requests, as they arrive at the coordinator -----------------------------------------------------------------

    def _join(self, request: ev.SendJoin, answer: Answer) -> None:
        assert self._assignor is not None
        assignor = ASSIGNORS[self._assignor]
        user_data = assignor.user_data(request.generation, request.assigned)
        wishes = Subscription((TOPIC,), request.owned, request.generation, None, user_data)
        join = Join(
            request.member_id, {self._assignor: wishes}, self.instance_id,
            TIMINGS.session_timeout, TIMINGS.rebalance_timeout,
        )  # fmt: skip
        self._world.group.join(join, lambda told: answer(ev.Joined(request, told)), self._world.now)

    def _planned(self, request: ev.MakePlan) -> ev.Planned:
        counts = {TOPIC: len(self._world.partitions)}
        plan = {} if request.skip else ASSIGNORS[request.assignor].plan(request.members, counts, {})
        return ev.Planned(request, plan)

    def _sync(self, request: ev.SendSync, sent_at: float, answer: Answer) -> None:
        sync = Sync(request.member_id, request.generation, request.plan, self.instance_id, request.assignor)
        self._world.group.sync(sync, lambda told: answer(ev.Synced(request, told, sent_at)), self._world.now)

    def _heartbeat(self, request: ev.SendHeartbeat, answer: Answer) -> None:
        group, now = self._world.group, self._world.now
        if isinstance(group, ClassicGroup):
            error = group.heartbeat(request.member_id, request.generation, self.instance_id, now)
        else:
            error = group.classic_heartbeat(request.member_id, request.generation, now)
        answer(ev.HeartbeatAnswered(request, error, False))

    def _leave(self, request: ev.SendLeave, answer: Answer) -> None:
        error = self._world.group.leave(Leaver(request.member_id, self.instance_id), self._world.now)
        answer(ev.LeaveAnswered(request, error))

    def _consumer_heartbeat(self, request: ev.SendConsumerHeartbeat, answer: Answer) -> None:
        assert not isinstance(self._world.group, ClassicGroup)
        beat = Beat(
            request.member_id, request.epoch, request.owned, request.full, self.instance_id, TIMINGS.rebalance_timeout
        )
        told = self._world.group.heartbeat(beat, self._world.now)
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
        self.running -= drained
        self._commit(request, offsets, deadline)

    def _commit(self, request: ev.Revoke, offsets: dict[TopicPartition, int], deadline: float) -> None:
        world, member = self._world, self.member
        if not offsets or world.now >= deadline:
            self.tell(ev.Released(request))
            return
        if not self.alive or not member.may_commit or self._node is None:
            world.after(0.1, lambda: self._commit(request, offsets, deadline))
            return
        generation, member_id, node = member.generation, member.member_id, self._node

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
