"""A worker's process as the supervisor sees it.

`WorkerProcess` is one incarnation of a worker's place in the pool. Beside it: what Linux offers to know about child
processes (subreaper, pidfds, the orphans that end up with PID 1), and the ladder for a worker that does not do what it
has to: interrupt its handler, abort it, kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import random
import signal
from collections.abc import Callable
from enum import Enum

from kunicorn.errors import how_it_ended
from kunicorn.ipc import clock
from kunicorn.ipc.channel import Channel
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Ping, Pong, TimedOut, ToWorker
from kunicorn.observe import logs
from kunicorn.positions import TopicPartition

_PR_SET_CHILD_SUBREAPER = 36
_REAP_INTERVAL = 1.0
_UNKNOWN = "exited, status unknown"


def become_subreaper() -> None:
    """Make orphaned descendants our children: a worker's parent is then the supervisor, whoever forked it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def watch_exit(pidfd: int, on_exit: Callable[[str], None], *, with_group: bool = False) -> None:
    """Call `on_exit` on the loop with how the process ended, once it has; the pidfd is closed then.

    `with_group`: it leads a process group, and whatever it leaves behind there is killed before `on_exit` is called.
    """
    loop = asyncio.get_running_loop()

    def reap() -> None:
        loop.remove_reader(pidfd)
        try:
            # Looked at first: once it is reaped, its pid, which is the group's id, may be somebody else's.
            if with_group and (left := os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)) is not None:
                kill_group(left.si_pid)
            how = _told(os.waitid(os.P_PIDFD, pidfd, os.WEXITED))
        except ChildProcessError:
            how = _UNKNOWN
        os.close(pidfd)
        on_exit(how)

    loop.add_reader(pidfd, reap)


def _told(info: os.waitid_result | None) -> str:
    if info is None:
        return _UNKNOWN
    return how_it_ended(info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)


def send_signal(pidfd: int, number: signal.Signals) -> None:
    """Signal the very process behind the pidfd, never a successor of its pid; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, number)


def kill_group(pid: int) -> None:
    """SIGKILL to a worker's process group, so that what its handler started goes with it.

    Caller: only while the worker itself is not reaped, as its pid, and with it the group's id, is ours until then.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reap_strangers(ours: Callable[[int], bool]) -> int:
    """Reap orphans that were reparented to us; return how many. Children whose pidfd we watch are left to it.

    `waitpid(-1)` would steal a worker's status, so each zombie is looked at (WNOWAIT) before it is taken.
    """
    reaped = 0
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if found is None or ours(found.si_pid):
            return reaped
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
        reaped += 1


async def keep_reaping(ours: Callable[[int], bool]) -> None:
    """`reap_strangers` once a second, for ever, as PID 1 must."""
    while True:
        reap_strangers(ours)
        await asyncio.sleep(_REAP_INTERVAL)


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


log = logs.get("kunicorn.pool")

_PATIENCE = 1.0
"""Seconds on each rung but the last."""


class Stirring:
    """Tells waiters to look again, whenever a worker has let go of something or died."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Something has changed."""
        self._stirred.set()

    async def until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Until the condition holds or `deadline` (seconds of `clock.now`)."""
        while not condition() and (left := deadline - clock.now()) > 0:
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stirred.wait()


async def press(
    process: WorkerProcess,
    reason: str,
    until: Callable[[], bool],
    stirring: Stirring,
    interrupt: Callable[[], None] | None = None,
) -> None:
    """Climb until `until` holds. Returns once it does or the kill was sent; SIGKILL sent is not death, that is told by
    the pidfd. `interrupt`: the first rung, if it is not the end of the drain budget."""
    rungs = (
        ("interrupting its handler", interrupt or process.interrupt_handler, _PATIENCE),
        ("aborting it, its stacks follow on stderr", process.abort, _PATIENCE),
        ("killing it and what it started", process.kill, 0.0),
    )
    for what, climb, patience in rungs:
        if until() or process.is_dead():
            break
        log.warning(f"{process} {reason}: {what}", worker=process.number, worker_pid=process.pid)
        process.killed_by_us = reason
        climb()
        await stirring.until(lambda: until() or process.is_dead(), clock.now() + patience)
    if until() and not process.is_dead():
        process.killed_by_us = None
