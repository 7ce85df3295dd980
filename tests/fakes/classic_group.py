"""A classic group as Kafka's coordinator keeps it, as a model: no I/O, and time is an argument.

After `ClassicGroup.java` and `GroupMetadataManager.java`: protocol voting, pending members (KIP-394), static ones
(KIP-345), `skip_assignment` (KIP-814), the three timers (session, rebalance, pending sync), and what a new coordinator
finds in the log. An empty group's first rebalance waits for more members only if `initial_delay` says so.

Nothing that a stable group does costs more for having more members: timers are looked at when the first of them is due.

JoinGroup and SyncGroup are answered by calling `reply`, at once or when the group has got so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import count

from kunicorn.group.protocol import JoinAnswer, Member, Plan, SyncAnswer
from kunicorn.kafka_errors import ErrorCode as E
from tests.fakes.requests import Join, Leaver, Sync
from tests.fakes.seats import GroupState, Joined, Seat, Synced


@dataclass
class ClassicGroup:
    """See the module."""

    name: str = "m"
    initial_delay: float = 0.0
    """Seconds (`group.initial.rebalance.delay.ms`), and so long again as long as more members come."""
    first_id: int = 1
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    assignor: str | None = None
    leader: str | None = None
    seats: dict[str, Seat] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids given to members that have not come back with them, and until when they may."""
    rebalance_ends: float = float("inf")
    sync_ends: float = float("inf")
    rebalances: int = 0
    missing: frozenset[str] = frozenset()
    """Static members that the last rebalance went on without: theirs may be others', and they are still in."""

    def __post_init__(self) -> None:
        self._ids = count(self.first_id)
        self._due = float("inf")
        """No timer goes off before. Sessions are only ever extended, so that it may be too early and never too late."""
        self._initial_ends = float("inf")
        self._initial_left = 0.0
        self._more_came = False
        self._logged = copy(self)

    @property
    def members(self) -> Collection[str]:
        """The ids of those that are in."""
        return self.seats.keys()

    # -- requests --------------------------------------------------------------------------------------------------

    def join(self, request: Join, reply: Joined, now: float) -> None:
        """JoinGroup."""
        self.tick(now)
        refusal = self._refused_join(request)
        if refusal is not E.NONE:
            reply(JoinAnswer(refusal, member_id=request.member_id))
            return
        known = self.seats.get(request.member_id)
        if request.instance_id is not None and not request.member_id:
            self._join_static(request, reply, now)
        elif not request.member_id:
            member_id = self._new_id()
            self.pending[member_id] = now + request.session_timeout
            self._wake(self.pending[member_id])
            reply(JoinAnswer(E.MEMBER_ID_REQUIRED, member_id=member_id))
        elif known is None:
            self._enter(request, request.member_id, reply, now)
        else:
            self._rejoin(known, request, reply, now)

    def _refused_join(self, request: Join) -> int:
        if request.protocol_type != "consumer" or not request.protocols:
            return E.INCONSISTENT_GROUP_PROTOCOL
        others = [seat for seat in self.seats.values() if seat.member_id != request.member_id]
        common = set(request.protocols).intersection(*(seat.protocols for seat in others))
        if others and not common:
            return E.INCONSISTENT_GROUP_PROTOCOL
        if not request.member_id:
            return E.NONE
        holder = self._holder(request.instance_id)
        if holder is not None and holder.member_id != request.member_id:
            return E.FENCED_INSTANCE_ID
        known = request.member_id in self.seats or request.member_id in self.pending
        return E.NONE if known else E.UNKNOWN_MEMBER_ID

    def _join_static(self, request: Join, reply: Joined, now: float) -> None:
        before = self._holder(request.instance_id)
        member_id = self._new_id()
        if before is None:
            self._enter(request, member_id, reply, now)
            return
        self._answer_join(before, JoinAnswer(E.FENCED_INSTANCE_ID, member_id=before.member_id))
        self._answer_sync(before, SyncAnswer(E.FENCED_INSTANCE_ID))
        led = self.leader == before.member_id
        # Only the assignor that comes of the vote counts here, not what the members say to it.
        seat = Seat(member_id, request.instance_id, request.protocols, request.session_timeout,
                    request.rebalance_timeout, now + request.session_timeout, before.assigned)  # fmt: skip
        self.seats = {(member_id if key == before.member_id else key): each for key, each in self.seats.items()}
        self.seats[member_id] = seat
        self._wake(seat.expires)
        self.leader = member_id if led else self.leader
        if self.state is GroupState.STABLE and self._vote() == self.assignor:
            seat.has_synced = True
            reply(self._welcome(seat, skip=led))
            self._log()
            return
        seat.joined = reply
        self._rebalance(now)

    def _enter(self, request: Join, member_id: str, reply: Joined, now: float) -> None:
        self.pending.pop(member_id, None)
        self.seats[member_id] = Seat(
            member_id, request.instance_id, request.protocols, request.session_timeout, request.rebalance_timeout,
            now + request.session_timeout, joined=reply,
        )  # fmt: skip
        self._more_came = self._initial_ends < float("inf")
        self._rebalance(now)

    def _rejoin(self, seat: Seat, request: Join, reply: Joined, now: float) -> None:
        changed = dict(seat.protocols) != dict(request.protocols)
        seat.expires = now + seat.session_timeout
        settled = self.state in (GroupState.STABLE, GroupState.COMPLETING) and not changed
        if settled and not (self.state is GroupState.STABLE and seat.member_id == self.leader):
            # Its answer was lost on the way.
            self.missing -= {seat.member_id}
            reply(self._welcome(seat))
            return
        seat.protocols, seat.joined = request.protocols, reply
        self._rebalance(now)

    def sync(self, request: Sync, reply: Synced, now: float) -> None:
        """SyncGroup."""
        self.tick(now)
        refusal = self._refused(request.member_id, request.generation, request.instance_id)
        if refusal is E.NONE and request.assignor not in (None, self.assignor):
            refusal = E.INCONSISTENT_GROUP_PROTOCOL
        if refusal is E.NONE and self.state is GroupState.PREPARING:
            refusal = E.REBALANCE_IN_PROGRESS
        if refusal is not E.NONE:
            reply(SyncAnswer(refusal))
            return
        seat = self.seats[request.member_id]
        seat.expires, seat.has_synced = now + seat.session_timeout, True
        if all(each.has_synced for each in self.seats.values()):
            self.sync_ends = float("inf")
        if self.state is GroupState.STABLE:
            reply(self._assignment(seat))
            return
        seat.synced = reply
        if request.member_id == self.leader:
            self._adopt(request.plan, now)

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: float) -> int:
        """Heartbeat; the error code."""
        self.tick(now)
        refusal = self._refused(member_id, generation, instance_id)
        if refusal is not E.NONE:
            return refusal
        seat = self.seats[member_id]
        seat.expires = now + seat.session_timeout
        return E.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else E.NONE

    def leave(self, who: Leaver, now: float) -> int:
        """LeaveGroup; the error code of that member."""
        self.tick(now)
        if who.member_id in self.pending:
            del self.pending[who.member_id]
            self._complete_if_all_joined(now)
            return E.NONE
        holder = self._holder(who.instance_id) if who.instance_id is not None else self.seats.get(who.member_id)
        if holder is None:
            return E.UNKNOWN_MEMBER_ID
        if who.instance_id is not None and who.member_id not in ("", holder.member_id):
            return E.FENCED_INSTANCE_ID
        self._remove(holder, now)
        return E.NONE

    def commit(self, member_id: str, generation: int, instance_id: str | None, now: float) -> int:
        """Whether an OffsetCommit is taken; the error code of all its partitions (`validateOffsetCommit`)."""
        self.tick(now)
        if generation < 0 and self.state is GroupState.EMPTY:
            return E.NONE
        refusal = self._refused(member_id, generation, instance_id)
        if refusal is not E.NONE:
            return refusal
        seat = self.seats[member_id]
        seat.expires = now + seat.session_timeout
        return E.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else E.NONE

    # -- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When `tick` may have something to do; never too late."""
        return self._due

    def _wake(self, at: float) -> None:
        self._due = min(self._due, at)

    def _earliest(self) -> float:
        sessions = [seat.expires for seat in self.seats.values() if not seat.parked]
        return min([*sessions, *self.pending.values(), self.rebalance_ends, self.sync_ends, self._initial_ends])

    def tick(self, now: float) -> None:
        """Let what is due by now happen."""
        if now < self._due:
            return
        for member_id in [each for each, expires in self.pending.items() if expires <= now]:
            del self.pending[member_id]
            self._complete_if_all_joined(now)
        for seat in [each for each in self.seats.values() if each.expires <= now and not each.parked]:
            self._remove(seat, now)
        if self.sync_ends <= now:
            self.sync_ends = float("inf")
            for seat in [each for each in self.seats.values() if not each.has_synced]:
                self._remove(seat, now)
        if self._initial_ends <= now:
            self._end_initial_delay(now)
        if self.rebalance_ends <= now:
            self._complete(now)
        self._due = self._earliest()

    def move(self, now: float) -> None:
        """Another broker coordinates from now on: it knows what was written when the last plan came.

        Whoever waits for an answer is told NOT_COORDINATOR by the broker that did, and sessions start over.
        """
        for seat in self.seats.values():
            self._answer_join(seat, JoinAnswer(E.NOT_COORDINATOR))
            self._answer_sync(seat, SyncAnswer(E.NOT_COORDINATOR))
        logged = self._logged
        self.state, self.generation, self.assignor = logged.state, logged.generation, logged.assignor
        self.leader, self.pending = logged.leader, {}
        self.seats = {each: copy(seat) for each, seat in logged.seats.items()}
        for seat in self.seats.values():
            seat.expires, seat.joined, seat.synced, seat.has_synced = now + seat.session_timeout, None, None, True
        self.rebalance_ends = self.sync_ends = self._initial_ends = float("inf")
        self._due = self._earliest()

    # -- the rebalance ---------------------------------------------------------------------------------------------

    def _rebalance(self, now: float) -> None:
        if self.state is not GroupState.PREPARING:
            for seat in self.seats.values():
                self._answer_sync(seat, SyncAnswer(E.REBALANCE_IN_PROGRESS))
            timeout = max(seat.rebalance_timeout for seat in self.seats.values())
            if self.state is GroupState.EMPTY and self.initial_delay:
                self._initial_ends, self._initial_left = now + self.initial_delay, timeout - self.initial_delay
                self._more_came = False
            else:
                self.rebalance_ends = now + timeout
            self.state, self.sync_ends = GroupState.PREPARING, float("inf")
            self._wake(min(self.rebalance_ends, self._initial_ends))
        self._complete_if_all_joined(now)

    def _end_initial_delay(self, now: float) -> None:
        """`GroupMetadataManager.java`, tryCompleteInitialRebalanceElseSchedule."""
        if self._more_came and self._initial_left > 0:
            delay = min(self.initial_delay, self._initial_left)
            self._more_came, self._initial_left = False, self._initial_left - delay
            self._initial_ends = now + delay
            return
        self._initial_ends = float("inf")
        self._complete(now)

    def _complete_if_all_joined(self, now: float) -> None:
        if self._initial_ends < float("inf"):
            return
        waiting = any(seat.joined is None for seat in self.seats.values())
        if self.state is GroupState.PREPARING and not waiting and not self.pending:
            self._complete(now)

    def _complete(self, now: float) -> None:
        self.rebalance_ends = float("inf")
        missed = [seat for seat in self.seats.values() if seat.joined is None and seat.instance_id is None]
        for seat in missed:
            del self.seats[seat.member_id]
        present = [seat for seat in self.seats.values() if seat.joined is not None]
        self.missing = frozenset(seat.member_id for seat in self.seats.values() if seat.joined is None)
        self.generation += 1
        if not self.seats:
            self.state, self.leader, self.assignor = GroupState.EMPTY, None, None
            self._log()
            return
        if not present:
            # Static members only, and none of them is back: wait for one, or for their sessions' end.
            self.rebalance_ends = now + max(seat.rebalance_timeout for seat in self.seats.values())
            self._wake(self.rebalance_ends)
            return
        self.state, self.rebalances = GroupState.COMPLETING, self.rebalances + 1
        if self.leader not in {seat.member_id for seat in present}:
            self.leader = present[0].member_id
        self.assignor = self._vote()
        self.sync_ends = now + max(seat.rebalance_timeout for seat in self.seats.values())
        self._wake(self.sync_ends)
        for seat in self.seats.values():
            seat.has_synced = False
        for seat in present:
            seat.expires = now + seat.session_timeout
            self._answer_join(seat, self._welcome(seat))

    def _adopt(self, plan: Plan, now: float) -> None:
        self.state = GroupState.STABLE
        for seat in self.seats.values():
            seat.assigned = tuple(plan.get(seat.member_id, ()))
            seat.expires = max(seat.expires, now + seat.session_timeout) if seat.synced else seat.expires
        self._log()
        for seat in list(self.seats.values()):
            self._answer_sync(seat, self._assignment(seat))

    def _remove(self, seat: Seat, now: float) -> None:
        self._answer_join(seat, JoinAnswer(E.UNKNOWN_MEMBER_ID))
        self._answer_sync(seat, SyncAnswer(E.UNKNOWN_MEMBER_ID))
        self.seats.pop(seat.member_id, None)
        if seat.member_id == self.leader:
            self.leader = None
        if self.state in (GroupState.STABLE, GroupState.COMPLETING) and self.seats:
            self._rebalance(now)
        elif not self.seats:
            self.state, self.generation, self.leader = GroupState.EMPTY, self.generation + 1, None
            self.rebalance_ends = self.sync_ends = self._initial_ends = float("inf")
            self._log()
        else:
            self._complete_if_all_joined(now)

    def _vote(self) -> str:
        """Each member votes for its first one of those that all offer; the one first met wins a draw."""
        common = set.intersection(*(set(seat.protocols) for seat in self.seats.values()))
        votes = [next(name for name in seat.protocols if name in common) for seat in self.seats.values()]
        return max(votes, key=votes.count)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _refused(self, member_id: str, generation: int, instance_id: str | None) -> int:
        holder = self._holder(instance_id)
        if holder is not None and holder.member_id != member_id:
            return E.FENCED_INSTANCE_ID
        if member_id not in self.seats:
            return E.UNKNOWN_MEMBER_ID
        return E.NONE if generation == self.generation else E.ILLEGAL_GENERATION

    def _welcome(self, seat: Seat, *, skip: bool = False) -> JoinAnswer:
        leads = seat.member_id == self.leader
        assignor = self.assignor or ""
        members: Iterable[Member] = (
            Member(each.member_id, each.protocols[assignor], each.instance_id) for each in self.seats.values()
        )
        return JoinAnswer(
            E.NONE, self.generation, seat.member_id, self.leader or "", "consumer", assignor, skip and leads,
            tuple(members) if leads else (),
        )  # fmt: skip

    def _assignment(self, seat: Seat) -> SyncAnswer:
        return SyncAnswer(E.NONE, seat.assigned, "consumer", self.assignor)

    def _answer_join(self, seat: Seat, answer: JoinAnswer) -> None:
        reply, seat.joined = seat.joined, None
        if reply is not None:
            self._wake(seat.expires)
            reply(answer)

    def _answer_sync(self, seat: Seat, answer: SyncAnswer) -> None:
        reply, seat.synced = seat.synced, None
        if reply is not None:
            self._wake(seat.expires)
            reply(answer)

    def _holder(self, instance_id: str | None) -> Seat | None:
        """The member that has this instance's slot."""
        if instance_id is None:
            return None
        return next((seat for seat in self.seats.values() if seat.instance_id == instance_id), None)

    def _new_id(self) -> str:
        return f"{self.name}-{next(self._ids)}"

    def _log(self) -> None:
        """What a coordinator that comes after this one will find."""
        self._logged = copy(self)
        self._logged.seats = {each: copy(seat) for each, seat in self.seats.items()}
