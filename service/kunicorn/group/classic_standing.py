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
from kunicorn.group.states import CLASSIC, OVER, State, Step, take
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
        self._ownership = Ownership()
        self._assignors = assignors
        self._asked_at = self._undisturbed_at = float("-inf")
        """Send times of the last JoinGroup, and of the last request whose answer knew of no rebalance."""
        self._heartbeat: ev.SendHeartbeat | None = None
        self._request: ev.SendJoin | ev.MakePlan | ev.SendSync | ev.SendLeave | ev.Revoke | None = None
        self._unsent: ev.SendSync | None = None
        """What goes out as soon as the coordinator is known, if it is still what we want of it."""
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
    def may_follow(self) -> bool:
        """Whether partitions that still drain may be let go of later: the next JoinGroup can name them as owned."""
        return self.state is State.REVOKING

    def _step(self, step: Step) -> None:
        self.state = take(CLASSIC, self.state, step)

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
        request = ev.Revoke(tuple(sorted(partitions)))
        self._request = request
        return request

    def _on_released(self, request: ev.Revoke, held: frozenset[TopicPartition]) -> list[Command]:
        if request is not self._request:
            return []
        self._request = None
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
                return self._lose_coordinator(why, now)
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
        if self.state is not State.SYNCING:
            return self._lose_coordinator(why, now)
        if isinstance(self._request, ev.SendSync):
            # The assignment is given again to whoever asks again (`GroupMetadataManager.java`, classicGroupSync).
            # A join would cost the group a rebalance: a leader's always, a follower's as its subscription names
            # another generation than before (KIP-792).
            self._request = self._unsent = msgspec.structs.replace(self._request, again=True)
        self._heartbeat = None
        return self._search.lost(why, now)

    def _lose_coordinator(self, why: str, now: float) -> list[Command]:
        """The coordinator is elsewhere or silent; keep everything and look for it."""
        self._heartbeat = None
        if self.state in (State.JOINING, State.SYNCING):
            self._request = None
            self._step(Step.RETRY)
        return self._search.lost(why, now)

    def _retry(self, why: str, now: float) -> list[Command]:
        self._request = None
        self._rejoin_reason = why
        self._patience.failed(now)
        self._step(Step.RETRY)
        return self._leave() if self._leave_reason is not None else []

    def _evict(self, why: str, now: float, *, forget: bool) -> list[Command]:
        lost = self._ownership.drop()
        if lost:
            self._disturb(why, now, Cause.EVICTED)
            self.history.settled(self.generation, "lost", now)
        self._disturb(why, now, Cause.EVICTED)
        self.generation = NO_GENERATION
        self.member_id = "" if forget else self.member_id
        self.certain_until, self._expelled_at = None, float("inf")
        self._heartbeat = self._request = None
        self._step(Step.EVICT)
        commands: list[Command] = [ev.Lose(lost, why)] if lost else []
        if self._leave_reason is not None and self.state is State.UNJOINED:
            commands += self._leave()
        return commands

    def _fail(self, message: str) -> list[Command]:
        lost = self._ownership.drop()
        self._request = self._heartbeat = None
        self._step(Step.FAIL)
        return [*([ev.Lose(lost, message)] if lost else []), ev.Fail(message)]

    # -- leaving --------------------------------------------------------------------------------------------------

    def _on_leave_wanted(self, reason: str) -> list[Command]:
        if self._leave_reason is not None:
            return []
        self._leave_reason = reason
        # Between JoinGroup and SyncGroup nothing can be committed (invariant 2): owning partitions, the leave waits.
        waits = self.state in (State.JOINING, State.SYNCING) and bool(self.owned)
        return [] if waits or self.state in OVER else self._leave()

    def _leave(self) -> list[Command]:
        self._step(Step.LEAVE)
        return [self._revoke(self.owned)]

    def _gone(self) -> list[Command]:
        self._request = None
        self.certain_until = None
        self._step(Step.GONE)
        return []
