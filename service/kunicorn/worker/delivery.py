"""When records count as done: when their handler returns, when what they left is acknowledged, or when it is committed.

`Completion` is the rule, an argument of the table of partitions; `ON_RETURN`, `ON_ACKNOWLEDGEMENT` and `ON_COMMIT` are
the three there are. Whatever the rule, a record of which a letter (dead, or to a retry topic) is left is done when that
has arrived. `Deliveries` is what a worker has handled and not delivered.

1. A slot is free while its records are on their way. Where a call gets one record, the lane waits, so that outputs of
   one lane are in its order, and a record whose outputs are refused can be tried again before the next of its lane.
   Where a call gets a run, and in transactions, the lane goes on, else a partition (or a key in a transaction) would
   have one record on its way at a time. When an output is refused, what came behind it in its lane is taken back and
   handled again behind it.
2. A grant that is given up is reported when all that it handled is delivered; only one that is lost is reported at
   once, and what it has left is delivered no more.
3. In transactions every record goes out with one, also one that leaves nothing: the transaction has its offset. It
   commits for each partition its lowest unfinished offset and, as the commit's metadata, what is done beyond that;
   whoever gets the partition next leaves those out. What was passed by without a record (markers, compacted records) at
   the end of a partition goes out likewise: else others would see a lag there.
4. At least once, letters have an outbox of their own: whatever their topic does, no output waits for them. Their lane
   waits, also where a call gets a run; and there a letter goes out when all before it is delivered: otherwise an output
   before it could be refused when it is done, and nothing of a run is done before what comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.outputs import size_of
from kunicorn.ipc.bitmap import topic_word, with_partitions
from kunicorn.ipc.clock import now_ns
from kunicorn.positions import NO_OFFSET, Position
from kunicorn.worker.produce.outbox import Entry, Outbox
from kunicorn.worker.progress import InFlight, OffsetTracker
from kunicorn.worker.scheduler import UNLIMITED


@dataclass(frozen=True, slots=True)
class Completion:
    """Rule for when records are done."""

    runs_go_on: bool
    """Where a call gets a run, the next one is begun while outputs are on their way."""
    records_go_on: bool
    """Likewise the next record of a lane."""
    delivers_all: bool
    """What leaves nothing is delivered, too: with its offset."""


ON_RETURN = Completion(runs_go_on=False, records_go_on=False, delivers_all=False)
ON_ACKNOWLEDGEMENT = Completion(runs_go_on=True, records_go_on=False, delivers_all=False)
ON_COMMIT = Completion(runs_go_on=True, records_go_on=True, delivers_all=True)


class Told(Protocol):
    """Listener to the fate of outputs. Caller: a sender's thread."""

    def wake(self) -> None:
        """Note that more records may start than before."""

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Note that the brokers will never take the record's outputs: it has failed."""


class Deliveries:
    """Records of a worker that are handled and not delivered. Not locked: every caller holds the table's lock."""

    def __init__(self, completion: Completion, outbox: Outbox | None, letters: Outbox | None = None) -> None:
        """`outbox`: None where nothing is ever sent. `letters`: where letters go, if not with the rest."""
        self._completion = completion
        self._outbox = outbox
        self._letters = letters
        self._under_way: dict[int, InFlight] = {}
        self._behind: dict[int, InFlight] = {}
        """Of these: letters that go out when what comes before them is delivered."""

    @property
    def follows_commits(self) -> bool:
        """Whether transactions have the offsets."""
        return self._completion.delivers_all

    @property
    def letters_apart(self) -> bool:
        """Whether letters go out without outputs of others."""
        return self._only_letters or self._letters is not None

    @property
    def _only_letters(self) -> bool:
        return not self._completion.runs_go_on

    @property
    def runs_go_on(self) -> bool:
        """Whether a run is handled while those before it are on their way."""
        return self._completion.runs_go_on

    def room(self) -> int:
        """Number of records that may be handled now."""
        return UNLIMITED if self._outbox is None or self._only_letters else self._outbox.room()

    def wanted(self, flight: InFlight) -> bool:
        """Whether the handled records are done only when they are delivered."""
        if flight.entries or self._completion.delivers_all:
            return True
        # Nothing of a run is done before what comes before it.
        return flight.tracker.slots.runs and flight.tracker.order[0] is not flight

    def lane_waits(self, flight: InFlight) -> bool:
        """Whether nothing else of the lane is begun until these records are delivered."""
        if self._goes_apart(flight):
            return True
        runs = flight.tracker.slots.runs
        return not (self._completion.runs_go_on if runs else self._completion.records_go_on)

    def put(self, flight: InFlight) -> None:
        """Have the records delivered, with what they left."""
        assert self._outbox is not None
        self._under_way[flight.number] = flight
        flight.refusal = None
        if not self._goes_apart(flight):
            self._put(flight, self._outbox)
        elif _is_next(flight):
            self._put(flight, self._letters)
        else:
            self._behind[flight.number] = flight
            self._outbox.hurry()

    def _goes_apart(self, flight: InFlight) -> bool:
        return self._letters is not None and flight.given_up is not None

    def _put(self, flight: InFlight, outbox: Outbox | None) -> None:
        assert outbox is not None
        entries = flight.entries
        if not entries or entries[-1].following < flight.end:
            entries = [*entries, Entry(flight, flight.end - 1, flight.end, ())]
        # The records are kept in memory as well: they may have to be handled again.
        nbytes = flight.size + sum(size_of(entry.outputs) for entry in entries)
        outbox.put(entries, len(flight.messages), nbytes)

    def hurry(self) -> None:
        """Have what there is delivered now."""
        if self._outbox is not None:
            self._outbox.hurry()

    def late(self) -> str | None:
        """Why what is under way does not arrive, for people; None unless it takes long."""
        return self._outbox.late() if self._outbox is not None else None

    def forget(self, flight: InFlight) -> None:
        """Wait no more for the records' delivery."""
        self._under_way.pop(flight.number, None)
        self._behind.pop(flight.number, None)

    def arrived(self, reached: Mapping[int, int]) -> Iterable[InFlight]:
        """Records that are delivered as a whole, each to be counted as done before the next. `reached`: up to which
        offset, by number.
        """
        for number, following in reached.items():
            # What is delivered in part has had the rest of it refused, and is cut there.
            if (flight := self._under_way.get(number)) is not None and following >= flight.end:
                del self._under_way[number]
                yield flight
        for number, flight in list(self._behind.items()):
            if _is_next(flight):
                del self._behind[number]
                # It is on its way from now on: a stop that came meanwhile would not wait for it at all.
                flight.since_ns = now_ns()
                self._put(flight, self._letters)

    def refused(self, refusals: Mapping[int, int]) -> Sequence[InFlight]:
        """Records on their way whose refusal is to be dealt with now; by number, with the refusal that is meant. Where
        a lower one of their lane has come since, they are taken back with that.
        """
        found = []
        for number, refusal in refusals.items():
            flight = self._under_way.get(number)
            if flight is not None and flight.refusal is not None and flight.lane.refusals == refusal:
                found.append(flight)
                del self._under_way[number]
        return found


def _is_next(flight: InFlight) -> bool:
    """Whether the records may be done before others of their partition that are not."""
    return not flight.tracker.slots.runs or flight.tracker.order[0] is flight


def places_of(before: Iterable[Sequence[Entry]], live: Sequence[Entry], cluster_id: str) -> list[ClientPartition]:
    """Offsets to commit for the partitions of `live`, once these entries, and those of the batches before, are
    delivered. `cluster_id`: empty where it is not known. Caller: holds the table's lock.
    """
    delivered: dict[InFlight, int] = {}
    for entry in chain(chain.from_iterable(before), live):
        flight: InFlight = entry.origin  # type: ignore[assignment]
        delivered[flight] = max(delivered.get(flight, NO_OFFSET), entry.following)
    found = []
    for tracker in {entry.origin.tracker: None for entry in live}:  # type: ignore[attr-defined]
        place = tracker.position_with(delivered)
        tracker.placed = place.offset
        found.append(_as_client_has_it(tracker, place, cluster_id))
    return found


def _as_client_has_it(tracker: OffsetTracker, place: Position, cluster_id: str) -> ClientPartition:
    metadata = with_partitions(tracker.began_with, place.done)
    metadata = f"{metadata} {topic_word(place.offset, cluster_id, tracker.topic_id)}".strip()
    return ClientPartition(*tracker.tp, place.offset, metadata, place.leader_epoch)
