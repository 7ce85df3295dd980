"""A worker's process as the supervisor sees it.

`WorkerProcess` is one process of a slot of the pool. Beside it: what Linux tells about child processes (subreaper,
pidfds, the orphans that end up with PID 1), and the escalation for a worker that does not do what it has to: interrupt
its handler, abort it, kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import random
import signal
import socket
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from kunicorn.errors import FENCED_STATUS, how_it_ended
from kunicorn.ipc import clock
from kunicorn.ipc.channel import Channel
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import DrainOver, FromWorker, Ping, Pong, StopFetcher, TimedOut, ToWorker
from kunicorn.linux import stat_fields
from kunicorn.observe import logs
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.notifier import Notifier

_PR_SET_CHILD_SUBREAPER = 36
_REAP_INTERVAL = 1.0
_LOOK_INTERVAL = 1.0
_TAKE_AGAIN = 0.1
_TRACER_SECONDS = 1.0
"""Seconds that a tracer has to hand on the exit status; one that only watches (strace) takes none."""
_UNKNOWN = "exited, status unknown"


def become_subreaper() -> None:
    """Make orphaned descendants our children: a worker's parent is then the supervisor, whoever forked it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Child(NamedTuple):
    """A process of ours: its pid, and the pidfd that tells of its end."""

    pid: int
    pidfd: int


def watch_exit(child: Child, on_exit: Callable[[str], None], *, with_group: bool = False) -> None:
    """Call `on_exit` on the loop with how the process ended, once it has; the pidfd is closed then.

    `with_group`: it leads a process group, and whatever it leaves behind there is killed before `on_exit` is called.

    A debugger that is attached has the exit status before its parent has, and keeps it for as long as it likes. It is
    given a moment; then the process counts as ended, and `reap_strangers` takes what the debugger leaves.
    """
    _ExitWatch(child, on_exit, with_group=with_group)


class _ExitWatch:
    """The end of one process, as `watch_exit` has it; lives until then."""

    def __init__(self, child: Child, on_exit: Callable[[str], None], *, with_group: bool) -> None:
        self._child = child
        self._on_exit = on_exit
        self._with_group = with_group
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(child.pidfd, self._spoken)
        self._later = self._loop.call_later(_LOOK_INTERVAL, self._look)

    def _spoken(self) -> None:
        self._loop.remove_reader(self._child.pidfd)
        self._later.cancel()
        self._take(clock.now() + _TRACER_SECONDS)

    def _look(self) -> None:
        # Where a debugger holds every thread, the pidfd says nothing before the debugger does.
        if has_ended(self._child.pid):
            self._take(clock.now() + _TRACER_SECONDS)
        else:
            self._later = self._loop.call_later(_LOOK_INTERVAL, self._look)

    def _take(self, due: float) -> None:
        how = self._status()
        if how is None and clock.now() < due:
            self._later = self._loop.call_later(_TAKE_AGAIN, self._take, due)
            return
        self._later.cancel()
        self._loop.remove_reader(self._child.pidfd)
        os.close(self._child.pidfd)
        if how is None:
            log.warning(f"process {self._child.pid} has ended, and a debugger keeps its exit status: going on without")
        self._on_exit(how or _UNKNOWN)

    def _status(self) -> str | None:
        """How it ended; None while a tracer keeps that. Caller: no thread of it runs any more."""
        pid, pidfd = self._child
        try:
            # Looked at first: once it is reaped, its pid, which is the group's id, may be somebody else's. Never waited
            # for: the loop would stand still until the tracer lets go, without a heartbeat.
            left = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if self._with_group:
                kill_group(pid)
            return None if left is None else _told(os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG))
        except ChildProcessError:
            return _UNKNOWN


def has_ended(pid: int) -> bool:
    """Whether no thread of a child runs any more, its exit status not taken: what it has written is final."""
    try:
        return _is_zombie(pid, str(pid)) and all(_is_zombie(pid, each) for each in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False  # Reaped meanwhile, by whom it is the pidfd that tells.


def _is_zombie(pid: int, thread: str) -> bool:
    return stat_fields(f"{pid}/task/{thread}")[0] in {"Z", "X"}


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


FENCED = how_it_ended(FENCED_STATUS)
"""How a worker ends whose producer the brokers take no more."""


class WorkerState(Enum):
    """The states of a worker's process."""

    #: Forked; loads its handler, makes its consumer.
    STARTING = "starting"
    #: Takes partitions.
    READY = "ready"
    #: Hands its partitions back and exits.
    DRAINING = "draining"
    #: No thread of it runs any more; only now its ledger is final.
    DEAD = "dead"


class WorkerProcess:
    """A living worker: pidfd, channel, ledger, and the latest evidence of its progress."""

    def __init__(self, number: int, child: Child, ledger: Ledger, revision: int = 0, *, on_trial: bool = False) -> None:
        now = clock.now()
        self.number = number
        self.pid, self.pidfd = child
        self.ledger = ledger
        self._channel: Channel | None = None
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
        """Why it was replaced as planned; its exit is then not counted as a crash."""
        self.refusal: str | None = None
        """Why it says that it cannot serve."""
        self.on_trial = on_trial
        """Started as a replacement, and not ready yet: if it fails, the replacement fails and the service goes on."""
        self.turn = 0
        """Of its slot's two transactional ids, the one that it has (`WorkerSlot.turn`)."""
        self.inherits = False
        """It ends what workers of its slot have left open under the other id, before it is ready."""
        self.never_served = False
        """It was not told what to do, or could make no client: that it dies says nothing of the others."""
        self._ping: int = 0
        self._lease_ns = 0
        self._unread = 0
        """The Ping behind what it must have read before it has the lease again; 0: it has it."""
        self._freed: list[int] = []
        self._untouched = 0

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def is_dead(self) -> bool:
        """Whether it has ended, as `watch_exit` tells. A method, as it changes behind any await."""
        return self.state is WorkerState.DEAD

    @property
    def has_started_or_died(self) -> bool:
        """Whether it has been ready, or is dead."""
        return self.ready_at is not None or self.is_dead()

    @property
    def handled(self) -> int:
        """Records it has finished, as far as it told."""
        return self.pong.handled if self.pong is not None else 0

    @property
    def takes_partitions(self) -> bool:
        """Whether StartFetcher may be sent."""
        return self.state is WorkerState.READY

    # -- its life, as the pool brings it about ---------------------------------------------------------------------

    async def connect(
        self, ours: socket.socket, on_message: Callable[[FromWorker], None], on_protocol_error: Callable[[str], None]
    ) -> None:
        """Open the channel over our end of the pipe."""
        self._channel = await Channel.open(ours, on_message, on_protocol_error)
        if self.is_dead():
            self._channel.close()

    def become_ready(self, *, takes_partitions: bool) -> None:
        """It has loaded its handler and made its consumer. Where it was to leave before it was ready, it leaves."""
        drains = self.state is WorkerState.DRAINING or not takes_partitions
        self.state = WorkerState.DRAINING if drains else WorkerState.READY
        self.ready_at = clock.now()
        self.on_trial = False

    def refuse(self, error: str) -> None:
        """It says that it cannot serve."""
        self.refusal = error

    def begin_draining(self, retired: str | None = None) -> None:
        """It takes no partitions any more; `retired`: why it is replaced, as planned."""
        self.state, self.retired = WorkerState.DRAINING, retired or self.retired

    def condemn(self, why: str) -> None:
        """We are about to end it, and that is why it dies."""
        self.killed_by_us = why

    def acquit(self) -> None:
        """It has done what it was to be ended for."""
        self.killed_by_us = None

    def blame(self, partitions: Iterable[TopicPartition]) -> None:
        """If it is ended now, then for the records of these partitions."""
        self.blamed = frozenset(partitions)

    def die(self) -> None:
        """It has ended: `watch_exit` tells so."""
        self.state = WorkerState.DEAD

    # -- what it is told and tells ---------------------------------------------------------------------------------

    def send(self, message: ToWorker) -> None:
        """Queue a message; never waits."""
        if self._channel is not None:
            self._channel.send(message)

    def extend_lease(self, until_ns: int) -> None:
        """Let it start records until then (nanoseconds of `clock.now_ns`); after `take_away` only once it has read
        that."""
        self._lease_ns = until_ns
        if not self._unread:
            self.ledger.lease_ns = until_ns

    def take_away(self, stop: StopFetcher) -> None:
        """Have it stop what another member may handle by now; until it has read that, it starts no record at all.

        It sees the lease at once, and the pipe when its control thread gets to run: on a busy machine that is after the
        next heartbeat is answered. It would go on with what is not ours any more.
        """
        self.ledger.lease_ns = min(self.ledger.lease_ns, clock.now_ns())
        self.send(stop)
        self._ping += 1
        self._unread = self._ping
        self.send(Ping(self._ping))

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

    def note_pong(self, pong: Pong, now: float) -> int:
        """Note the evidence; return how many log lines the worker has dropped since the last one."""
        dropped = pong.logs_dropped - (self.pong.logs_dropped if self.pong is not None else 0)
        if self.pong is None or pong.runner != self.pong.runner:
            self.runner_moved_at = now
        self.pong, self.pong_at, self.unanswered = pong, now, 0
        if self._unread and pong.sequence >= self._unread:
            self._unread, self.ledger.lease_ns = 0, self._lease_ns
        return dropped

    def time_out(self, grant: int, offset: int, overdue_ns: int) -> None:
        """Raise `HandlerTimeout` in the handler, if it still has that record in hand, and in all other calls with the
        grant's records since `overdue_ns` or earlier."""
        self.send(TimedOut(grant, offset, overdue_ns))

    # -- the escalation for a worker that does not stop, rung by rung ----------------------------------------------

    def interrupt_handler(self, grants: list[int] | None = None) -> None:
        """Raise `DrainDeadline` in the handlers of these grants, which are to stop, so that their `finally` blocks run;
        None: of all that are, as the whole worker has to go."""
        self.send(DrainOver(grants))
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
        if self._channel is not None:
            self._channel.close()
        self.ledger.close()


log = logs.get("kunicorn.pool")

_PATIENCE = 1.0
"""Seconds until an interrupted handler has let go."""
_DUMPING = 3.0
"""Seconds until an aborted worker is dead. It writes its stacks first, and on a busy machine that takes a while:
killed meanwhile, it would take along what says where it was stuck."""


async def escalate(
    process: WorkerProcess,
    reason: str,
    until: Callable[[], bool],
    changed: Notifier,
    interrupt: Callable[[], None] | None = None,
) -> None:
    """Interrupt, abort and kill the worker, until `until` holds. Returns once it does or the kill was sent; SIGKILL
    sent is not death, that is told by `watch_exit`. `interrupt`: the first rung, if the worker need not go as a
    whole."""
    rungs = (
        ("interrupting its handler", interrupt or process.interrupt_handler, _PATIENCE),
        ("aborting it, its stacks follow on stderr", process.abort, _DUMPING),
        ("killing it and what it started", process.kill, 0.0),
    )
    for what, climb, patience in rungs:
        if until() or process.is_dead():
            break
        log.warning(f"{process} {reason}: {what}", worker=process.number, worker_pid=process.pid)
        process.condemn(reason)
        climb()
        await changed.wait(lambda: until() or process.is_dead(), clock.now() + patience)
    if until() and not process.is_dead():
        process.acquit()
