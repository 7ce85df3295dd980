"""Where a member with the consumer protocol stands, and what becomes of that: whatever event it was that told of it."""

from __future__ import annotations

import random

from kunicorn.group import events as ev
from kunicorn.group.events import Command
from kunicorn.group.history import Cause
from kunicorn.group.holdings import Holdings
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.standing import Standing
from kunicorn.group.states import CONSUMER, OVER, State, Step, take
from kunicorn.group.timing import Patience, Timings
from kunicorn.topics import TopicPartition

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_KEEPING_SLOT_EPOCH = 0, -1, -2
"""`ConsumerGroupHeartbeatRequest.java`."""

_SLOT_PATIENCE = 1.5
"""Session timeouts to wait for the member before us to release our static slot: a killed one is missed after one."""


class ConsumerStanding(Standing):
    """What `ConsumerMember` decides about itself; each method returns what the driver must do, in order."""

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
        self._naming_patience = Patience(timings, rng)
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

    @property
    def may_follow(self) -> bool:
        """Never: the coordinator gives nothing away before all that it takes from us is let go of."""
        return False

    def _step(self, step: Step) -> None:
        self.state = take(CONSUMER, self.state, step)

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
        return now - self._slot_wanted_since < _SLOT_PATIENCE * self.session_timeout

    def _release_slot(self, now: float) -> list[Command]:
        """Leave the slot that we may hold ourselves, before joining again. Brokers look at the epoch of its holder and
        not at its id (`GroupMetadataManager.java`, throwIfInstanceIdIsUnreleased): we would wait for our own session's
        end."""
        self._may_hold_slot = False
        self._pulse.due = now
        self._heartbeat = ev.SendConsumerHeartbeat(LEAVE_KEEPING_SLOT_EPOCH, self.member_id, False, None, now)
        return [self._heartbeat]

    def _evict(self, why: str, now: float) -> list[Command]:
        generation = self.generation
        lost = self._drop_everything()
        self.history.disturbed(why, now, Cause.EVICTED)
        if lost:
            self.history.settled(generation, "lost", now)
            self.history.disturbed(why, now, Cause.EVICTED)
        self._pulse.hurry(now)
        self._step(Step.EVICT)
        return [ev.Lose(lost, why)] if lost else []

    def _fall_back(self, why: str) -> list[Command]:
        if self.state is State.LEAVING:
            return []  # a classic member would join, and know nothing of that
        # Nothing was ever granted to this member: it can go without a word.
        self._drop_everything()
        self._step(Step.FAIL)
        return [ev.FallBack(why)]

    def _fail(self, message: str) -> list[Command]:
        lost = self._drop_everything()
        self._step(Step.FAIL)
        return [*([ev.Lose(lost, message)] if lost else []), ev.Fail(message)]

    def _drop_everything(self) -> tuple[TopicPartition, ...]:
        self.generation = NO_GENERATION
        self.certain_until = None
        self._expelled_at = float("inf")
        self._heartbeat = self._request = self._naming = None
        self._full = True
        return self._holdings.drop()

    # -- leaving --------------------------------------------------------------------------------------------------

    def _on_leave_wanted(self, reason: str) -> list[Command]:
        if self._leave_reason is not None or self.state in OVER:
            return []
        self._leave_reason = reason
        self._step(Step.LEAVE)
        return [self._revoke(tuple(sorted(self.owned)))]

    def _part(self, now: float) -> list[Command]:
        # A first heartbeat that was not answered may have been heard: a leave too many is better than a ghost.
        if not self._asked or not self._search.known:
            return self._gone()
        epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_KEEPING_SLOT_EPOCH
        leave = ev.SendConsumerHeartbeat(epoch, self.member_id, False, None, now)
        self._request = leave
        return [leave]

    def _gone(self) -> list[Command]:
        self._drop_everything()
        self._step(Step.GONE)
        return []
