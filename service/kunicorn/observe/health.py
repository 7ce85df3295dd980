"""Answers of the probes. Pure: a snapshot in, a verdict out.

/livez is red only for what a restart cures. A halted or paused partition, lag, a rebalance, brokers that nobody can
reach: a restart repairs none of them, costs the group a rebalance, and in an outage restarts every pod at once.

/readyz asks for no assignment: a member beyond the number of partitions is as ready as one can be, and a rollout that
waited for it would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kunicorn.observe.status import Status, WorkerStatus
from kunicorn.text import listed

LOOP_LAG_MAX = 5.0
"""Seconds the supervisor's loop may run late: half the shortest session timeout that is allowed."""
START_MAX = 5.0
"""Seconds that all workers together may take to start again until the service does not count as ready."""
SILENCE_MAX = 60.0
"""Seconds a worker may go without progress or an answer. The supervisor replaces such workers far sooner: beyond
this it has failed to, and only a restart is left."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Green, or red with every reason."""

    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it is green."""
        return not self.reasons


def live(status: Status) -> Verdict:
    """Verdict of /livez: red where a restart would help."""
    return Verdict((*_loop(status), *(reason for worker in status.workers for reason in _worker(worker))))


def ready(status: Status) -> Verdict:
    """Verdict of /readyz: green once the member is in the group and serves; with [assign], once every partition is
    fetched.
    """
    return Verdict(tuple(reason(status) for reason_holds, reason in _NOT_READY if reason_holds(status)))


_NOT_READY: tuple[tuple[Callable[[Status], bool], Callable[[Status], str]], ...] = (
    (lambda s: s.stopping, lambda s: f"stopping: draining{', committing, leaving the group' if s.group else ''}"),
    (lambda s: s.problem is not None, lambda s: str(s.problem)),
    (
        lambda s: s.group is not None and not s.group.joined,
        lambda s: f"not yet a stable member of group {s.group_id!r}: {s.group.state if s.group else ''}",
    ),
    (
        lambda s: bool(_all_late(s)),
        lambda s: f"no worker is ready: {_all_late(s)}; look at the log and at what setup waits for",
    ),
    (lambda s: s.assign is not None and not s.assign.fetched, lambda s: f"not yet fetched: {_unfetched(s)}"),
)


def _all_late(status: Status) -> str:
    """Reason where every worker is still starting; empty otherwise. A replacement of a dead worker counts only once it
    has been starting for `START_MAX`.
    """
    living = [worker for worker in status.workers if worker.pid is not None]
    if not living:
        return ", ".join(f"worker {w.worker} cannot be started" for w in status.workers if w.state == "backing-off")
    if any(w.starting is None or (w.restarts > 0 and w.starting < START_MAX) for w in living):
        return ""
    return ", ".join(f"worker {w.worker} (pid {w.pid}) has been starting for {w.starting:.0f} s" for w in living)


def _unfetched(status: Status) -> str:
    waiting = [f"{p.topic}-{p.partition} ({p.state})" for p in status.partitions if p.state not in _FETCHED]
    return listed(waiting, 10, ", ") or "no partition is assigned yet"


_FETCHED = frozenset({"running", "moving", "released"})


def _loop(status: Status) -> Iterator[str]:
    if status.loop_lag > LOOP_LAG_MAX:
        yield f"the supervisor's event loop ran {status.loop_lag:.1f} s late: heartbeats cannot be in time"


def _worker(worker: WorkerStatus) -> Iterator[str]:
    if worker.predecessor_pong_age is not None and worker.predecessor_pong_age > SILENCE_MAX:
        yield (
            f"worker {worker.worker}'s predecessor (pid {worker.predecessor}) has partitions to hand over, but has not "
            f"answered for {worker.predecessor_pong_age:.0f} s"
        )
    if worker.pid is None:
        return
    if worker.pong_age is not None and worker.pong_age > SILENCE_MAX:
        yield f"worker {worker.worker} (pid {worker.pid}) has not answered for {worker.pong_age:.0f} s"
    elif _runner_is_stuck(worker):
        yield (
            f"worker {worker.worker} (pid {worker.pid}) has {worker.partitions} partitions and nothing in hand, "
            f"but its runner has not moved for {worker.runner_age:.0f} s"
        )


def _runner_is_stuck(worker: WorkerStatus) -> bool:
    """Whether the worker's main loop has stopped. A long handler call does not count, whose age is a metric, nor a
    worker that pauses until membership is certain.
    """
    idle = worker.in_hand is None and not worker.paused_by_lease
    return idle and worker.partitions > 0 and worker.runner_age is not None and worker.runner_age > SILENCE_MAX
