"""One worker process as the supervisor sees it: an incarnation of a worker's place in the pool."""

from __future__ import annotations

import asyncio
import heapq
import random
import signal
from enum import Enum

from kunicorn.pipes.channel import Channel
from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import Ping, Pong, TimedOut, ToWorker
from kunicorn.supervisor.processes import kill_group, send_signal
from kunicorn.topics import TopicPartition

LEDGER_SLOTS = 65_536
"""Far more than one worker can be given; the ledger is sparse, untouched slots cost nothing."""


class WorkerState(Enum):
    """Where an incarnation stands."""

    #: Forked; loads its handler, makes its consumer.
    STARTING = "starting"
    #: Takes partitions.
    READY = "ready"
    #: Hands its partitions back and exits.
    DRAINING = "draining"
    #: Its pidfd has spoken; only now its ledger is final.
    DEAD = "dead"


class WorkerProcess:
    """A living worker: pidfd, channel, ledger, and the latest evidence of its progress."""

    def __init__(self, number: int, pid: int, pidfd: int, ledger: Ledger, now: float, revision: int = 0) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = pidfd
        self.ledger = ledger
        self.channel: Channel | None = None
        self.state = WorkerState.STARTING
        self.started_at = now
        self.ready_at: float | None = None
        self.pong: Pong | None = None
        self.pong_at: float | None = None
        self.runner_moved_at = now
        """When the runner's own counter was last seen to have grown."""
        self.killed_by_us: str | None = None
        self.blamed: frozenset[TopicPartition] = frozenset()
        """The partitions whose records it was killed for."""
        self.unanswered = 0
        """How many times in a row it was to be asked again, but had not answered yet."""
        self.revision = revision
        """Which reload's code and settings it runs."""
        self.jitter = random.random()
        """Spreads what is due for all workers that were started together."""
        self.retired: str | None = None
        """Why it was replaced in order: its exit is no death."""
        self.refusal: str | None = None
        """Why it says that it cannot serve."""
        self.on_trial = False
        """It was started to replace another one, and was not ready yet: its failure is not the service's."""
        self.settled = asyncio.Event()
        """It has been ready, or is dead."""
        self._ping: int = 0
        self._freed: list[int] = []
        self._untouched = 0

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def is_dead(self) -> bool:
        """Whether its pidfd has spoken. A method, as it changes behind any await."""
        return self.state is WorkerState.DEAD

    @property
    def handled(self) -> int:
        """Records it has finished, as far as it told."""
        return self.pong.handled if self.pong is not None else 0

    @property
    def takes_partitions(self) -> bool:
        """Whether StartFetcher may be sent."""
        return self.state is WorkerState.READY

    def send(self, message: ToWorker) -> None:
        """Queue a message; never waits."""
        if self.channel is not None:
            self.channel.send(message)

    def take_slot(self) -> int:
        """The lowest free ledger slot: few pages stay few."""
        if self._freed:
            return heapq.heappop(self._freed)
        self._untouched += 1
        return self._untouched - 1

    def free_slot(self, slot: int) -> None:
        """Only after `FetcherStopped` (or `Failed`) for the grant that used it."""
        heapq.heappush(self._freed, slot)

    def ping(self) -> None:
        """Ask for evidence, unless the last question is still open: a frozen worker's pipe must not fill up."""
        if self._ping and (self.pong is None or self.pong.sequence != self._ping):
            self.unanswered += 1
            return
        self._ping += 1
        self.send(Ping(self._ping))

    def heard(self, pong: Pong, now: float) -> int:
        """Note the evidence; return how many log lines the worker has dropped since the last one."""
        dropped = pong.logs_dropped - (self.pong.logs_dropped if self.pong is not None else 0)
        if self.pong is None or pong.runner != self.pong.runner:
            self.runner_moved_at = now
        self.pong, self.pong_at, self.unanswered = pong, now, 0
        return dropped

    def time_out(self, grant: int, offset: int, overdue_ns: int) -> None:
        """Raise `HandlerTimeout` in the handler, if it still has that record in hand, and in all other calls with the
        grant's records since `overdue_ns` or earlier."""
        self.send(TimedOut(grant, offset, overdue_ns))

    # -- the ladder for a worker that does not stop, rung by rung ----------------------------------------------

    def interrupt_handler(self) -> None:
        """Raise `DrainDeadline` in the runner, so that the handler's `finally` blocks run."""
        self._signal(signal.SIGUSR1)

    def abort(self) -> None:
        """Die with all stacks dumped."""
        self._signal(signal.SIGABRT)

    def kill(self) -> None:
        """Die, and everything the handler started with it."""
        if not self.is_dead():
            kill_group(self.pid)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The pidfd is closed once the death was seen; its number may be another file by now.
        if not self.is_dead():
            send_signal(self.pidfd, number)

    def release(self) -> None:
        """After its death: close what we hold of it."""
        if self.channel is not None:
            self.channel.close()
        self.ledger.close()
