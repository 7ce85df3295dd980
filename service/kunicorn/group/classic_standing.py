"""Where a member of a classic group stands, and what becomes of that: whatever event it was that told of it."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from kunicorn.group import events as ev
from kunicorn.group.error_codes import name_of
from kunicorn.group.events import Command
from kunicorn.group.history import Cause
from kunicorn.group.ownership import Ownership
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.reactions import Api, Reaction, reaction, remedy
from kunicorn.group.standing import Standing
from kunicorn.group.states import CLASSIC, State, Step, take
from kunicorn.group.timing import Timings
from kunicorn.topics import TopicPartition


class ClassicStanding(Standing):
    """What `ClassicMember` decides about itself; each method returns what the driver must do, in order."""

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
        self._planned_generation = NO_GENERATION
        """The newest one that gave us a plan. A later one is provisional: the leader's plan brings it into the log. A
        coordinator that takes over before that knows only the one before, and us in it."""
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
        """What goes out as soon as the coordinator is known and patience allows, if it is still what we want of it."""
        self._rejoin_reason = "first join"
        self._leave_reason: str | None = None
        self._stale: str | None = None

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """All that a worker of ours may still handle."""
        return self._ownership.owned

    @property
    def cooperative(self) -> bool:
        """Whether partitions stay while we join: only if every assignor we offer is cooperative."""
        return all(self._assignors.values())

    @property
    def may_commit(self) -> bool:
        """See `Standing`. Brokers take commits while a JoinGroup is parked (only a leaving member commits then), and
        none while they wait for the plan."""
        return super().may_commit and not isinstance(self._request, ev.MakePlan | ev.SendSync)

    @property
    def may_follow(self) -> bool:
        """Whether partitions that still drain may be let go of later: the next JoinGroup can name them as owned."""
        return self.state is State.REVOKING

    def _step(self, step: Step) -> None:
        self.state = take(CLASSIC, self.state, step)

    def _step_unless_leaving(self, step: Step) -> None:
        if self.state is not State.LEAVING:
            self._step(step)

    def _disturb(self, reason: str, now: float, cause: Cause) -> None:
        self._rejoin_reason = reason
        self.history.disturbed(reason, now, cause)

    # -- partitions -----------------------------------------------------------------------------------------------

    def _rebalance(self, reason: str, now: float, cause: Cause) -> list[Command]:
        if self.state is not State.STABLE:
            return []
        self._disturb(reason, now, cause)
        if self.cooperative or not self.owned:
            self._step(Step.REBALANCE_KEEPING)
            return []
        self._step(Step.REBALANCE)
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
            self._step(Step.RELEASE)
            return []
        if self.instance_id is not None or not self.member_id:
            return self._gone()
        leave = ev.SendLeave(self.generation, self.member_id, self._leave_reason or "")
        self._request = leave
        return [leave]

    # -- trouble --------------------------------------------------------------------------------------------------

    def _refused(self, api: Api, verdict: Reaction, error: int, now: float) -> list[Command]:
        why = f"{api.value} was answered with error {error}"
        match verdict:
            case Reaction.RETRY | Reaction.REJOIN:
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
                return self._fail(f"{why} ({name_of(error)}): {remedy(error)}")

    def _on_coordinator_refused(self, error: int, why: str, now: float) -> list[Command]:
        self._search.refused(now)
        if reaction(Api.FIND_COORDINATOR, error) is Reaction.FAIL:
            return self._fail(f"{why} ({name_of(error)}): {remedy(error)}")
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
        return self._search.lost(why, now)

    def _ask_again_for_plan(self, request: ev.SendSync) -> None:
        self._request = self._unsent = msgspec.structs.replace(request)

    def _is_provisional(self, now: float) -> bool:
        """Whether a coordinator that does not know our generation may have taken over before it was in the log."""
        return self.generation != self._planned_generation and self._is_sure_of_its_place(now)

    def _is_sure_of_its_place(self, now: float) -> bool:
        """Whether a group that knows our id has given away nothing of ours. A static member stays in it whatever it
        misses: once its membership is not certain, others may own what it owned."""
        return self.instance_id is None or self.certain_until is None or now < self.certain_until

    def _go_back(self, why: str, now: float) -> list[Command]:
        """Be a member of the generation before, which that coordinator knows; join anew if no join is under way."""
        self.generation = self._planned_generation
        self._heartbeat = None
        self._pulse.due = now
        return self._retry(why, now) if isinstance(self._request, ev.MakePlan | ev.SendSync) else []

    def _lose_coordinator(self, why: str, now: float, *, join_answered: bool = False) -> list[Command]:
        """The coordinator is elsewhere or silent; keep everything and look for it."""
        self._heartbeat = None
        if isinstance(self._request, ev.SendJoin) and not join_answered:
            self._lost_join_at = min(self._lost_join_at, self._asked_at)
        if isinstance(self._request, ev.SendJoin | ev.MakePlan | ev.SendSync):
            self._request = None
            self._step_unless_leaving(Step.RETRY)
        return self._search.lost(why, now)

    def _retry(self, why: str, now: float) -> list[Command]:
        self._request = None
        self._rejoin_reason = why
        self._patience.failed(now)
        self._step_unless_leaving(Step.RETRY)
        return []

    def _evict(self, why: str, now: float, *, forget: bool) -> list[Command]:
        lost = self._ownership.drop()
        if lost:
            self._disturb(why, now, Cause.EVICTED)
            self.history.settled(self.generation, "lost", now)
        self._disturb(why, now, Cause.EVICTED)
        self.generation = self._planned_generation = self._joined_generation = NO_GENERATION
        self.member_id = "" if forget else self.member_id
        self.certain_until, self._expelled_at, self._lost_join_at = None, float("inf"), float("inf")
        self._heartbeat = self._request = self._drain = None
        self._step(Step.EVICT)
        return [ev.Lose(lost, why)] if lost else []

    def _fail(self, message: str) -> list[Command]:
        lost = self._ownership.drop()
        self._request = self._heartbeat = self._drain = None
        self._step(Step.FAIL)
        return [*([ev.Lose(lost, message)] if lost else []), ev.Fail(message)]

    # -- leaving --------------------------------------------------------------------------------------------------

    def _on_leave_wanted(self, reason: str) -> list[Command]:
        if self._leave_reason is not None:
            return []
        self._leave_reason = reason
        self._step(Step.LEAVE)
        if not self.owned:
            self._request = None
        # Others may hold up a JoinGroup for minutes. It goes on beside the drain: once the group has gone on to the
        # next generation, only that one can be committed under, and only when its plan has come.
        return [self._revoke(self.owned)]

    def _gone(self) -> list[Command]:
        self._request = None
        self.certain_until = None
        self._step(Step.GONE)
        return []
