"""Partitions that are fetched: from whom, from which offset on, and what an answer means for each. Pure; times are
monotonic seconds and arguments.

1. A partition is asked of one broker at a time: its leader, or the replica that the leader has named (KIP-392) until
   `REPLICA_SECONDS` later. Of a leader that is told in an older epoch than the known one nothing is believed.
2. An answer counts for a partition only if that was asked of the broker before the request was sent, and still is.
   Whatever else an answer has is kept from the decoder, which has one position for a partition, whoever is asked, and
   would move it on. The decoder knows only what is asked for; and before each piece of an answer it is told to forget
   what was asked of that broker when the request was sent, and is asked of another one by now. Before that one's next
   piece it is told of the partition again.
3. A truncated log is found by the broker itself: every request says in which epoch the record before the offset was
   written, and the broker compares (KIP-595; Java's consumer asks OffsetForLeaderEpoch after each change of leaders
   instead, and fetches from what may have been truncated until then).
4. A topic that was created anew has another id, and an offset of the one before is of another log: the grant ends,
   and whoever hands the partition out again decides where the new one is begun. Whoever places an offset says of which
   topic it is. Where that is not known, it is the one that the metadata names when something is first fetched, and
   nobody here notices if that was created anew before.
   A broker that lags names the topic before: another id counts once the metadata names it again, by another broker if
   one is well, and whoever was asked under the old one has refused it. Where nobody has answered under that yet, this
   takes a second and more; where nobody has refused it, most of a minute, as silence may be a restart.
   An id that was not told is none: amid an upgrade of brokers from before 2.8 one answers with ids, and another without
   (KIP-516). Brokers before 3.1 are asked by names, and answer of whatever topic has the name. Of one that was created
   anew while it was fetched, only the supervisor notices it there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from kunicorn.backoff import Backoff
from kunicorn.columns.decoding import Decoder, Part
from kunicorn.fetch.reactions import KINDS, Reaction, reaction_to
from kunicorn.fetch.sessions import Ask, Request, Session
from kunicorn.ipc.messages import FailureKind
from kunicorn.kafka_errors import ErrorCode, describe, fault
from kunicorn.positions import NO_EPOCH, TopicPartition

NOBODY = -1
REPLICA_SECONDS = 300.0
"""So long a replica that the leader has named is asked, then the leader again (Java's metadata.max.age.ms)."""
BACKOFF = Backoff(first_seconds=0.1, longest_seconds=1.0)
"""Java's retry.backoff.ms and retry.backoff.max.ms."""
_ANEW_AFTER = 4
"""Failures in a row, a second and more: a topic that was created anew is handed out under its new id before all brokers
have heard of it. Where nobody has answered under that id yet, nobody contradicts them."""
_SILENT_ANEW_AFTER = 45
"""Likewise where no broker has refused the id, most of a minute: a leader that restarts is silent, too, and a broker
that has lost the controller names the topic of before meanwhile. Longer than until the cluster has tried the brokers
that failed again: another one than that is asked then, if one is well."""
_ID_REFUSED = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""By these a broker says that it has no such topic."""
_MOST_BYTES = 1 << 30
BEHIND_DAMAGE = "none behind it is handled until kunicorn resume, or kunicorn seek"


class Fault(NamedTuple):
    """Why a partition is fetched no more."""

    kind: FailureKind
    error: str


class News(NamedTuple):
    """What one answer has of one partition: rows `first` to `first + rows` of it, up to `next_offset`; then a fault."""

    tp: TopicPartition
    number: int
    """Of its placing, as `place` got it."""
    first: int
    rows: int
    next_offset: int
    epoch: int
    fault: Fault | None = None


@dataclass(slots=True, eq=False)
class Place:
    """One partition that is fetched."""

    tp: TopicPartition
    number: int
    offset: int
    last_epoch: int
    """Of the last record before `offset`; until something was fetched, as it was given."""
    max_bytes: int
    topic_id: bytes | None = None
    """None: not known yet. Empty: the cluster has no ids."""
    leader: int = NOBODY
    leader_epoch: int = NO_EPOCH
    sought: bool = False
    """The leader does not answer, or says that it leads no more: the metadata is asked for another one."""
    replica: int = NOBODY
    replica_until: float = 0.0
    unknown_to_replica: tuple[int, int] | None = None
    """A `last_epoch` that a replica has no record of, by its word, and the leader epoch of then."""
    replica_looked_at: float | None = None
    """When it is looked at whether the replica is to be asked any longer. None: no timer is set for that."""
    quiet_until: float = 0.0
    """After an error it is asked for no earlier."""
    failures: int = 0
    asked_of: int = NOBODY
    """In whose session it is."""
    began: bool = False
    """Something of it was fetched."""
    of_topic: bool = False
    """The offset is of the topic with that id, and of none that has its name later."""
    renamed: tuple[bytes, int] | None = None
    """Another id that the metadata has named since the last answer that counted, and `failures` at that time. Metadata
    with the id that is asked for takes it back."""
    id_refused: bool = False
    """A broker that was asked has said that it does not know the topic, and since then neither an answer that counted
    nor the metadata has said otherwise."""
    ended: bool = False
    stop: int | None = None
    """It is asked for no more once its offset is there. None: until it is removed."""


def decoders_id(place: Place) -> bytes:
    """The topic's id as the decoder takes it: where the cluster has none, the name."""
    return place.topic_id or place.tp.topic.encode()


class Absence(NamedTuple):
    """A broker that does not answer."""

    failures: int
    """In a row."""
    until: float
    """It is not tried before."""


class Topic(NamedTuple):
    """What the metadata says of one topic."""

    topic_id: bytes
    leaders: Mapping[int, tuple[int, int]]
    """Node and epoch, by partition."""
    error: int = ErrorCode.NONE
    """Why the leaders are not told, or not all."""


class Known(NamedTuple):
    """What the decoder is to be told before it decodes an answer."""

    forgotten: Sequence[tuple[bytes, TopicPartition]]
    placed: Sequence[Place]

    def tell(self, decoder: Decoder) -> None:
        """Tell it. Caller: whoever decodes the answer, as the last call before."""
        for topic_id, tp in self.forgotten:
            decoder.forget(topic_id, tp.partition)
        for place in self.placed:
            decoder.place(decoders_id(place), place.tp.partition, place.tp.topic, place.offset)


class Fetching:
    """Table of the partitions that are fetched."""

    def __init__(self, max_bytes: int, chance: Callable[[], float], behind_damage: str = BEHIND_DAMAGE) -> None:
        """`max_bytes`: of one partition in one answer. `chance`: of the jitter, from [0, 1). `behind_damage`: what a
        damaged batch means for the records behind it, for people."""
        self.wants_metadata = False
        """Some partition's leader, or id, is to be asked for."""
        self.disputed = False
        """The metadata has named a leader again in whose place another one was sought."""
        self.unsure = False
        """The metadata has named another topic than the one that is fetched, and more answers decide."""
        self._max_bytes = max_bytes
        self._behind_damage = behind_damage
        self._chance = chance
        self._places: dict[TopicPartition, Place] = {}
        self._sessions: dict[int, Session] = {}
        self._absent: dict[int, Absence] = {}
        self._forgotten: dict[tuple[bytes, TopicPartition], None] = {}
        """Partitions that are asked for no more, or of another broker: the decoder hears of it before any answer."""
        self._left: dict[int, dict[TopicPartition, None]] = defaultdict(dict)
        """By broker: partitions that are asked of it no more since the last request. Each piece of its answer may have
        something of them."""
        self._untold: dict[int, dict[Place, None]] = defaultdict(dict)
        """By broker: partitions of which the decoder does not know, and the last request is about them."""
        self._asked_since: dict[int, dict[Place, None]] = defaultdict(dict)
        """By broker: partitions that are asked of it since the last request. Nothing of its answer counts for them."""
        self._timers: list[tuple[float, int, Place]] = []
        self._numbers = count()

    # -- what is fetched -----------------------------------------------------------------------------------------------

    def place(
        self,
        tp: TopicPartition,
        number: int,
        offset: int,
        last_epoch: int,
        stop: int | None = None,
        *,
        topic_id: bytes = b"",
    ) -> None:
        """Fetch the partition from that offset on, in place of an earlier one; to `stop`, where there is one.
        `topic_id`: of the topic that the offset is of; empty where that is not known."""
        old = self._places.get(tp)
        place = Place(tp, number, offset, last_epoch, self._max_bytes, stop=stop)
        if topic_id:
            place.topic_id, place.of_topic = topic_id, True
        if old is not None:
            if not (topic_id and old.topic_id) or topic_id == old.topic_id:
                # Where it was, it is most likely still; nothing else of it counts any more.
                place.leader, place.leader_epoch = old.leader, old.leader_epoch
                place.topic_id = topic_id or old.topic_id
            self._unask(old)
            old.ended = True  # What it waits for would have it asked for again, in the place of the new one.
        self._places[tp] = place
        self._settle(place)

    def remove(self, tp: TopicPartition, number: int) -> None:
        """Fetch the partition no more, if it is still that placing."""
        place = self._places.get(tp)
        if place is not None and place.number == number:
            self._unask(place)
            place.ended = True
            del self._places[tp]

    def get(self, tp: TopicPartition) -> Place | None:
        """The partition, if it is fetched."""
        return self._places.get(tp)

    @property
    def topics(self) -> set[str]:
        """Topics of all that is fetched."""
        return {tp.topic for tp in self._places}

    # -- leaders -------------------------------------------------------------------------------------------------------

    def learn(self, topics: Mapping[str, Topic], now: float) -> list[News]:
        """Take in an answer to Metadata; the partitions that end by it: their topic was created anew, or is denied."""
        self.wants_metadata = self.disputed = self.unsure = False
        ended = []
        for place in list(self._places.values()):
            if place.ended:
                continue
            topic = topics.get(place.tp.topic)
            if topic is not None and topic.error and (why := _refused(place, topic.error)) is not None:
                ended.append(self._end(place, why))
                continue
            if topic is None or not topic.leaders:
                self._look_for_leader(place)
                continue
            topic_id = topic.topic_id or place.topic_id or b""
            if place.of_topic and place.topic_id and topic_id != place.topic_id:
                if _is_anew(place, topic_id):
                    ended.append(self._end(place, Fault(FailureKind.PARTITION, _anew(place.tp))))
                else:
                    self.unsure = True
                    self._look_for_leader(place)
                continue
            place.renamed, place.id_refused = None, False
            if topic_id != place.topic_id:
                self._unask(place)
                place.topic_id, place.leader_epoch = topic_id, NO_EPOCH
            leader, epoch = topic.leaders.get(place.tp.partition, (NOBODY, NO_EPOCH))
            self._led_by(place, leader, epoch)
            self._settle(place, now)
        return ended

    def _led_by(self, place: Place, leader: int, epoch: int) -> None:
        self.disputed |= place.sought and leader == place.leader
        place.sought = False
        if leader != NOBODY and (epoch == NO_EPOCH or epoch >= place.leader_epoch):
            self._follow(place, leader, epoch)
        self._look_for_leader(place)

    def _follow(self, place: Place, leader: int, epoch: int) -> None:
        if epoch != place.leader_epoch and place.replica != NOBODY:
            # What the leader before has named may not have followed this one yet; Java's client, too, asks it first.
            self._unask(place)
            place.replica = NOBODY
        place.leader, place.leader_epoch = leader, epoch

    def _look_for_leader(self, place: Place) -> None:
        if place.leader == NOBODY:
            self.wants_metadata = True
            place.failures += 1

    def leaderless(self, failures: int) -> list[TopicPartition]:
        """Partitions whose leader nobody has told, so many times in a row or more. Of one that the metadata has under
        another id a leader was told, which is not asked."""
        leaderless = [place for place in self if place.leader == NOBODY and not place.ended and place.renamed is None]
        return [place.tp for place in leaderless if place.failures >= failures]

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Iterable[int]:
        """Brokers of which something is asked."""
        return [node for node, session in self._sessions.items() if len(session)]

    def asks_of(self, node: int) -> bool:
        """Whether anything is asked of that broker."""
        return node in self._sessions and len(self._sessions[node]) > 0

    def quiet_until(self, node: int) -> float:
        """That broker is not to be tried before: it has not answered, or has refused a request as a whole. One wait for
        all its partitions, whose own end one after the other."""
        return self._absent[node].until if node in self._absent else 0.0

    def refusals(self, node: int) -> int:
        """How often in a row that broker has not answered, or has refused a request as a whole."""
        return self._absent[node].failures if node in self._absent else 0

    def sent(self, node: int) -> Request:
        """The next request to that broker. Caller: sends it, and then says `meet`, `refused` or `unreached`."""
        self._left.pop(node, None)
        self._untold[node] |= self._asked_since.pop(node, {})
        return self._sessions[node].next()

    def known(self, node: int) -> Known:
        """What the decoder is to be told before it decodes that broker's answer, or goes on in it."""
        forgotten, self._forgotten = self._forgotten, {}
        for tp in self._left.get(node, ()):
            place = self._places.get(tp)
            if place is not None and self._is_told_for_another(place, node):
                forgotten[decoders_id(place), tp] = None
                self._untold[place.asked_of][place] = None
        return Known(list(forgotten), list(self._untold.pop(node, ())))

    def _is_told_for_another(self, place: Place, node: int) -> bool:
        """Whether the decoder knows the partition for the sake of another broker's answer."""
        other = place.asked_of
        return other not in (NOBODY, node) and not (place in self._asked_since[other] or place in self._untold[other])

    def meet(self, node: int, session_id: int, parts: Collection[Part], now: float) -> list[News]:
        """Take in a decoded answer without an error of its own."""
        self._sessions[node].answered(session_id)
        self._absent.pop(node, None)
        return self.meet_more(node, parts, now)

    def meet_more(self, node: int, parts: Collection[Part], now: float) -> list[News]:
        """Take in more of the same answer."""
        return [news for part in parts if (news := self._meet(node, part, now)) is not None]

    def refused(self, node: int, error: int, now: float) -> None:
        """Note that the broker has refused the request as a whole. Its partitions are asked for again after a wait."""
        self._sessions[node].refused(error)
        self.unreached(node, now)

    def unreached(self, node: int, now: float) -> None:
        """Note that the request was not answered, or not sent: the partitions may have another leader by now."""
        session = self._sessions.get(node)
        if session is None:
            return
        session.lost()
        failures = self._absent[node].failures + 1 if node in self._absent else 1
        self._absent[node] = Absence(failures, now + BACKOFF.seconds(failures, self._chance()))
        for place in [place for place in self._places.values() if place.asked_of == node]:
            self._find_leader(place, now)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _meet(self, node: int, part: Part, now: float) -> News | None:
        place = self._places.get(TopicPartition(part.topic, part.partition))
        if place is None or place.asked_of != node or place.ended:
            return None
        from_leader = place.asked_of == place.leader or place.replica == NOBODY
        if named := part.leader_id != NOBODY and part.leader_epoch > place.leader_epoch:
            self._follow(place, part.leader_id, part.leader_epoch)
        if part.error != ErrorCode.NONE:
            return self._meet_error(place, part, now, from_leader=from_leader, named=named)
        if part.diverging_epoch != NO_EPOCH:
            return self._diverging(place, part, now)
        _note_answer(place, part)
        news = None
        if part.next_offset > place.offset:
            place.offset, place.began, place.of_topic = part.next_offset, True, True
            place.last_epoch = place.last_epoch if part.last_epoch == NO_EPOCH else part.last_epoch
            place.max_bytes = self._max_bytes
            news = News(place.tp, place.number, part.first_row, part.rows, part.next_offset, place.last_epoch)
            if place.stop is not None and place.offset >= place.stop:
                self._unask(place)
                place.ended = True
                return news
        if part.damage:
            return self._damaged(place, part)
        if part.incomplete:
            self._want_more(place, now)
        if part.preferred_replica != NOBODY:
            place.replica, place.replica_until = part.preferred_replica, now + REPLICA_SECONDS
            self._look_at_replica(place)
        self._settle(place, now)
        return news

    def _want_more(self, place: Place, now: float) -> None:
        """Only a part of the next batch has come."""
        if place.max_bytes == _MOST_BYTES:
            self._wait(place, now)
        place.max_bytes = min(place.max_bytes * 2, _MOST_BYTES)

    def _look_at_replica(self, place: Place) -> None:
        """Set the timer of its replica, unless there is one: it may be named ten times a second, for minutes."""
        if place.replica_looked_at is None:
            place.replica_looked_at = place.replica_until
            self._at(place.replica_until, place)

    def _diverging(self, place: Place, part: Part, now: float) -> News | None:
        """The log has nothing of the epoch that we named, or another end of it. Where that end lies before our offset,
        the log was truncated (KIP-320). Elsewhere nothing was written in that epoch: it is the leader's of a moment at
        which somebody asked for the log's end (ListOffsets).
        """
        if part.diverging_end < place.offset:
            return self._end(place, Fault(FailureKind.TRUNCATED, _truncated(place, part)))
        if part.diverging_epoch < place.last_epoch:
            place.last_epoch = part.diverging_epoch
            self._settle(place, now)
        else:
            self._wait(place, now)
        return None

    def _meet_error(self, place: Place, part: Part, now: float, *, from_leader: bool, named: bool) -> News | None:
        """`named`: the answer has named a leader that was not known (KIP-951)."""
        if (why := _refused(place, part.error, from_leader=from_leader)) is not None:
            return self._end(place, why)
        reaction = reaction_to(part.error, from_leader=from_leader)
        place.id_refused |= part.error in _ID_REFUSED
        if part.error == ErrorCode.OFFSET_OUT_OF_RANGE and not named:
            place.unknown_to_replica = place.last_epoch, place.leader_epoch
        place.replica = NOBODY
        if reaction is not Reaction.FIND_LEADER:
            self._wait(place, now)
        elif named:
            self._settle(place, now)
        else:
            # Also where it has named one: whom we knew already would send us back at once, and for ever.
            self._find_leader(place, now)
        return None

    def _damaged(self, place: Place, part: Part) -> News:
        advice = fault(ErrorCode.CORRUPT_MESSAGE).remedy(topic=f"topic {place.tp.topic!r}", rights="READ")
        text = (
            f"{place.tp}: the batch at offset {part.damage_offset} cannot be read: {part.damage}; {advice}; "
            f"{self._behind_damage}"
        )
        end = self._end(place, Fault(FailureKind.PARTITION, text))
        return end._replace(first=part.first_row, rows=part.rows)

    def _end(self, place: Place, why: Fault) -> News:
        """Fetch it no more, and say why. It stays known until it is removed."""
        self._unask(place)
        place.ended = True
        return News(place.tp, place.number, 0, 0, place.offset, place.last_epoch, why)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Go on with partitions whose wait is over."""
        while self._timers and self._timers[0][0] <= now:
            when, _, place = heapq.heappop(self._timers)
            if place.ended:
                continue
            if when == place.replica_looked_at:
                place.replica_looked_at = None
            if place.replica != NOBODY:
                if place.replica_until <= now:
                    place.replica = NOBODY
                else:
                    self._look_at_replica(place)
            self._settle(place, now)

    def next_wake(self) -> float | None:
        """When the next wait is over; None: nothing waits."""
        return self._timers[0][0] if self._timers else None

    def _find_leader(self, place: Place, now: float) -> None:
        # A replica out of reach says nothing of the leader.
        place.sought |= place.asked_of == place.leader != NOBODY
        place.replica = NOBODY
        self.wants_metadata = True
        self._wait(place, now)

    def _wait(self, place: Place, now: float) -> None:
        place.failures += 1
        place.quiet_until = now + BACKOFF.seconds(place.failures, self._chance())
        self._at(place.quiet_until, place)
        self._settle(place, now)

    def _at(self, when: float, place: Place) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), place))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _settle(self, place: Place, now: float | None = None) -> None:
        """Ask for the partition whoever is to be asked now."""
        node = place.replica if place.replica != NOBODY else place.leader
        if place.topic_id is None or node == NOBODY:
            self.wants_metadata = True
            node = NOBODY
        elif now is not None and now < place.quiet_until:
            node = NOBODY
        if node != place.asked_of:
            self._unask(place)
        if node == NOBODY or place.topic_id is None:
            return
        if place.asked_of == NOBODY:
            place.asked_of = node
            self._asked_since[node][place] = None
        # Another replica than the leader knows the epochs of its records alone: of one in which nothing was written it
        # says that the offset is out of range, the leader names it again, and so on without a record. It is asked
        # without that one then. Nothing is passed over: whom the leader of an epoch names has its log up to the offset.
        told = node == place.leader or place.unknown_to_replica != (place.last_epoch, place.leader_epoch)
        last_epoch = place.last_epoch if told else NO_EPOCH
        ask = Ask(place.topic_id, place.offset, place.leader_epoch, last_epoch, place.max_bytes)
        self._sessions.setdefault(node, Session()).put(place.tp, ask)

    def _unask(self, place: Place) -> None:
        if place.asked_of == NOBODY:
            return
        self._sessions[place.asked_of].remove(place.tp)
        self._untold[place.asked_of].pop(place, None)
        self._asked_since[place.asked_of].pop(place, None)
        self._left[place.asked_of][place.tp] = None
        self._forgotten[decoders_id(place), place.tp] = None
        place.asked_of = NOBODY

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())


def _note_answer(place: Place, part: Part) -> None:
    """An answer without an error, which counts for the partition."""
    place.renamed, place.id_refused = None, False
    if (part.preferred_replica == NOBODY or part.rows) and not part.incomplete:
        # Else the leader's word would have a replica that is never reached tried ten times a second, and a batch of
        # which never more than a part comes would be asked for without a pause.
        place.failures = 0


def _refused(place: Place, error: int, *, from_leader: bool = True) -> Fault | None:
    """Why the error ends the partition; None: it does not."""
    kind = KINDS.get(reaction_to(error, from_leader=from_leader))
    return None if kind is None else Fault(kind, _explained(place, error))


def _explained(place: Place, error: int) -> str:
    text = f"{place.tp} from offset {place.offset} on: {describe(error)}"
    if error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return text
    return f"{text}: {fault(error).remedy(topic=f'topic {place.tp.topic!r}', rights='READ')}"


def _truncated(place: Place, part: Part) -> str:
    return (
        f"{place.tp}: log truncation: the record before offset {place.offset} was written in leader epoch "
        f"{place.last_epoch}, and the log has epoch {part.diverging_epoch} up to offset {part.diverging_end}"
    )


def _is_anew(place: Place, topic_id: bytes) -> bool:
    """Whether the topic has that other id for good."""
    if place.renamed is None or place.renamed[0] != topic_id:
        place.renamed = (topic_id, place.failures)
        return False
    refused = 1 if place.began else _ANEW_AFTER
    return place.failures - place.renamed[1] >= (refused if place.id_refused else _SILENT_ANEW_AFTER)


def _anew(tp: TopicPartition) -> str:
    return f"topic {tp.topic!r} was created anew: what {tp} has at its offset now is of another log"
