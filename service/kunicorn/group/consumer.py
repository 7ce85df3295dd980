"""A member of a group with the consumer protocol (KIP-848, 1082), as a pure state machine.

    commands = member.receive(event, now)

The coordinator decides who owns what and says so in its answers to heartbeats; the member makes it so and reports:

1. Partitions are reconciled one assignment at a time: what is taken away is drained and committed first, and only when
   it is let go of is the coordinator told what we own; it gives it to others then.
2. After any error or lost answer the next heartbeat says everything again: what the coordinator knows is in doubt.
3. Fenced, the member joins again under the same id with epoch 0; its partitions are lost, nothing is committed.
4. A lost coordinator costs nothing: id, epoch and partitions stay until a coordinator says otherwise.

`ConsumerTransitions` has the state of the member, and the transitions that several events share. `Holdings` has its
partitions, and those that the coordinator wants it to own (KIP-848). Partitions are known by topic id: a
topic that was deleted and created anew is another topic of the same name, and its partitions are let go of before those
of the new one are taken up.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import assert_never
from uuid import UUID

from kunicorn.group import events as ev
from kunicorn.group.events import Command, Event
from kunicorn.group.member import Cause, GroupMember, RetrySchedule, Timings
from kunicorn.group.protocol import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_KEEPING_SLOT_EPOCH,
    NO_GENERATION,
    ConsumerHeartbeatAnswer,
    TopicPartitions,
)
from kunicorn.group.reactions import Api, Reaction, reaction, reaction_of_member
from kunicorn.group.states import CONSUMER, OVER, State, Transition, state_after
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import TopicPartition


class Holdings:
    """The partitions of a member by topic id, its newest assignment, and the names of topics as far as they are
    known."""

    def __init__(self) -> None:
        self.target: TopicPartitions = ()
        """The newest assignment: all that we may own."""
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """What we own, and under which topic id it was given to us."""
        self._names: dict[UUID, str] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What a worker of ours may handle."""
        return frozenset(self._topic_ids)

    @property
    def unnamed(self) -> frozenset[UUID]:
        """Assigned topics whose names nobody has told us yet: their partitions wait."""
        return frozenset(topic_id for topic_id, _ in self.target if topic_id not in self._names)

    def name(self, names: Mapping[UUID, str]) -> None:
        """Note the names of topics. Of those that are neither owned nor assigned any more they are dropped: with a
        pattern topics may come and go for ever."""
        held = {*self._topic_ids.values(), *(topic_id for topic_id, _ in self.target)}
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in held} | dict(names)

    def surplus(self) -> tuple[TopicPartition, ...]:
        """The partitions that we own and that are not assigned to us any more."""
        wanted = {(topic_id, number) for topic_id, numbers in self.target for number in numbers}
        return tuple(sorted(tp for tp, topic_id in self._topic_ids.items() if (topic_id, tp.partition) not in wanted))

    def topic_id(self, tp: TopicPartition) -> UUID | None:
        """Under which topic id the partition was given to us."""
        return self._topic_ids.get(tp)

    def take_up(self) -> tuple[TopicPartition, ...]:
        """Own what the assignment gives us and has a name; returns what is new."""
        added = {
            tp: topic_id
            for topic_id, numbers in self.target
            if topic_id in self._names
            for number in numbers
            if number >= 0 and (tp := TopicPartition(self._names[topic_id], number)) not in self._topic_ids
        }
        self._topic_ids |= added
        return tuple(sorted(added))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give partitions up."""
        for tp in partitions:
            self._topic_ids.pop(tp, None)

    def drop(self) -> tuple[TopicPartition, ...]:
        """Own nothing and expect nothing; returns what we owned. Names stay until others come: ids are never
        reused."""
        lost = tuple(sorted(self._topic_ids))
        self._topic_ids, self.target = {}, ()
        return lost

    def report(self) -> TopicPartitions:
        """The partitions that we own, as a heartbeat names them."""
        owned = sorted((topic_id, tp.partition) for tp, topic_id in self._topic_ids.items())
        return tuple((topic_id, tuple(n for _, n in group)) for topic_id, group in groupby(owned, lambda each: each[0]))


BROKERS_SESSION = 45.0
"""Seconds; `group.consumer.session.timeout.ms` as brokers are shipped."""
_SLOT_PATIENCE = 1.5
"""Session timeouts to wait for the member before us to release our static slot: a killed one is missed after one."""


class ConsumerTransitions(GroupMember):
    """State of a member with the consumer protocol, and the transitions that several events share. Each method returns
    the commands for the driver, in order."""

    cooperative = True
    leader = False

    def __init__(
        self,
        member_id: str,
        timings: Timings,
        rng: random.Random,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        """`member_id` is ours to make, and kept as long as the process lives (KIP-1082)."""
        super().__init__(member_id, instance_id, timings, rng)
        self.assignor = assignor
        self._longest_session = timings.session_timeout
        self._slot_session = max(timings.session_timeout, BROKERS_SESSION)
        """For so long a dead member may hold its slot. The brokers' session decides there; ours, where it is shorter,
        only measures the lease."""
        self._naming_retries = RetrySchedule(timings, rng)
        self._holdings = Holdings()
        self._naming: ev.NameTopics | None = None
        self._heartbeat: ev.SendConsumerHeartbeat | None = None
        self._request: ev.Revoke | ev.SendConsumerHeartbeat | None = None
        """The drain that is under way, or the last heartbeat."""
        self._full = True
        self._asked = False
        self._slot_wanted_since: float | None = None
        self._may_hold_slot = False
        """A heartbeat of ours may have taken the static slot, without our knowing or before we were fenced."""
        self._leave_reason: str | None = None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What a worker of ours may handle."""
        return self._holdings.owned

    def topic_id(self, tp: TopicPartition) -> UUID | None:
        """Under which topic id the coordinator has given us that partition; None where it is not ours."""
        return self._holdings.topic_id(tp)

    @property
    def can_revoke_later(self) -> bool:
        """Never: the coordinator gives nothing away before all that it takes from us is let go of."""
        return False

    def _transition(self, transition: Transition) -> None:
        self.state = state_after(CONSUMER, self.state, transition)

    # -- partitions -----------------------------------------------------------------------------------------------

    def _owes(self) -> bool:
        """Whether the coordinator may wait for us to let go of something. It does so for the rebalance timeout, from
        the first heartbeat that found us with it; then it expels us, however many heartbeats it has had since
        (`GroupMetadataManager.java`, scheduleConsumerGroupRebalanceTimeoutIfNeeded)."""
        return self.state is State.ACKNOWLEDGING or bool(self._holdings.surplus())

    def _revoke(self, partitions: tuple[TopicPartition, ...]) -> Command:
        self._request = ev.Revoke(partitions)
        return self._request

    # -- trouble --------------------------------------------------------------------------------------------------

    def _may_await_slot(self, now: float) -> bool:
        if self._slot_wanted_since is None:
            self._slot_wanted_since = now
        return now - self._slot_wanted_since < _SLOT_PATIENCE * self._slot_session

    def _lose_coordinator(self, why: str, now: float) -> list[Command]:
        # The next one gives a whole session to every member that it reads from the log, the dead holder of our slot
        # among them.
        self._slot_wanted_since = None
        return self._coordinator.lost(why, now)

    def _release_slot(self, now: float) -> list[Command]:
        """Leave the slot that we may hold ourselves, before joining again. Brokers look at the epoch of its holder and
        not at its id (`GroupMetadataManager.java`, throwIfInstanceIdIsUnreleased): we would wait for our own session's
        end."""
        self._may_hold_slot = False
        self._schedule.due = now
        self._heartbeat = ev.SendConsumerHeartbeat(LEAVE_KEEPING_SLOT_EPOCH, self.member_id, False, None, now)
        return [self._heartbeat]

    def _evict(self, why: str, now: float) -> list[Command]:
        generation = self.generation
        lost = self._drop_everything()
        self.history.begin(why, now, Cause.EVICTED)
        if lost:
            self.history.end(generation, "lost", now)
            self.history.begin(why, now, Cause.EVICTED)
        self._schedule.hurry(now)
        self._transition(Transition.EVICT)
        return [ev.Lose(lost, why)] if lost else []

    def _fall_back(self, why: str) -> list[Command]:
        if self.state is State.LEAVING:
            return []  # a classic member would join, and know nothing of that
        # Nothing was ever granted to this member: it can go without a word.
        self._drop_everything()
        self._transition(Transition.FAIL)
        return [ev.FallBack(why)]

    def _fail(self, message: str) -> list[Command]:
        lost = self._drop_everything()
        self._transition(Transition.FAIL)
        return [*([ev.Lose(lost, message)] if lost else []), ev.Fail(message)]

    def _drop_everything(self) -> tuple[TopicPartition, ...]:
        self.generation = NO_GENERATION
        self.lease_until = None
        self._expelled_at = float("inf")
        self._heartbeat = self._request = self._naming = None
        self._full = True
        return self._holdings.drop()

    # -- leaving --------------------------------------------------------------------------------------------------

    def _on_leave_wanted(self, reason: str) -> list[Command]:
        if self._leave_reason is not None or self.state in OVER:
            return []
        self._leave_reason = reason
        self._transition(Transition.LEAVE)
        return [self._revoke(tuple(sorted(self.owned)))]

    def _part(self, now: float) -> list[Command]:
        # A first heartbeat that was not answered may have been heard: a leave too many is better than a ghost.
        if not self._asked or not self._coordinator.known:
            return self._gone()
        epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_KEEPING_SLOT_EPOCH
        leave = ev.SendConsumerHeartbeat(epoch, self.member_id, False, None, now)
        self._request = leave
        return [leave]

    def _gone(self) -> list[Command]:
        self._drop_everything()
        self._transition(Transition.GONE)
        return []


class ConsumerMember(ConsumerTransitions):
    """The state machine of a member with the consumer protocol. Not thread-safe; `now` never goes backwards."""

    def deadline(self) -> float:
        """When the next `Tick` is due; infinity where only an event can help."""
        if self.state is State.IDLE or self.state in OVER:
            return float("inf")
        if not self._coordinator.known:
            return self._coordinator.deadline()
        due = max(self._schedule.due, self._retries.due) if self._beats else float("inf")
        naming_due = self._holdings.unnamed and self._naming is None
        return min(due, self._naming_retries.due) if naming_due else due

    def receive(self, event: Event, now: float) -> list[Command]:
        """Advance on one event; return what the driver must do, in order. Nothing once it has left or was refused."""
        return [] if self.state in OVER else [*self._react(event, now), *self._due(now)]

    # -- one event -------------------------------------------------------------------------------------------

    def _react(self, event: Event, now: float) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 - an arm an event
        match event:
            case ev.JoinWanted():
                return self._on_join_wanted(now)
            case ev.CoordinatorFound(session_timeout):
                self._coordinator.found()
                self._schedule.due = now
                return [] if session_timeout is None else self._on_session_told(session_timeout)
            case ev.SessionTold(session_timeout):
                return self._on_session_told(session_timeout)
            case ev.CoordinatorRefused(error, why):
                self._coordinator.refused(now)
                refused = reaction(Api.FIND_COORDINATOR, error) is Reaction.FAIL
                return self._fail(f"{why} ({fault(error).name}): {fault(error).remedy()}") if refused else []
            case ev.ConsumerHeartbeatAnswered(request, answer, commit_pending):
                return self._on_answer(request, answer, commit_pending, now)
            case ev.TopicsNamed(request, names):
                return self._on_topics_named(request, names, now)
            case ev.Unanswered(request, why):
                return self._on_unanswered(request, why, now)
            case ev.Released(request):
                return self._on_released(request, now)
            case ev.CommitRefused(generation, member_id, error):
                return self._on_commit_refused(generation, member_id, error, now)
            case ev.LeaveWanted(reason):
                return self._on_leave_wanted(reason)
            case ev.Tick() | ev.TopicsChanged():
                # The coordinator watches the topics.
                return []
            case (
                ev.Joined() | ev.Planned() | ev.PlanFailed() | ev.Synced() | ev.HeartbeatAnswered() | ev.LeaveAnswered()
            ):
                # Answers to a classic member, which this one never was.
                return []
            case _:
                assert_never(event)

    def _due(self, now: float) -> list[Command]:
        """The commands that are due whatever the event was: look-up, heartbeat, names of topics."""
        if self.state is State.IDLE or self.state in OVER:
            return []
        if not self._coordinator.known:
            return self._coordinator.due(now)
        commands: list[Command] = []
        if self._beats and now >= max(self._schedule.due, self._retries.due):
            commands.append(self._beat(now))
        unnamed = self._holdings.unnamed
        if unnamed and self._naming is None and now >= self._naming_retries.due:
            self._naming = ev.NameTopics(unnamed)
            commands.append(self._naming)
        return commands

    @property
    def _beats(self) -> bool:
        # Whoever leaves without ever having been let in has nothing to keep alive.
        return self._heartbeat is None and (self.state is not State.LEAVING or self.generation != NO_GENERATION)

    def _on_join_wanted(self, now: float) -> list[Command]:
        if self.state is State.IDLE:  # else told to leave before it could join
            self.history.begin("first join", now, Cause.JOIN)
            self._transition(Transition.WANT)
        return []

    def _on_session_told(self, brokers: float) -> list[Command]:
        """The brokers keep us for so long after each heartbeat; a lease that outlives that has two owners handle."""
        before, self.session_timeout = self.session_timeout, min(brokers, self._longest_session)
        self._slot_session = max(brokers, self._longest_session)
        if self.lease_until is None or self.session_timeout >= before:
            return []
        self.lease_until -= before - self.session_timeout
        return [ev.ExtendLease(self.lease_until)]

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def _beat(self, now: float) -> Command:
        joining = self.state is State.JOINING
        owned: TopicPartitions | None = None
        if joining:
            owned = ()  # demanded of whoever joins (`GroupMetadataManager.java`)
        elif self._full or self.state is State.ACKNOWLEDGING:
            owned = self._holdings.report()
        self._schedule.sent(now, unsettled=self.state is not State.STABLE or bool(self._holdings.unnamed))
        epoch = JOIN_EPOCH if joining else self.generation
        self._heartbeat = ev.SendConsumerHeartbeat(epoch, self.member_id, joining or self._full, owned, now)
        self._asked = True
        return self._heartbeat

    def _on_answer(
        self, request: ev.SendConsumerHeartbeat, answer: ConsumerHeartbeatAnswer, commit_pending: bool, now: float
    ) -> list[Command]:
        if request is self._request:
            return self._gone()  # whatever the answer is: one try
        if request is not self._heartbeat:
            return []
        self._heartbeat = None
        if request.epoch == LEAVE_KEEPING_SLOT_EPOCH:
            return []  # with an error, the slot is another's
        verdict = _verdict(request, answer)
        if verdict is not Reaction.PROCEED:
            return self._refused(verdict, answer, commit_pending, now)
        self._retries.succeeded()
        self._slot_wanted_since = None
        self._may_hold_slot = True
        self._full = False
        self.heartbeat_ok_at = now
        if answer.epoch > 0:
            self.generation = answer.epoch
        if answer.assignment is not None:
            self._holdings.target = answer.assignment
        if self.state is State.ACKNOWLEDGING and request.owned == self._holdings.report():
            self._transition(Transition.ACCEPT)
        steady = self.state is State.STABLE and answer.assignment is None
        if steady or not self._owes():
            self._expelled_at = request.sent_at + self._rebalance_timeout
        certain = self._extend_lease(request.sent_at)
        if self.state is State.LEAVING or (steady and not self.history.open):
            return [certain]  # the steady case, which has to be cheap with ten thousand partitions
        return [certain, *self._reconcile(now)]

    def _refused(
        self, verdict: Reaction, answer: ConsumerHeartbeatAnswer, commit_pending: bool, now: float
    ) -> list[Command]:
        self._full = True
        error = answer.error
        why = f"{Api.CONSUMER_HEARTBEAT.value} was answered with {describe(error)}"
        match verdict:
            case Reaction.REDISCOVER if error == ErrorCode.COORDINATOR_NOT_AVAILABLE and commit_pending:
                # A replica of the offsets partition is slow: the broker holds our commit, and with it answers
                # heartbeats with 15. The coordinator is where it was.
                return []
            case Reaction.REDISCOVER:
                return self._lose_coordinator(why, now)
            case Reaction.RETRY:
                self._retries.failed(now)
                return []
            case Reaction.RESET_GENERATION:
                if self.state is State.JOINING:
                    # Who is fenced joins at once; where the join itself is refused so, it would ask without a pause.
                    self._retries.failed(now)
                return self._evict(why, now)
            case Reaction.AWAIT_SLOT if self._may_hold_slot and self.state is State.JOINING:
                return self._release_slot(now)
            case Reaction.AWAIT_SLOT if self._may_await_slot(now):
                self._retries.failed(now)
                return []
            case Reaction.FALL_BACK if self.generation == NO_GENERATION and not self.joined:
                return self._fall_back(answer.message or why)
            case _:
                return self._fail(f"{why}: {answer.message or 'no reason given'}; {fault(error).remedy()}")

    def _on_unanswered(self, request: ev.Request, why: str, now: float) -> list[Command]:
        if request is self._request:
            return self._gone()
        if request is not self._heartbeat:
            return []
        self._heartbeat = None
        self._full = self._may_hold_slot = True
        return self._lose_coordinator(why, now)

    def _on_commit_refused(self, generation: int, member_id: str, error: int, now: float) -> list[Command]:
        if (generation, member_id) != (self.generation, self.member_id):
            return []
        match reaction(Api.COMMIT, error):
            case Reaction.REDISCOVER:
                self._heartbeat = None
                self._full = True
                return self._coordinator.lost(f"a commit was answered with {describe(error)}", now)
            case Reaction.FAIL:
                return self._fail(f"a commit was answered with {describe(error)}: {fault(error).remedy()}")
            case Reaction.BEAT | Reaction.RESET_GENERATION | Reaction.FORGET_MEMBER:
                # What a commit is refused for the coordinator will tell the next heartbeat, too.
                self._schedule.due = now
            case _:
                pass  # the committer tries again
        return []

    # -- reconciling -----------------------------------------------------------------------------------------------

    def _reconcile(self, now: float) -> list[Command]:
        """Take the next step towards the newest assignment; none while one is under way."""
        if self.state in (State.RECONCILING, State.LEAVING):
            return []
        revoked, added = self._holdings.surplus(), self._holdings.take_up()
        if not revoked and not added:
            return self._settle(now)
        self.history.begin("the coordinator sent another assignment", now, Cause.GROUP)
        self._schedule.hurry(now)
        commands: list[Command] = [ev.Assign(added, self.generation)] if added else []
        if not revoked:
            self._transition(Transition.ASSIGN)
            return commands
        self._transition(Transition.ASSIGN_LESS)
        return [*commands, self._revoke(revoked)]

    def _settle(self, now: float) -> list[Command]:
        if self.state is State.JOINING:
            self._transition(Transition.ACCEPT)
        if self.state is State.STABLE and not self._holdings.unnamed and (self.history.open or not self.joined):
            self.joined = True
            self.history.end(self.generation, "completed", now)
        return []

    def _on_released(self, request: ev.Revoke, now: float) -> list[Command]:
        if request is not self._request:
            return []
        self._request = None
        self._holdings.release(request.partitions)
        if self.state is State.LEAVING:
            return self._part(now)
        self._transition(Transition.RELEASE)
        self._schedule.due = now
        return self._reconcile(now)

    def _on_topics_named(self, request: ev.NameTopics, names: Mapping[UUID, str], now: float) -> list[Command]:
        if request is not self._naming:
            return []
        self._naming = None
        self._holdings.name(names)
        if self._holdings.unnamed:
            self._naming_retries.failed(now)
        else:
            self._naming_retries.succeeded()
        return self._reconcile(now) if self.state in (State.STABLE, State.ACKNOWLEDGING, State.JOINING) else []


def _verdict(request: ev.SendConsumerHeartbeat, answer: ConsumerHeartbeatAnswer) -> Reaction:
    """What the answer asks for."""
    joins = request.epoch == JOIN_EPOCH
    if joins and not answer.error and answer.epoch <= 0:
        # In no epoch yet, as where a coordinator computes its first assignment behind its answers. A heartbeat with
        # the epoch of nobody, -1, would be a leave.
        return Reaction.RETRY
    return (reaction if joins else reaction_of_member)(Api.CONSUMER_HEARTBEAT, answer.error)
