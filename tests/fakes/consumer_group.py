"""A group with the consumer protocol (KIP-848) as Kafka's coordinator keeps it, as a model: no I/O.

After `GroupMetadataManager.java` and `CurrentAssignmentBuilder.java`: member epochs, partitions given away only when
their owner let go of them, timeouts of sessions and rebalances, static slots; and classic members among the others,
for whom JoinGroup, SyncGroup and Heartbeat are translated. One topic, to which all subscribe, and which may be created
anew: it is known by its id. Time is an argument.

A heartbeat costs what it changes, however large the group is; a new assignment is made of the whole group, as Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from uuid import UUID

from kunicorn.group.protocol import ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer, TopicPartitions
from kunicorn.kafka_errors import ErrorCode as E
from kunicorn.positions import TopicPartition
from tests.fakes.requests import Beat, Join, Leaver, Sync

Numbers = frozenset[int]
LEAVE, LEAVE_KEEPING_SLOT = -1, -2
_A_TOPIC = 1_000_000
"""Numbers of partitions of one topic; those of the one that has its name next follow."""


class Reconciling(Enum):
    """Kafka's `MemberState`."""

    STABLE = "stable"
    #: Has been told to let go of partitions, and has not yet.
    UNREVOKED = "unrevoked partitions"
    #: Waits for partitions that others have not let go of.
    UNRELEASED = "unreleased partitions"


@dataclass
class Place:
    """One member as the coordinator sees it."""

    member_id: str
    instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    epoch: int = 0
    previous_epoch: int = 0
    state: Reconciling = Reconciling.STABLE
    assigned: Numbers = frozenset()
    revoking: Numbers = frozenset()
    expires: float = 0.0
    revoked_by: float = float("inf")
    """When a member that does not let go, or a classic one that does not join again, is fenced."""
    away: bool = False
    """A static member that said it would come back."""
    assignor: str | None = None
    """Of a classic member: the one that it offered first."""

    @property
    def holds(self) -> Numbers:
        """What nobody else can have."""
        return self.assigned | self.revoking


@dataclass
class ConsumerGroup:
    """See the module."""

    topic: str
    topic_id: UUID
    partitions: int
    session_timeout: float = 45.0
    assignment_interval: float = 0.0
    """Seconds from one assignment to the next at least (`group.consumer.assignment.interval.ms`; 1000 as shipped with
    Kafka 4.3 and later, before there was none)."""
    epoch: int = 0
    places: dict[str, Place] = field(default_factory=dict)
    target: dict[str, Numbers] = field(default_factory=dict)
    rebalances: int = 0

    def __post_init__(self) -> None:
        self._ids = count(1)
        self._topic_ids = [self.topic_id]
        self._holders: dict[int, str] = {}
        """The member that has each partition, or has not let go of it."""
        self._due = self._assign_at = float("inf")
        self._next_assignment = float("-inf")

    @property
    def members(self) -> Collection[str]:
        """The ids of those that are in."""
        return self.places.keys()

    @property
    def reconciled(self) -> bool:
        """Every member has what is meant for it, and no other assignment is to come."""
        settled = all(p.state is Reconciling.STABLE and p.epoch == self.epoch for p in self.places.values())
        return settled and self._assign_at == float("inf")

    # -- members with the consumer protocol ------------------------------------------------------------------------

    def heartbeat(self, beat: Beat, now: float) -> ConsumerHeartbeatAnswer:
        """ConsumerGroupHeartbeat."""
        self.tick(now)
        if beat.epoch < 0:
            return ConsumerHeartbeatAnswer(self._part(beat, now), epoch=beat.epoch)
        place = self.places.get(beat.member_id)
        if beat.epoch == 0:
            holder = self._holder(beat.instance_id)
            if holder is not None and holder.member_id != beat.member_id and not holder.away:
                return ConsumerHeartbeatAnswer(E.UNRELEASED_INSTANCE_ID)
            place = self._enter(beat.member_id, beat.instance_id, self.session_timeout, beat.rebalance_timeout, now)
        if place is None:
            return ConsumerHeartbeatAnswer(E.UNKNOWN_MEMBER_ID)
        owned = None if beat.owned is None else self._numbers(beat.owned)
        if beat.epoch and not _epoch_fits(place, beat.epoch, owned):
            return ConsumerHeartbeatAnswer(E.FENCED_MEMBER_EPOCH)
        self._extend(place, now)
        before = place.assigned
        self._reconcile(place, owned, now)
        told = beat.epoch == 0 or beat.full or place.assigned != before
        return ConsumerHeartbeatAnswer(
            E.NONE, epoch=place.epoch, assignment=self._by_topic(place.assigned) if told else None
        )

    def _numbers(self, owned: TopicPartitions) -> Numbers:
        bases = {topic_id: at * _A_TOPIC for at, topic_id in enumerate(self._topic_ids)}
        return frozenset(bases[topic_id] + n for topic_id, numbers in owned for n in numbers)

    def _by_topic(self, numbers: Numbers) -> TopicPartitions:
        topics: dict[UUID, list[int]] = {}
        for at, number in (divmod(n, _A_TOPIC) for n in sorted(numbers)):
            topics.setdefault(self._topic_ids[at], []).append(number)
        return tuple((topic_id, tuple(found)) for topic_id, found in topics.items())

    def _part(self, beat: Beat, now: float) -> int:
        place = self.places.get(beat.member_id)
        if place is None:
            return E.UNKNOWN_MEMBER_ID
        if beat.epoch == LEAVE_KEEPING_SLOT:
            place.away = True
        else:
            self._remove(place, now)
        return E.NONE

    # -- classic members among them --------------------------------------------------------------------------------

    def join(self, request: Join, reply: Callable[[JoinAnswer], None], now: float) -> None:
        """JoinGroup: answered at once, since nobody waits for anybody."""
        self.tick(now)
        if not request.member_id:
            reply(JoinAnswer(E.MEMBER_ID_REQUIRED, member_id=f"m-{next(self._ids)}"))
            return
        place = self._enter(request.member_id, None, request.session_timeout, request.rebalance_timeout, now)
        place.assignor, subscription = next(iter(request.protocols.items()))
        self._extend(place, now)
        place.revoked_by = float("inf")
        self._reconcile(place, frozenset(tp.partition for tp in subscription.owned), now)
        reply(JoinAnswer(E.NONE, place.epoch, place.member_id, "", "consumer", place.assignor))

    def sync(self, request: Sync, reply: Callable[[SyncAnswer], None], now: float) -> None:
        """SyncGroup."""
        self.tick(now)
        error = self._refused(request.member_id, request.generation)
        place = self.places.get(request.member_id)
        if error or place is None:
            reply(SyncAnswer(error))
            return
        place.expires = now + place.session_timeout
        numbers = tuple(TopicPartition(self.topic, number) for number in sorted(place.assigned))
        reply(SyncAnswer(E.NONE, numbers, "consumer", place.assignor))

    def classic_heartbeat(self, member_id: str, generation: int, now: float) -> int:
        """Heartbeat; asks for a join whenever there is something to reconcile."""
        self.tick(now)
        if error := self._refused(member_id, generation):
            return error
        place = self.places[member_id]
        place.expires = now + place.session_timeout
        wanted = self.target.get(member_id, frozenset())
        free = bool(wanted - place.assigned - self._elsewhere(place, wanted))
        if place.epoch < self.epoch or place.state is Reconciling.UNREVOKED or free:
            place.revoked_by = min(place.revoked_by, now + place.rebalance_timeout)
            self._wake(place.revoked_by)
            return E.REBALANCE_IN_PROGRESS
        return E.NONE

    def leave(self, who: Leaver, now: float) -> int:
        """LeaveGroup."""
        self.tick(now)
        place = self.places.get(who.member_id)
        if place is None:
            return E.UNKNOWN_MEMBER_ID
        self._remove(place, now)
        return E.NONE

    # -- both ------------------------------------------------------------------------------------------------------

    def commit(self, member_id: str, epoch: int, now: float) -> int:
        """Whether an OffsetCommit is taken."""
        self.tick(now)
        place = self.places.get(member_id)
        if place is None:
            return E.UNKNOWN_MEMBER_ID
        if epoch != place.epoch:
            return E.STALE_MEMBER_EPOCH if place.assignor is None else E.ILLEGAL_GENERATION
        place.expires = max(place.expires, now + place.session_timeout) if place.assignor else place.expires
        return E.NONE

    def deadline(self) -> float:
        """When `tick` may have something to do; never too late."""
        return self._due

    def _wake(self, at: float) -> None:
        self._due = min(self._due, at)

    def _extend(self, place: Place, now: float) -> None:
        place.expires = now + place.session_timeout
        self._wake(place.expires)

    def _earliest(self) -> float:
        return min((min(p.expires, p.revoked_by) for p in self.places.values()), default=float("inf"))

    def tick(self, now: float) -> None:
        """Let what is due by now happen."""
        if now < self._due:
            return
        for place in [each for each in self.places.values() if min(each.expires, each.revoked_by) <= now]:
            self._remove(place, now)
        if self._assign_at <= now:
            self._assign_anew(now)
        self._due = min(self._earliest(), self._assign_at)

    def move(self, now: float) -> None:
        """Another broker coordinates: all that was answered is in the log; sessions start over."""
        for place in self.places.values():
            place.expires = now + place.session_timeout
            if place.state is Reconciling.UNREVOKED:
                place.revoked_by = now + place.rebalance_timeout
        self._due = min(self._earliest(), self._assign_at)

    def grow(self, partitions: int, now: float) -> None:
        """The topic has so many more partitions."""
        self.partitions += partitions
        self._assign_anew(now)

    def create_anew(self, topic_id: UUID, now: float) -> None:
        """The topic was deleted, and another one with as many partitions has its name."""
        self.topic_id = topic_id
        self._topic_ids.append(topic_id)
        self._assign_anew(now)

    # -- assignments -----------------------------------------------------------------------------------------------

    def _enter(self, member_id: str, instance_id: str | None, session: float, rebalance: float, now: float) -> Place:
        place = self.places.get(member_id)
        if place is not None:
            place.away = False
            return place
        place = Place(member_id, instance_id, session, rebalance)
        before = self._holder(instance_id)
        if before is not None:
            # A static member that comes back is its predecessor under another id.
            del self.places[before.member_id]
            place.epoch = before.epoch
            held = before.assigned
            self._hold(before, frozenset(), frozenset())
            self._hold(place, held, frozenset())
            self.target[member_id] = self.target.pop(before.member_id, frozenset())
            self.places[member_id] = place
            return place
        self.places[member_id] = place
        self._assign_anew(now)
        return place

    def _remove(self, place: Place, now: float) -> None:
        del self.places[place.member_id]
        self._hold(place, frozenset(), frozenset())
        self._assign_anew(now)

    def _assign_anew(self, now: float) -> None:
        """Evenly, and as it was as far as that allows; at once, or when the interval since the last time is over."""
        if now < self._next_assignment:
            self._assign_at = self._next_assignment
            self._wake(self._assign_at)
            return
        self._next_assignment, self._assign_at = now + self.assignment_interval, float("inf")
        self.epoch += 1
        self.rebalances += 1
        before, self.target = self.target, {}
        members = sorted(self.places)
        if not members:
            return
        least, more = divmod(self.partitions, len(members))
        base = (len(self._topic_ids) - 1) * _A_TOPIC
        there = frozenset(range(base, base + self.partitions))
        quotas = {member: least + (at < more) for at, member in enumerate(members)}
        kept = {m: sorted(before.get(m, frozenset()) & there)[: quotas[m]] for m in members}
        free = there.difference(*kept.values())
        pool = iter(sorted(free))
        for member in members:
            wanted = quotas[member] - len(kept[member])
            self.target[member] = frozenset(kept[member]) | {next(pool) for _ in range(wanted)}

    def _reconcile(self, place: Place, owned: Numbers | None, now: float) -> None:
        if place.state is Reconciling.UNREVOKED and (owned is None or owned & place.revoking):
            return
        if place.state is Reconciling.STABLE and place.epoch == self.epoch:
            return
        self._hold(place, place.assigned, frozenset())
        wanted = self.target.get(place.member_id, frozenset())
        keep, leaving = place.assigned & wanted, place.assigned - wanted
        if leaving and (owned is None or owned & leaving):
            self._hold(place, keep, leaving)
            place.state = Reconciling.UNREVOKED
            if place.assignor is None:
                place.revoked_by = now + place.rebalance_timeout
                self._wake(place.revoked_by)
            return
        elsewhere = self._elsewhere(place, wanted)
        self._hold(place, keep | (wanted - elsewhere), frozenset())
        place.state = Reconciling.UNRELEASED if wanted & elsewhere else Reconciling.STABLE
        place.previous_epoch, place.epoch, place.revoked_by = place.epoch, self.epoch, float("inf")

    def _hold(self, place: Place, assigned: Numbers, revoking: Numbers) -> None:
        for number in place.holds - assigned - revoking:
            del self._holders[number]
        place.assigned, place.revoking = assigned, revoking
        self._holders.update(dict.fromkeys(place.holds, place.member_id))

    def _elsewhere(self, place: Place, wanted: Numbers) -> Numbers:
        """Those of them that others hold."""
        return frozenset(n for n in wanted if self._holders.get(n, place.member_id) != place.member_id)

    def _refused(self, member_id: str, generation: int) -> int:
        place = self.places.get(member_id)
        if place is None:
            return E.UNKNOWN_MEMBER_ID
        return E.NONE if generation == place.epoch else E.ILLEGAL_GENERATION

    def _holder(self, instance_id: str | None) -> Place | None:
        if instance_id is None:
            return None
        return next((each for each in self.places.values() if each.instance_id == instance_id), None)


def _epoch_fits(place: Place, epoch: int, owned: Numbers | None) -> bool:
    """The current one; or the one before, if the answer that brought the current one was lost."""
    lost_answer = epoch == place.previous_epoch and owned is not None and owned <= place.assigned
    return epoch == place.epoch or lost_answer
