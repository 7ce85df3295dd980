"""The snapshot behind `/status`: reads the facts of all parts, changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping

from kunicorn import __version__
from kunicorn.ipc import clock
from kunicorn.observe.status import CommitStatus, PartitionStatus, Status, WorkerStatus
from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.membership.source import AssignmentSource, commit_status
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.pool import WorkerSlot
from kunicorn.supervisor.workforce import Workforce


class Snapshot:
    """Makes the frozen `Status` of an instant. Caller: the HTTP server and the metrics, on the loop."""

    def __init__(
        self,
        in_force: SettingsInForce,
        source: AssignmentSource,
        assignment: Assignment,
        workforce: Workforce,
        totals: Mapping[str, int],
    ) -> None:
        """`totals`: what the workers have counted, by name."""
        self._in_force = in_force
        self._source = source
        self._assignment = assignment
        self._workforce = workforce
        self._totals = totals
        self._started_at = clock.now()

    def take(self, connections: Connections, stopping: bool, loop_lag: float) -> Status:
        """The service at this instant. `loop_lag`: seconds."""
        now = clock.now()
        in_force, pool, table = self._in_force, self._assignment.pool, self._assignment.table
        settings = in_force.settings
        held: dict[int, list[Partition]] = {}
        for partition in table.values():
            table.read(partition)
            if partition.worker is not None:
                held.setdefault(partition.worker.number, []).append(partition)
        waits = {
            parked.grant: parked.why
            for process in pool.processes()
            for parked in (process.pong.parked if process.pong is not None else ())
        }
        return Status(
            version=__version__,
            client_id=settings.kafka.client_id,
            pid=os.getpid(),
            uptime=now - self._started_at,
            stopping=stopping,
            loop_lag=loop_lag,
            brokers_reached=connections.unreached is None,
            problem=refusal if (refusal := connections.refusal) is not None else connections.unreached,
            outage=connections.outage,
            template=self._workforce.templates.state,
            reload=self._workforce.reloader.status(now),
            group_id=settings.group.id,
            group=self._source.group(now),
            assign=self._source.assign(),
            commit=self._commit(now),
            workers=tuple(
                _worker(slot, held.get(slot.number, []), now, "backing-off" if pool.cannot_start(slot, now) else "idle")
                for slot in pool.slots
            ),
            partitions=tuple(
                _partition(p, waits, in_force.delay_ms(tp.topic), now, kept=in_force.keeps_offsets(tp.topic))
                for tp, p in sorted(table.items())
            ),
            totals=dict(self._totals),
            rates=self._workforce.rates.status(),
            acts=settings.http.acts,
            settings=in_force.shown,
        )

    def _commit(self, now: float) -> CommitStatus | None:
        """None where starts are all that the supervisor commits: the time since the last one would grow for ever, as
        if commits failed."""
        if self._assignment.table.workers_commit or self._in_force.all_keep_offsets:
            return None
        return commit_status(self._source.commits, now)


def _worker(slot: WorkerSlot, held: Collection[Partition], now: float, empty: str) -> WorkerStatus:
    """One slot in `/status`. `empty`: its state while it has no process."""
    process = slot.process
    pong = process.pong if process is not None else None
    hand = pong.in_hand if pong is not None else None
    return WorkerStatus(
        worker=slot.number,
        pid=process.pid if process is not None else None,
        state=process.state.value if process is not None else empty,
        revision=process.revision if process is not None else None,
        predecessor=slot.predecessor.pid if slot.predecessor is not None else None,
        predecessor_pong_age=_age(slot.predecessor.pong_at, now) if slot.predecessor is not None else None,
        partitions=len(held),
        handled=slot.handled,
        restarts=slot.restarts,
        rss_bytes=pong.rss_bytes if pong is not None else None,
        in_hand=f"{hand.topic}-{hand.partition}@{hand.offset}" if hand is not None else None,
        in_hand_age=hand.age if hand is not None else None,
        runner_age=now - process.runner_moved_at if process is not None and pong is not None else None,
        pong_age=_age(process.pong_at, now) if process is not None else None,
        paused_by_lease=pong.paused_by_lease if pong is not None else False,
        last_exit=slot.last_exit,
        waiting=pong.parked_count if pong is not None else {},
        broken_circuits=pong.broken_circuits if pong is not None else {},
        in_flight=pong.in_flight if pong is not None else 0,
        load=round(sum(partition.demand for partition in held), 3),
        starting=now - process.started_at if process is not None and process.ready_at is None else None,
    )


def _partition(
    partition: Partition, waits: Mapping[int, str], waits_ms: int, now: float, *, kept: bool
) -> PartitionStatus:
    """One partition in `/status`. `waits`: by grant, why a record of it waits. `waits_ms`: each of its records waits so
    long after its timestamp. `kept`: its handler keeps the offsets, so that what is committed is a start of long ago.
    """
    position = partition.position.offset if partition.position is not None else None
    lag = partition.lag
    hand = partition.reading.in_hand
    since_ns = partition.reading.hand_since_ns
    return PartitionStatus(
        topic=partition.tp.topic,
        partition=partition.tp.partition,
        state=partition.state.value,
        reason=waits.get(partition.grant, partition.reason),
        since=now - partition.since,
        worker=partition.worker.number if partition.worker is not None else None,
        grant=partition.grant or None,
        position=position,
        committed=None if kept else partition.committed,
        log_end=partition.log_end,
        lag=lag,
        lag_seconds=lag_seconds(lag, partition.age.oldest_ms(position, in_hand=hand != NO_OFFSET), waits_ms),
        in_hand=hand if hand != NO_OFFSET else None,
        in_hand_age=now - since_ns / clock.NANOSECONDS if hand != NO_OFFSET else None,
    )


def lag_seconds(lag: int | None, timestamp_ms: int, waits_ms: int = 0) -> float | None:
    """Age of the oldest unhandled record, which is of that time; in a retry topic and with `delay_ms`, where it
    `waits_ms`, how long it could have been handled already. None while it is unknown: for a few seconds where no worker
    has begun with the partition, and where records carry no time."""
    if lag == 0:
        return 0.0
    if lag is None or timestamp_ms == NO_TIMESTAMP:
        return None
    return max(0.0, time.time() - (timestamp_ms + waits_ms) / 1000)


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else now - at
