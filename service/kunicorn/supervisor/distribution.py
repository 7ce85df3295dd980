"""Our partitions over our workers: handing out, and moving from one worker to another inside the pool.

The group sees nothing of it. A partition that moves drains where it is, and is handed out again when its worker has
reported it (invariant 4).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping

from kunicorn.group.loads import Move
from kunicorn.group.partitions import PartitionEvent, PartitionState
from kunicorn.group.sharing import keep, share
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes.messages import StopFetcher
from kunicorn.supervisor.grants import Grants
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.pool import Pool
from kunicorn.supervisor.table import PartitionTable
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import TopicPartition

OPEN = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
"""A worker has it, or may have it at once."""
_SHARED = OPEN | {PartitionState.MOVING}
WHENEVER = 1e18
"""The deadline of a move inside the pool: nobody waits for it, the partition goes on where it is until then."""
_AT_A_TURN = 2_000
"""So many are handed out before the loop has another turn: heartbeats go out in between."""


class Distribution:
    """Caller: `Fetchers` and `Balancer`, on the loop; nothing blocks."""

    def __init__(self, table: PartitionTable, grants: Grants, metrics: Metrics) -> None:
        self._table = table
        self._grants = grants
        self._metrics = metrics
        self._by_load = False
        """Loads have placed partitions: evening out their counts would undo that."""
        self._starts: dict[int, list[Partition]] = {}
        """By worker: what is handed out in the loop's next turns."""
        self._goes_on = False
        """The next of these turns is asked for."""

    def distribute(self, pool: Pool) -> None:
        """Give every startable partition to its worker, very many in several turns of the loop; and move as few as
        balance demands. Those that come back have their place kept: others would move there, and away again."""
        expected = pool.expected()
        shared = {tp: p for tp, p in self._table.items() if p.state in _SHARED or p.comes_back}
        if not expected or not shared:
            return
        starts: dict[int, list[Partition]] = defaultdict(list)
        moves: dict[WorkerProcess, list[int]] = defaultdict(list)
        for tp, number in self._target(shared, expected).items():
            partition = shared[tp]
            if partition.state not in _SHARED:
                continue
            if partition.worker is None:
                starts[number].append(partition)
            elif partition.state is PartitionState.MOVING:
                partition.last_worker = number
            elif partition.worker.number != number:
                self._metrics.partition_moves.labels(reason="count").inc()
                self._part(partition, number)
                moves[partition.worker].append(partition.grant)
        for worker, grants in moves.items():
            worker.send(StopFetcher(grants, WHENEVER))
        self._starts = starts
        self._start(pool)

    def _start(self, pool: Pool) -> None:
        room = _AT_A_TURN
        while self._starts and room:
            number, partitions = self._starts.popitem()
            if partitions[room:]:
                self._starts[number] = partitions[room:]
            worker = pool.taking(number)
            # Since the turn in which they were shared out some may have left us.
            due = [p for p in partitions[:room] if p.state in OPEN and p.worker is None and self._table.get(p.tp) is p]
            if worker is not None and due:
                self._grants.issue(worker, due)
            room -= len(partitions[:room])
        if self._starts and not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on, pool)

    def _go_on(self, pool: Pool) -> None:
        self._goes_on = False
        self._start(pool)

    def share_by_count(self, pool: Pool) -> None:
        """Even out the numbers again, if loads have placed something."""
        if self._by_load:
            self._by_load = False
            self.distribute(pool)

    def move(self, move: Move) -> None:
        """Let a running partition go on in another worker. Caller: `balancing`, while nothing else is under way."""
        partition = self._table[move.tp]
        assert partition.worker is not None
        self._by_load = True
        self._metrics.partition_moves.labels(reason=move.reason.value).inc()
        self._part(partition, move.receiver)
        partition.worker.send(StopFetcher([partition.grant], WHENEVER))

    def _target(
        self, shared: Mapping[TopicPartition, Partition], expected: Collection[int]
    ) -> dict[TopicPartition, int]:
        """Those that move already count where they go to: else others would be sent after them."""
        current = {tp: p.last_worker for tp, p in shared.items() if p.last_worker is not None}
        self._by_load = self._by_load and any(number in expected for number in current.values())
        if not self._by_load:
            return share(list(shared), expected, current)
        return keep(list(shared), expected, current, {tp: p.demand for tp, p in shared.items()})

    def _part(self, partition: Partition, number: int) -> None:
        partition.meet(PartitionEvent.MOVE, f"moving to worker {number}")
        partition.last_worker = number
