"""A member of a classic consumer group (KIP-62, 134, 345, 394, 429, 559, 800, 814), as a pure state machine.

    commands = member.receive(event, now)

The driver carries the commands out in order and tells the member what came of them. Everything that affects
membership lives here, and in the tables of `states` and `errors`:

1. A request that was sent under another generation or member id than ours is history: its errors are ignored.
2. JoinGroup names as owned everything that a worker of ours may still handle, and goes out only when all else that
   leaves us is drained and committed.
3. A lost coordinator costs nothing: member id, generation and partitions stay until a coordinator says otherwise. One
   that does not know a generation whose plan has not come is told of the generation before, and joined.
4. Membership is certain until the send time of the last request answered without an error plus the session timeout;
   but never past the rebalance timeout while the coordinator waits for us to join, or to ask for our assignment.

`ClassicTransitions` has the state of the member, and the transitions that several events share: rebalance, eviction,
leave. `Ownership` has its partitions, over the two joins of a cooperative rebalance (KIP-429).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import assert_never

import msgspec

from kunicorn.group import events as ev
from kunicorn.group.events import Command, Event
from kunicorn.group.member import Cause, GroupMember, Timings
from kunicorn.group.protocol import NO_GENERATION, JoinAnswer, Plan, SyncAnswer
from kunicorn.group.reactions import Api, Reaction, reaction
from kunicorn.group.states import BEATING, CLASSIC, OVER, State, Transition, state_after
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import TopicPartition

_GENERATIONS_KEPT = 4
"""Beside the one whose plan we have; a member that misses plan after plan has no use for more."""

Partitions = frozenset[TopicPartition]


class Ownership:
    """The partitions of a classic member. JoinGroup names as owned all that a worker of ours may still handle."""

    def __init__(self) -> None:
        self.owned: Partitions = frozenset()
        self.assigned: Partitions = frozenset()
        """What the last plan gave us, for assignors that keep partitions where they were (KIP-54)."""
        self._held: Partitions = frozenset()
        """Owned ones that a plan took away and that still drain: a later plan may give them back meanwhile."""

    def adopt(self, assigned: Partitions) -> tuple[Partitions, Partitions]:
        """Adopt a plan's partitions; returns those that are new, and those that it takes away.

        What still drains is as good as new to those who fetch: they have to be told to take it up again.
        """
        self.assigned = assigned
        revoked, added = self.owned - assigned, assigned - (self.owned - self._held)
        self.owned |= added
        self._held -= added
        return added, revoked

    def release(self, partitions: Collection[TopicPartition], held: Partitions) -> None:
        """Give partitions up, but for those `held` by a handler."""
        self._held = held
        self.owned -= frozenset(partitions) - held

    def drop(self) -> tuple[TopicPartition, ...]:
        """Give all partitions up; returns them, sorted."""
        lost = tuple(sorted(self.owned))
        self.owned = self.assigned = self._held = frozenset()
        return lost


class ClassicTransitions(GroupMember):
    """State of a classic member, and the transitions that several events share: rebalance, eviction, leave. Each method
    returns the commands for the driver, in order."""

    def __init__(
        self,
        assignors: Mapping[str, bool],
        timings: Timings,
        rng: random.Random,
        instance_id: str | None = None,
    ) -> None:
        """`assignors`: by preference, the name and whether it is cooperative (partitions stay while joining)."""
        super().__init__("", instance_id, timings, rng)
        self.leader = False
        self._earlier_generations: list[int] = []
        """From the newest one that gave us a plan on, those that we were in before this one, which is provisional: the
        leader's plan brings it into the log. A coordinator that takes over before that knows one of the earlier ones,
        and us in it; not always the first: the plan of one may have come to others alone."""
        self._joined_generation = NO_GENERATION
        """That of the newest JoinGroup that was answered; all who were in it name it beside what they own."""
        self._ownership = Ownership()
        self._assignors = assignors
        self._asked_at = self._undisturbed_at = float("-inf")
        """Send times of the last JoinGroup, and of the last request whose answer knew of no rebalance."""
        self._lost_join_at = float("inf")
        """Send time of the first JoinGroup since one was accepted that went unanswered. The coordinator may have taken
        it: its generation may be the one that the next answer tells of, whose members are waited for since then."""
        self._heartbeat: ev.SendHeartbeat | None = None
        self._request: ev.SendJoin | ev.MakePlan | ev.SendSync | ev.SendLeave | None = None
        """The one that is out. Whoever is told to leave meanwhile drains beside a join, and sees its plan through."""
        self._announced: ev.SendSync | None = None
        """During which a heartbeat announced the next rebalance already."""
        self._drain: ev.Revoke | None = None
        self._unsent: ev.SendSync | None = None
        """What goes out as soon as the coordinator is known and a retry is due, if it is still what we want of it."""
        self._evicted = False
        """No plan has come since the coordinator excluded us."""
        self._rejoin_reason = "first join"
        self._leave_reason: str | None = None
        self._stale: str | None = None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that a worker of ours may still handle."""
        return self._ownership.owned

    @property
    def cooperative(self) -> bool:
        """Whether partitions stay while we join: only if every assignor we offer is cooperative."""
        return all(self._assignors.values())

    @property
    def may_commit(self) -> bool:
        """See `GroupMember`. Brokers take commits while a JoinGroup is parked (only a leaving member commits then), and
        none while they wait for the plan."""
        return super().may_commit and not isinstance(self._request, ev.MakePlan | ev.SendSync)

    @property
    def can_revoke_later(self) -> bool:
        """Whether partitions that still drain may be let go of later: the next JoinGroup can name them as owned."""
        return self.state is State.REVOKING

    def _transition(self, transition: Transition) -> None:
        self.state = state_after(CLASSIC, self.state, transition)

    def _transition_unless_leaving(self, transition: Transition) -> None:
        if self.state is not State.LEAVING:
            self._transition(transition)

    def _begin_rebalance(self, reason: str, now: float, cause: Cause) -> None:
        self._rejoin_reason = reason
        self.history.begin(reason, now, cause)

    # -- partitions -----------------------------------------------------------------------------------------------

    def _rebalance(self, reason: str, now: float, cause: Cause) -> list[Command]:
        if self.state is not State.STABLE:
            return []
        self._begin_rebalance(reason, now, cause)
        if self.cooperative or not self.owned:
            self._transition(Transition.REBALANCE_KEEPING)
            return []
        self._transition(Transition.REBALANCE)
        return [self._revoke(self.owned)]

    def _revoke(self, partitions: frozenset[TopicPartition]) -> Command:
        self._drain = ev.Revoke(tuple(sorted(partitions)))
        return self._drain

    def _on_released(self, request: ev.Revoke, held: frozenset[TopicPartition]) -> list[Command]:
        if request is not self._drain:
            return []
        self._drain = None
        self._ownership.release(request.partitions, held)
        if self.state is not State.LEAVING:
            self._transition(Transition.RELEASE)
            return []
        if self.instance_id is not None or not self.member_id:
            return self._gone()
        leave = ev.SendLeave(self.generation, self.member_id, self._leave_reason or "")
        self._request = leave
        return [leave]

    # -- trouble --------------------------------------------------------------------------------------------------

    def _refused(self, api: Api, verdict: Reaction, error: int, now: float) -> list[Command]:
        why = f"{api.value} was answered with {describe(error)}"
        match verdict:
            case Reaction.RETRY:
                return self._retry(why, now)
            case Reaction.REJOIN:
                return self._rejoin(why, now)
            case Reaction.REJOIN_LATER:
                self.history.end(self.generation, "failed", now)
                self._begin_rebalance(why, now, Cause.GROUP)
                return self._retry(why, now)
            case Reaction.REDISCOVER:
                return self._lose_coordinator(why, now, join_answered=api is Api.JOIN)
            case Reaction.RESET_GENERATION if api is not Api.JOIN and self._is_provisional(now):
                return self._go_back(why, now)
            case Reaction.RESET_GENERATION:
                return self._evict(why, now, forget=False)
            case Reaction.FORGET_MEMBER:
                return self._evict(why, now, forget=True)
            case _:
                return self._fail(f"{why}: {fault(error).remedy()}")

    def _on_coordinator_refused(self, error: int, why: str, now: float) -> list[Command]:
        self._coordinator.refused(now)
        if reaction(Api.FIND_COORDINATOR, error) is Reaction.FAIL:
            return self._fail(f"{why} ({fault(error).name}): {fault(error).remedy()}")
        return []

    def _on_unanswered(self, request: ev.Request, why: str, now: float) -> list[Command]:
        if request is not self._heartbeat and request is not self._request:
            return []
        if isinstance(request, ev.SendLeave):
            return self._gone()
        if not isinstance(self._request, ev.MakePlan | ev.SendSync):
            return self._lose_coordinator(why, now)
        if isinstance(self._request, ev.SendSync):
            # The assignment is given again to whoever asks again (`GroupMetadataManager.java`, classicGroupSync).
            # A join would cost the group a rebalance: a leader's always, a follower's as its subscription names
            # another generation than before (KIP-792).
            self._ask_again_for_plan(self._request)
        self._heartbeat = None
        return self._coordinator.lost(why, now)

    def _ask_again_for_plan(self, request: ev.SendSync) -> None:
        self._request = self._unsent = msgspec.structs.replace(request)

    def _is_provisional(self, now: float) -> bool:
        """Whether a coordinator that does not know our generation may have taken over before it was in the log."""
        return bool(self._earlier_generations) and self._is_sure_of_its_place(now)

    def _is_sure_of_its_place(self, now: float) -> bool:
        """Whether a group that knows our id has given away nothing of ours. A static member stays in it whatever it
        misses: once its membership is not certain, others may own what it owned."""
        return self.instance_id is None or self.lease_until is None or now < self.lease_until

    def _go_back(self, why: str, now: float) -> list[Command]:
        """Go back to the generation before, which that coordinator may know; join anew if no join is under way."""
        self.generation = self._earlier_generations.pop()
        self._heartbeat = None
        self._schedule.due = now
        return self._retry(why, now) if isinstance(self._request, ev.MakePlan | ev.SendSync) else []

    def _lose_coordinator(self, why: str, now: float, *, join_answered: bool = False) -> list[Command]:
        """Look the coordinator up anew, as it moved or does not answer; everything else is kept."""
        self._heartbeat = None
        if isinstance(self._request, ev.SendJoin) and not join_answered:
            self._lost_join_at = min(self._lost_join_at, self._asked_at)
        if isinstance(self._request, ev.SendJoin | ev.MakePlan | ev.SendSync):
            self._request = None
            self._transition_unless_leaving(Transition.RETRY)
        return self._coordinator.lost(why, now)

    def _retry(self, why: str, now: float) -> list[Command]:
        self._request = None
        self._rejoin_reason = why
        self._retries.failed(now)
        self._transition_unless_leaving(Transition.RETRY)
        return []

    def _rejoin(self, why: str, now: float) -> list[Command]:
        """Join the rebalance that is under way. The others wait for us: it is no failure, however many went before."""
        self._retries.succeeded()
        return self._retry(why, now)

    def _evict(self, why: str, now: float, *, forget: bool) -> list[Command]:
        if self._evicted:
            # Who is excluded joins at once; where that comes to nothing, too, it would ask without a pause.
            self._retries.failed(now)
        self._evicted = True
        lost = self._ownership.drop()
        if lost:
            self._begin_rebalance(why, now, Cause.EVICTED)
            self.history.end(self.generation, "lost", now)
        self._begin_rebalance(why, now, Cause.EVICTED)
        self.generation = self._joined_generation = NO_GENERATION
        self._earlier_generations.clear()
        self.member_id = "" if forget else self.member_id
        self.lease_until, self._expelled_at, self._lost_join_at = None, float("inf"), float("inf")
        self._heartbeat = self._request = self._drain = None
        self._transition(Transition.EVICT)
        return [ev.Lose(lost, why)] if lost else []

    def _fail(self, message: str) -> list[Command]:
        lost = self._ownership.drop()
        self._request = self._heartbeat = self._drain = None
        self._transition(Transition.FAIL)
        return [*([ev.Lose(lost, message)] if lost else []), ev.Fail(message)]

    # -- leaving --------------------------------------------------------------------------------------------------

    def _on_leave_wanted(self, reason: str) -> list[Command]:
        if self._leave_reason is not None:
            return []
        self._leave_reason = reason
        self._transition(Transition.LEAVE)
        if not self.owned:
            self._request = None
        # Others may hold up a JoinGroup for minutes. It goes on beside the drain: once the group has gone on to the
        # next generation, only that one can be committed under, and only when its plan has come.
        return [self._revoke(self.owned)]

    def _gone(self) -> list[Command]:
        self._request = None
        self.lease_until = None
        self._transition(Transition.GONE)
        return []


PROTOCOL_TYPE = "consumer"


class ClassicMember(ClassicTransitions):
    """The state machine of a classic member. Not thread-safe; `now` never goes backwards."""

    def deadline(self) -> float:
        """When the next `Tick` is due; infinity where only an event can help."""
        if self.state is State.IDLE or self.state in OVER:
            return float("inf")
        if not self._coordinator.known:
            return self._coordinator.deadline()
        waits = self.state is State.UNJOINED or self._unsent is not None
        due = self._retries.due if waits else float("inf")
        if self._beats:
            due = min(due, self._schedule.due)
        return due

    def receive(self, event: Event, now: float) -> list[Command]:
        """Advance on one event; return what the driver must do, in order. Nothing once it has left or was refused."""
        return [] if self.state in OVER else [*self._react(event, now), *self._due(now)]

    # -- one event -------------------------------------------------------------------------------------------

    def _react(self, event: Event, now: float) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 - an arm an event
        match event:
            case ev.Tick():
                return []
            case ev.JoinWanted():
                return self._on_join_wanted(now)
            case ev.CoordinatorFound():
                self._coordinator.found()
                self._schedule.due = now
                return []
            case ev.CoordinatorRefused(error, why):
                return self._on_coordinator_refused(error, why, now)
            case ev.Joined(request, answer):
                return self._on_joined(request, answer, now)
            case ev.Planned(request, plan):
                if request is self._request:
                    self._sync(plan)
                return []
            case ev.PlanFailed(request, why):
                return self._retry(f"no plan: {why}", now) if request is self._request else []
            case ev.Synced(request, answer, sent_at):
                return self._on_synced(request, answer, sent_at, now)
            case ev.HeartbeatAnswered(request, error, commit_pending):
                return self._on_heartbeat(request, error, commit_pending, now)
            case ev.LeaveAnswered(request, _):
                return self._gone() if request is self._request else []
            case ev.Unanswered(request, why):
                return self._on_unanswered(request, why, now)
            case ev.Released(request, held):
                return self._on_released(request, held)
            case ev.CommitRefused(generation, member_id, error):
                return self._on_commit_refused(generation, member_id, error, now)
            case ev.TopicsChanged(reason):
                return self._on_topics_changed(reason, now)
            case ev.ConsumerHeartbeatAnswered() | ev.TopicsNamed() | ev.SessionTold():
                # Answers to the consumer member that we were before the brokers turned that protocol down.
                return []
            case ev.LeaveWanted(reason):
                return self._on_leave_wanted(reason)
            case _:
                assert_never(event)

    def _due(self, now: float) -> list[Command]:
        """The commands that are due whatever the event was: look-up, join, sync, heartbeat."""
        if self.state is State.IDLE or self.state in OVER:
            return []
        if not self._coordinator.known:
            return self._coordinator.due(now)
        if self.state is State.UNJOINED and now >= self._retries.due:
            return [self._join(now)]
        commands: list[Command] = []
        if self._unsent is not self._request:
            self._unsent = None
        if self._unsent is not None and now >= self._retries.due:
            commands.append(self._unsent)
            self._unsent = None
        if self._beats and now >= self._schedule.due:
            self._schedule.sent(now, unsettled=self.state is not State.STABLE)
            self._heartbeat = ev.SendHeartbeat(self.generation, self.member_id, now)
            commands.append(self._heartbeat)
        return commands

    @property
    def _beats(self) -> bool:
        return self._heartbeat is None and self.generation != NO_GENERATION and self.state in BEATING

    def _on_join_wanted(self, now: float) -> list[Command]:
        if self.state is State.IDLE:  # else told to leave before it could join
            self._begin_rebalance("first join", now, Cause.JOIN)
            self._transition(Transition.WANT)
        return []

    # -- joining -----------------------------------------------------------------------------------------------

    def _join(self, now: float) -> Command:
        self._transition(Transition.ASK)
        self._asked_at = now
        self._expelled_at = min(self._expelled_at, now + self._rebalance_timeout)
        self._stale = None
        owned = tuple(sorted(self.owned))
        assigned = tuple(sorted(self._ownership.assigned))
        request = ev.SendJoin(self._joined_generation, self.member_id, owned, assigned, self._rejoin_reason)
        self._request = request
        return request

    def _on_joined(self, request: ev.SendJoin, answer: JoinAnswer, now: float) -> list[Command]:
        if request is not self._request:
            return []
        match reaction(Api.JOIN, answer.error):
            case Reaction.PROCEED:
                return self._accept(answer, now)
            case Reaction.ADOPT_MEMBER_ID:
                self.member_id, self._request = answer.member_id, None
                self._transition_unless_leaving(Transition.RETRY)
                return []
            case other:
                return self._refused(Api.JOIN, other, answer.error, now)

    def _accept(self, answer: JoinAnswer, now: float) -> list[Command]:
        if answer.protocol_type not in (None, PROTOCOL_TYPE):
            return self._fail(
                f"the group is of type {answer.protocol_type!r}, not {PROTOCOL_TYPE!r}: use another group.id"
            )
        if answer.assignor not in self._assignors:
            return self._fail(f"the group chose the assignor {answer.assignor!r}, which this member did not offer")
        self._transition_unless_leaving(Transition.ACCEPT)
        # Whoever has joined and does not come for its assignment is expelled, too (`pendingSyncMembers`): so long after
        # the generation began, which a JoinGroup before may have been part of whose answer was lost.
        since, self._lost_join_at = min(self._asked_at, self._lost_join_at), float("inf")
        self._undisturbed_at, self._expelled_at = self._asked_at, since + self._rebalance_timeout
        # Retries have not succeeded before the plan is taken: where each is refused, the group would join ten times a
        # second.
        self._schedule.hurry(now)
        return [*self._lost_unseen(answer, now), *self._take_part(answer)]

    def _lost_unseen(self, answer: JoinAnswer, now: float) -> list[Command]:
        """A group of the consumer protocol (it names no leader) takes whom it has evicted back under the old id and
        without a word, where a classic one says UNKNOWN_MEMBER_ID (`GroupMetadataManager.java`,
        classicGroupJoinToConsumerGroup). So what we owned may be another's once our membership was not certain."""
        if answer.leader or self.lease_until is None or now < self.lease_until:
            return []
        lost = self._ownership.drop()
        return [ev.Lose(lost, "the session ran out before the group took us back")] if lost else []

    def _take_part(self, answer: JoinAnswer) -> list[Command]:
        if self.generation != answer.generation:
            self._earlier_generations.append(self.generation)
            # However often the group rebalances before we have a plan: what a log has is the first, or a late one.
            del self._earlier_generations[1:-_GENERATIONS_KEPT]
        self.generation = self._joined_generation = answer.generation
        self.member_id, self.assignor = answer.member_id, answer.assignor
        self.leader = answer.leader == answer.member_id
        if not self.leader:
            self._sync({})
            return []
        plan = ev.MakePlan(answer.generation, answer.assignor or "", answer.members, answer.skip_assignment)
        self._request = plan
        return [plan]

    def _sync(self, plan: Plan) -> None:
        self._request = self._unsent = ev.SendSync(self.generation, self.member_id, self.assignor, plan)

    def _on_synced(self, request: ev.SendSync, answer: SyncAnswer, sent_at: float, now: float) -> list[Command]:
        if request is not self._request:
            return []
        verdict = reaction(Api.SYNC, answer.error)
        if verdict is not Reaction.PROCEED:
            return self._refused(Api.SYNC, verdict, answer.error, now)
        if answer.protocol_type not in (None, PROTOCOL_TYPE):
            return self._fail(f"SyncGroup speaks of a group of type {answer.protocol_type!r}, not {PROTOCOL_TYPE!r}")
        if answer.assignor not in (None, self.assignor):
            return self._fail(f"SyncGroup speaks of the assignor {answer.assignor!r}, JoinGroup of {self.assignor!r}")
        if answer.unreadable and self.state is not State.LEAVING:
            # Whoever asks again is given the same; a leader that can be read comes with the next generation. A join
            # would cost the others a rebalance, for the same leader's next plan.
            self._retries.failed(now)
            self._ask_again_for_plan(request)
            return []
        self._request = None
        self._evicted = False
        self._earlier_generations.clear()
        self._retries.succeeded()
        self._schedule.hurry(now)
        self.joined = True
        self._expelled_at, self._undisturbed_at = float("inf"), sent_at
        return [self._extend_lease(sent_at), *self._adopt(frozenset(answer.partitions), now)]

    def _adopt(self, assigned: frozenset[TopicPartition], now: float) -> list[Command]:
        if self.state is State.LEAVING:
            self.history.end(self.generation, "completed", now)
            return []
        added, revoked = self._ownership.adopt(assigned)
        commands: list[Command] = [ev.Assign(tuple(sorted(added)), self.generation)]
        if revoked:
            self._transition(Transition.ASSIGN_LESS)
            self._rejoin_reason = f"revoked {len(revoked)} partitions, as the plan of generation {self.generation} asks"
            return [*commands, self._revoke(revoked)]
        self._transition(Transition.ASSIGN)
        self.history.end(self.generation, "completed", now)
        if self._stale is not None:
            commands += self._rebalance(self._stale, now, Cause.TOPICS)
        return commands

    # -- being a member ------------------------------------------------------------------------------------------

    def _on_heartbeat(self, request: ev.SendHeartbeat, error: int, commit_pending: bool, now: float) -> list[Command]:
        if request is not self._heartbeat:
            return []
        self._heartbeat = None
        if (request.generation, request.member_id) != (self.generation, self.member_id):
            return []
        match reaction(Api.HEARTBEAT, error):
            case Reaction.PROCEED:
                self.heartbeat_ok_at, self._undisturbed_at = now, request.sent_at
                if self.state not in (State.UNJOINED, State.JOINING, State.SYNCING):  # there, what is next is put off
                    self._retries.succeeded()
                return [self._extend_lease(request.sent_at)]
            case Reaction.REJOIN:
                return self._on_announced(request, now)
            case Reaction.REDISCOVER if error == ErrorCode.COORDINATOR_NOT_AVAILABLE and commit_pending:
                # A replica of the offsets partition is slow: the broker holds our commit, and with it answers
                # heartbeats with 15. The coordinator is where it was.
                return []
            case Reaction.RETRY:
                return self._on_heartbeat_refused(error, now)
            case Reaction.RESET_GENERATION if self._joins_the_next(now):
                return []
            case other:
                return self._refused(Api.HEARTBEAT, other, error, now)

    def _on_heartbeat_refused(self, error: int, now: float) -> list[Command]:
        """Go by what a JoinGroup brings once membership is not certain any more: a coordinator that refuses every
        heartbeat with an error nobody knows would leave us neither in the group nor out of it, for ever. One that is
        still loading its groups, and starts our session anew then, is waited for."""
        certain = self.lease_until is None or now < self.lease_until
        if certain or error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return []
        return self._rebalance(f"heartbeats are answered with {describe(error)}", now, Cause.GROUP)

    def _on_announced(self, request: ev.SendHeartbeat, now: float) -> list[Command]:
        """The broker restarts the session before it announces a rebalance: as good a sign of life as any."""
        self.heartbeat_ok_at = now
        self._expelled_at = min(self._expelled_at, self._undisturbed_at + self._rebalance_timeout)
        certain, why = self._extend_lease(request.sent_at), "the coordinator announced a rebalance"
        if isinstance(self._request, ev.SendSync):
            if self._announced is not self._request:
                # Over its own connection the answer to SyncGroup may be a moment behind; and librdkafka's mock
                # announces a rebalance to whoever waits for a plan.
                self._announced = self._request
                return [certain]
            # It has answered all that waited for this generation. That answer is lost: waiting for it while the
            # others rebalance costs the partitions that stayed.
            return [certain, *self._rejoin(why, now)]
        return [certain, *self._rebalance(why, now, Cause.GROUP)]

    def _on_commit_refused(self, generation: int, member_id: str, error: int, now: float) -> list[Command]:
        if (generation, member_id) != (self.generation, self.member_id):
            return []
        verdict = reaction(Api.COMMIT, error)
        if verdict is Reaction.BEAT:
            # Heartbeats tell whether there is a rebalance to join: a leader's join would be one by itself.
            self._schedule.due = now
            return []
        if verdict in (Reaction.RESET_GENERATION, Reaction.FORGET_MEMBER) and (
            self._joins_the_next(now) or isinstance(self._request, ev.MakePlan | ev.SendSync)
        ):
            return []
        if verdict in (Reaction.RESET_GENERATION, Reaction.FORGET_MEMBER, Reaction.REDISCOVER, Reaction.FAIL):
            return self._refused(Api.COMMIT, verdict, error, now)
        return []

    def _joins_the_next(self, now: float) -> bool:
        """Whether a group that does not know our generation may have gone on to the one that we join: the answer to
        JoinGroup is under way then, over the other connection; or it was lost, and is asked for again."""
        asks_again = self.state is State.UNJOINED and self._lost_join_at <= now and self._is_sure_of_its_place(now)
        return (isinstance(self._request, ev.SendJoin) or asks_again) and not self._is_provisional(now)

    def _on_topics_changed(self, reason: str, now: float) -> list[Command]:
        if self.state is State.STABLE:
            return self._rebalance(reason, now, Cause.TOPICS)
        self._stale = reason
        return []
