"""Which worker holds which partition, under which grant: a number that is never used again.

A report counts only under the partition's current grant (invariant 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import marks
from kunicorn.pipes.messages import FetcherStart, StartFetcher
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import NO_OFFSET, Position

log = logs.get("kunicorn.fetchers")


class Grants:
    """Those that are open, by worker. Caller: `Fetchers`, on the loop; nothing blocks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._held: dict[WorkerProcess, dict[int, Partition]] = defaultdict(dict)
        self._last = 0

    def of(self, worker: WorkerProcess) -> list[Partition]:
        """What that worker holds."""
        return list(self._held.get(worker, {}).values())

    def issue(self, worker: WorkerProcess, partitions: Iterable[Partition]) -> None:
        """Hand these out to the worker, each from its position on. Nobody else may hold them."""
        starts = []
        for partition in partitions:
            assert partition.position is not None
            self._last += 1
            partition.hand_to(worker, self._last)
            partition.reason = f"handed to worker {worker.number}"
            self._held[worker][self._last] = partition
            starts.append(_start(partition, partition.position))
        worker.send(StartFetcher(starts))

    def find(self, worker: WorkerProcess, grant: int) -> Partition | None:
        """The partition that the worker holds under this grant. None: the grant is over, and the report refused."""
        partition = self._held.get(worker, {}).get(grant)
        if partition is None:
            self._metrics.reports_refused.labels(reason="old grant").inc()
            log.warning(f"{worker} reported under grant {grant}, which is over: refused", worker=worker.number)
        return partition

    def end(self, partition: Partition, reported: Position | None) -> None:
        """Its worker has let go of it, at the position it reports; None: it is dead, and the ledger says where."""
        partition.look()
        if reported is not None and reported.offset != NO_OFFSET:
            partition.position = reported._replace(done="")
            partition.done |= marks.read(reported.offset, reported.done)
        assert partition.worker is not None
        del self._held[partition.worker][partition.grant]
        partition.take_back()

    def bury(self, worker: WorkerProcess) -> None:
        """It is dead, and all it held was ended."""
        self._held.pop(worker, None)


def _start(partition: Partition, position: Position) -> FetcherStart:
    tp = partition.tp
    return FetcherStart(
        grant=partition.grant,
        slot=partition.slot,
        topic=tp.topic,
        partition=tp.partition,
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        stop=partition.stop,
        reset=partition.reset,
        done=marks.written(position.offset, partition.done),
        began_with=partition.began_with,
        **partition.blame.warning(position.offset),
    )
