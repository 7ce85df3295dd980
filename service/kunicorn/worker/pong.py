"""What Pong tells of a worker's grants: what handlers have in hand, and which partition waits for what. Pure.

Small, as the table (`worker.partitions`) changes what is only read here. Every caller holds the table's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.ipc.messages import InHand, Parked
from kunicorn.worker.limits.gate import Shut
from kunicorn.worker.progress import Grant, GrantState, Slots

_PARKED_TOLD = 50


def in_hand(grants: Iterable[Grant], in_flight: int, now: int) -> InHand | None:
    """What is in hand for the longest, and how many records are in all: `in_flight`, where calls get one each."""
    held = [(flight, each.mirror) for each in grants if (flight := each.tracker.oldest)]
    if not held:
        return None
    first, mirror = min(held, key=lambda each: each[0].since_ns)
    age = max(0.0, (now - first.since_ns) / NANOSECONDS)
    count = len(first.messages) if first.tracker.slots.runs else in_flight
    return InHand(first.tp.topic, first.tp.partition, mirror.in_hand(first), count, age)


def in_calls(grants: Iterable[Grant]) -> int:
    """Number of records that calls of handlers have right now; of fast ones, which are taken in hand many at once and
    handled one after the other, one.
    """
    running = [flight for each in grants for flight in each.tracker.running]
    return sum(len(flight.messages) if flight.tracker.slots.bounds else 1 for flight in running)


def parked(
    grants: Collection[Grant], shut: Mapping[Slots, Shut], late: str | None
) -> tuple[list[Parked], dict[str, int]]:
    """Some of the partitions of which a record waits, and the count of all by what they wait for. `shut`: handlers
    whose gate is shut. `late`: why what is under way does not arrive, if that takes long.
    """
    every = [waits for each in grants if (waits := _waiting(each, shut)) is not None]
    told, count = every[:_PARKED_TOLD], dict(Counter(each.waits_for for each in every))
    if late is None:
        return told, count
    undelivered = [each.number for each in grants if each.tracker.sending and _waiting(each, {}) is None]
    told += [Parked(number, "delivery", late) for number in islice(undelivered, _PARKED_TOLD - len(told))]
    return told, {**count, "delivery": len(undelivered)} if undelivered else count


def broken_circuits(grants: Iterable[Grant]) -> dict[str, int]:
    """Number of partitions by topic whose handler's circuit breaker is not closed."""
    gated = ((each.tp.topic, each.tracker.slots.gate) for each in grants)
    return dict(Counter(topic for topic, gate in gated if gate is not None and gate.broken))


def _waiting(grant: Grant, shut: Mapping[Slots, Shut]) -> Parked | None:
    """What a record of the partition waits for, if one does."""
    if grant.tracker.bytes and (gate := shut.get(grant.tracker.slots)) is not None:
        return Parked(grant.number, gate.waits_for, gate.why)
    if (flight := next(iter(grant.tracker.waiting), None)) is not None:
        return Parked(grant.number, flight.waits_for, flight.why)
    if grant.state is GrantState.DELAYED:
        return Parked(grant.number, grant.waits_for, grant.why)
    for flight in grant.tracker.sending:
        if flight.given_up is not None:
            destination = flight.given_up.destination
            what = f"the {destination.kind} {destination.topic!r}: it is not acknowledged yet"
            return Parked(grant.number, destination.end.value, f"offset {flight.offset} waits for {what}")
    return None
