"""Lag in records and in seconds, by the brokers' word: a worker's cached watermark freezes exactly when it matters.
Small, as what is asked about a record is `kunicorn.kafka.record_times`'s.

In seconds: how old the oldest record is that one partition has not handled. What a worker takes in hand tells it; where
none takes any (its worker is busy with another partition, the partition is halted, paused or without a worker), the log
is asked.

1. A worker's word is the time of the first record of the run it took last: at most a run of records too old.
2. Where nothing was left to handle at some time, everything unhandled was written later: the record that a worker had
   last may be of yesterday, the one that waits is not.
3. The log is asked as `kunicorn.kafka.record_times` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from kunicorn.errors import PeerError
from kunicorn.group.protocol import Offsets
from kunicorn.ipc import clock
from kunicorn.ipc.clock import wall_ms
from kunicorn.kafka.record_times import record_times
from kunicorn.observe import logs
from kunicorn.positions import LATEST, TopicPartition
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition

log = logs.get("kunicorn.lag")

INTERVAL = 10.0
_CUT_AFTER = 8.0
"""Seconds that a log has to end before a partition's stop: by then it is known whether the topic was created anew."""
_UNKNOWN_INTERVAL = 1.0
"""For partitions whose end is not known: a newcomer's lag should not be blank for long."""


async def watch_ends(offsets: Offsets, assignment: Assignment) -> None:
    """Keep every partition's log end current, for ever. One that cannot be had becomes unknown, not stale; it is asked
    for each second, and no other one with it.
    """
    while True:
        await refresh_ends(offsets, assignment, assignment.table)
        due = clock.now() + INTERVAL
        while (left := due - clock.now()) > 0:
            await asyncio.sleep(min(left, _UNKNOWN_INTERVAL))
            unknown = [tp for tp, partition in assignment.table.items() if partition.log_end is None]
            if unknown and clock.now() < due:
                await refresh_ends(offsets, assignment, unknown)


async def known_ends(offsets: Offsets, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of the logs whose leaders answer now; none is guessed."""
    try:
        answer = await offsets.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
    except PeerError as error:
        log.info(f"log ends are not known: {error}")
        return {}
    return {tp: found.offset for tp, found in answer.items() if not found.error}


async def refresh_ends(offsets: Offsets, assignment: Assignment, partitions: Collection[TopicPartition]) -> None:
    """Ask for the ends of these partitions' logs, once. An end that is not answered becomes unknown.

    A log that ends before what was consumed of it by then may be that of a topic created anew. Where all is committed
    no commit is refused, and a client that asks brokers which do not lead the new topic hears nothing of it either:
    metadata would tell when it is due, five minutes later.

    So may one that ends before the partition's stop. Where it is not, its end was lost with a leader, and nobody will
    write it: a job would wait for it for ever.
    """
    table = assignment.table
    consumed = {tp: position.offset if (position := table[tp].position) else 0 for tp in partitions}
    asked_ms = wall_ms()
    ends = await known_ends(offsets, consumed)
    short = any(end < consumed[tp] for tp, end in ends.items())
    for tp in consumed:
        if (partition := table.get(tp)) is not None:
            partition.end_seen(ends.get(tp), asked_ms)
            if (before := partition.cut_short(_CUT_AFTER)) is not None:
                log.warning(f"{tp}: its log was cut, and is handled up to offset {partition.stop}, not {before}")
            short = short or partition.seems_short
    if short:
        table.doubt_topics()


ages_log = logs.get("kunicorn.ages")

AGE_INTERVAL = 5.0
"""Between two looks; only partitions that stood still from one to the next are asked about."""
_MOST = 500
"""Partitions in one look; the others have their turn in the next."""


async def watch_ages(offsets: Offsets, assignment: Assignment) -> None:
    """Look for the ages of records that no worker has in hand, for ever. Caller: the service, as a task."""
    seen: dict[TopicPartition, int] = {}
    while True:
        behind = dict(_waiting(assignment.table))
        still = {tp: position for tp, position in behind.items() if seen.get(tp) == position}
        seen = behind
        try:
            found = await record_times(offsets.list_offsets, dict(islice(still.items(), _MOST)), wall_ms())
        except PeerError as error:
            ages_log.info(f"how old unhandled records are is not known: {error}")
            found = {}
        for tp, timestamp_ms in found.items():
            if (partition := assignment.table.get(tp)) is not None:
                partition.age.found(still[tp], timestamp_ms)
        await asyncio.sleep(AGE_INTERVAL)


def _waiting(table: Mapping[TopicPartition, Partition]) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions with something to handle that nobody has in hand, and whose age was not looked for yet."""
    for tp, partition in table.items():
        if partition.busy or partition.position is None or partition.log_end is None:
            continue
        offset = partition.position.offset
        if offset < partition.log_end and not partition.age.known_at(offset):
            yield tp, offset
