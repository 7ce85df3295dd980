"""The worker pool: processes come and go here without the group noticing (invariant 6).

- `Pool`: the workers as other parts see them. A `WorkerSlot` of it, 0 … count−1, outlives its processes.
- `Arbiter`: starts a process for each slot, watches it, and replaces it when it dies.
- `PoolListener`: who deals in partitions, as the arbiter sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kunicorn.backoff import Backoff, Retries
from kunicorn.errors import ConfigError, HandlerLoadError, WorkersDyingError
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitOver,
    CommitWanted,
    Configure,
    Drain,
    EndTransactions,
    Failed,
    FetcherStopped,
    FromWorker,
    Pong,
    Ready,
    WorkerFailed,
)
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.process import FENCED, LEDGER_SLOTS, WorkerProcess, WorkerState, escalate, watch_exit
from kunicorn.supervisor.workers.template import Template, TemplateDied


@dataclass(slots=True)
class WorkerSlot:
    """One worker's place in the pool. It has one process; while that is replaced there are two: the successor starts,
    then the predecessor drains."""

    number: int
    process: WorkerProcess | None = None
    """Takes the slot's partitions, now or as soon as it is ready."""
    empty_since: float = 0.0
    """Since when (seconds of `clock.now`) it is wanted and has no process."""
    successor: WorkerProcess | None = None
    """Starts, to take over from `process`."""
    predecessor: WorkerProcess | None = None
    """Hands its partitions over to `process` and exits. While it lives, the slot is given no other successor: even
    SIGKILL ends none that waits for a disk."""
    restarts: int = 0
    handled_before: int = 0
    idle_deaths: int = 0
    """Deaths in a row, each soon after its start, with nothing handled and nothing in hand."""
    fenced_deaths: int = 0
    """Likewise deaths by `FENCED`, whatever was handled: the next one would be soon."""
    refusals: int = 0
    """Likewise those that could not import the handler or make a client, as its files do not fit together just then."""
    backing_off: bool = False
    forking: bool = False
    """The process that is to have it is being forked."""
    turn: int = 0
    """Of its two transactional ids, the one that its process has; a successor beside it takes the other."""
    inherits: bool = True
    """Under the other one an earlier service, or a dead process, may have left transactions open, which no process has
    ended yet."""
    last_exit: str | None = None
    fault: Exception | None = None
    """Why no process of the slot can serve: ends the service."""

    def processes(self) -> list[WorkerProcess]:
        """The processes that live."""
        return [p for p in (self.process, self.successor, self.predecessor) if p is not None]

    @property
    def handled(self) -> int:
        """Records finished by all its processes, as far as they told."""
        return self.handled_before + sum(p.handled for p in self.processes())

    def promote(self) -> WorkerProcess | None:
        """Let the successor take over; returns the process that held the slot, if it lives."""
        self.predecessor, self.process, self.successor = self.process, self.successor, None
        self.turn += 1
        return self.predecessor

    def remove(self, process: WorkerProcess) -> None:
        """Remove a dead process. A successor that is under way takes the slot over."""
        self.handled_before += process.handled
        if process is self.process:
            self.turn += 1 if self.successor is not None else 0
            self.process, self.successor = self.successor, None
        elif process is self.successor:
            self.successor = None
        elif process is self.predecessor:
            self.predecessor = None


class PoolListener(Protocol):
    """Listens to what the workers report, and to their deaths; called on the loop."""

    def worker_ready(self, worker: WorkerProcess) -> None:
        """The worker takes partitions from now on."""

    def fewer_expected(self) -> None:
        """`Pool.expected` leaves out some that it had: what waits for them goes to the others."""

    def worker_stopped(self, worker: WorkerProcess, report: FetcherStopped) -> None:
        """The worker has let go of grants."""

    def worker_failed(self, worker: WorkerProcess, report: Failed) -> None:
        """A grant of the worker has ended by a failure."""

    def worker_commits(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """The worker wants to commit a transaction, or has ended it."""

    def worker_retires(self, worker: WorkerProcess) -> None:
        """The worker is about to let go of all its partitions; its successor takes partitions already."""

    def worker_reported(self, worker: WorkerProcess) -> None:
        """The worker has answered a Ping: a good moment to look into its ledger."""

    def worker_died(self, worker: WorkerProcess, how: str) -> bool:
        """The worker is dead and its ledger final; returns whether it had a record in hand, or had handled any."""

    def code_replaced(self, why: str) -> int:
        """All workers run newer code; returns how many partitions go on that the old code had halted."""


log = logs.get("kunicorn.pool")

PING_INTERVAL = 0.5
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=5.0)
_CLEAN = "exit 0"
_REAPING = 2.0
"""Seconds that the kernel may take to tear a killed worker down."""
_LATE = 5.0
"""Seconds that partitions wait for a worker that starts while others are ready."""
_STACKS = 1.0
"""Seconds that a worker that is aborted may take to say what its threads are at."""
_MOST_IDLE_DEATHS = 10
"""So many deaths of one worker in a row, each with nothing handled and nothing in hand, end the service: the fault
is not in a record, and a restart elsewhere may help."""
_STEADY = 60.0
"""Seconds after which a worker that is ready has shown that workers live: a later death is the first of a new row, or
those of an idle worker would add up over months."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The code and the settings of one revision, from which workers are started."""

    revision: int
    template: Callable[[], Awaitable[Template]]
    configure: Callable[[int, int, bool], Configure]
    """Makes the first message for the worker of that number, and its turn (`WorkerSlot.turn`); whether it ends what the
    other turn has left open, too."""
    start_seconds: float
    """How long a worker may take until it is ready."""
    transactional_id: Callable[[int, int], str] = lambda number, turn: ""
    """Of the worker of that number and turn; empty where workers open no transactions."""


class Pool:
    """The workers as other parts see them, and what these want of them. `Arbiter` starts, watches and ends them."""

    def __init__(self, count: int) -> None:
        self.slots = [WorkerSlot(number) for number in range(count)]
        self.changed = Notifier()
        """A worker is ready, has let go of something, or is dead; or more workers are wanted."""
        self.wanted = 0
        """So many of the slots are to have a process."""
        self.stopping = False
        """Whoever dies from now on is not replaced."""
        self.late: frozenset[int] = frozenset()
        """Numbers of those that take long to be ready, or to be there. Written by `Arbiter`."""
        self.lease_ns = 0
        """Until when workers may start records (nanoseconds of `clock.now_ns`)."""

    def processes(self) -> list[WorkerProcess]:
        """The living processes, by number; of a slot that is being handed over there are two."""
        return [process for slot in self.slots for process in slot.processes()]

    def expected(self) -> list[int]:
        """Numbers of the workers that take partitions now or in a moment."""
        return [slot.number for slot in self.slots[: self.wanted] if self._is_expected(slot)]

    def _is_expected(self, slot: WorkerSlot) -> bool:
        process = slot.process
        if process is not None and process.takes_partitions:
            return True
        if slot.backing_off or slot.number in self.late:
            return False
        return process is None or process.state is not WorkerState.DRAINING

    def cannot_start(self, slot: WorkerSlot, now: float) -> bool:
        """Whether the slot is wanted and has had no process for long: its workers die, or none can be forked."""
        empty = slot.number < self.wanted and slot.process is None and now - slot.empty_since >= _LATE
        return slot.backing_off or empty

    def accepting(self, number: int) -> WorkerProcess | None:
        """The process of that slot, if it takes partitions now."""
        process = self.slots[number].process
        return process if process is not None and process.takes_partitions else None

    def want(self, workers: int) -> None:
        """Have workers started until so many live; those that live already stay, idle ones cost little."""
        for slot in self.slots[self.wanted : workers]:
            slot.empty_since = clock.now()
        self.wanted = max(self.wanted, min(workers, len(self.slots)))
        self.changed.notify()

    def replace_no_more(self) -> None:
        """Replace no dead worker from now on: its successor would fail like it, or is not needed any more."""
        self.stopping = True

    def extend_lease(self, until_ns: int) -> None:
        """Let every worker start records until then (nanoseconds of `clock.now_ns`)."""
        self.lease_ns = until_ns
        for process in self.processes():
            process.extend_lease(until_ns)

    async def escalate(
        self,
        process: WorkerProcess,
        reason: str,
        until: Callable[[], bool],
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        """Interrupt, abort and kill a worker that does not let go; see `process.escalate`."""
        await escalate(process, reason, until, self.changed, interrupt)


class Arbiter:
    """Keeps the wanted number of workers alive. A worker has `Blueprint.start_seconds` until it must be ready."""

    def __init__(
        self, pool: Pool, blueprint: Blueprint, listener: PoolListener, tasks: ServiceTasks, metrics: Metrics
    ) -> None:
        self.pool = pool
        self.blueprint = blueprint
        """Of those that are started from now on."""
        self.listener = listener
        self._tasks = tasks
        self._metrics = metrics
        self._keepers: list[asyncio.Task[None]] = []
        """One for each slot that is wanted."""
        self._expected: frozenset[int] = frozenset()
        """As the listener knows them."""
        self._served = False
        """A worker was ready: the handler can be imported, and clients can be made of the settings."""
        self._forking = 0
        """Forks under way: the newborn's pid is not known yet, so nobody may reap strangers."""

    def owns(self, pid: int) -> bool:
        """Whether the process is one whose pidfd is watched here (or may be, in a moment)."""
        return self._forking > 0 or any(process.pid == pid for process in self.pool.processes())

    def adopt(self, blueprint: Blueprint) -> None:
        """Make workers from this one, from now on. Caller: `Reloader`."""
        self.blueprint = blueprint

    async def fill(self) -> None:
        """Keep a process in every slot that is wanted, for ever."""
        pool = self.pool
        while True:
            await pool.changed.wait(lambda: not pool.stopping and len(self._keepers) < pool.wanted)
            self._keepers.append(self._tasks.start(self._keep(pool.slots[len(self._keepers)])))

    async def watch(self) -> None:
        """Send a Ping to all workers, and look after those that start, for ever."""
        while True:
            self._look_at_starts(clock.now())
            self._look_at_expected()
            for process in self.pool.processes():
                if process.state is not WorkerState.STARTING:
                    process.ping()
            await asyncio.sleep(PING_INTERVAL)

    def _look_at_starts(self, now: float) -> None:
        """Take partitions, and at last the slot, from a worker whose setup hangs, as by a database that does not
        answer; partitions, too, from one that cannot be forked."""
        ready = [p for p in self.pool.processes() if p.takes_partitions]
        others_since = min((p.ready_at for p in ready if p.ready_at), default=now)
        late: set[int] = set()
        for slot in self.pool.slots[: self.pool.wanted]:
            process = slot.process
            if process is not None and process.state is not WorkerState.STARTING:
                continue
            since = slot.empty_since if process is None else process.started_at
            if now - max(since, others_since) >= _LATE:
                late.add(slot.number)
                if slot.number not in self.pool.late:
                    _tell_late(slot, now - since)
            if process is not None:
                self._end_start(process, now)
        self.pool.late = frozenset(late)

    def _look_at_expected(self) -> None:
        """Have what waits for a worker given to the others as soon as it is not expected any more: its slot may be
        empty for as long as there is no template, or nothing can be forked."""
        expected = frozenset(self.pool.expected())
        fewer, self._expected = self._expected - expected, expected
        if fewer and not self.pool.stopping:
            self.listener.fewer_expected()

    def _end_start(self, process: WorkerProcess, now: float) -> None:
        """Abort a worker whose time to start is over, so that it says where it hangs; kill it if that did not end
        it."""
        limit = self.blueprint.start_seconds
        if now - process.started_at < limit or self.pool.stopping:
            return
        if process.killed_by_us is None:
            process.condemn(f"was not ready within {limit:.0f} s (workers.start_timeout_ms)")
            log.error(f"{process} {process.killed_by_us}: aborting it, its stacks follow on stderr")
            process.abort()
        elif now - process.started_at >= limit + _STACKS:
            process.kill()

    async def stop(self, deadline: float) -> None:
        """Let every worker exit until `deadline` (seconds of `clock.now`), then kill. Partitions are drained before."""
        self.pool.replace_no_more()
        for process in self.pool.processes():
            process.begin_draining()
            process.send(Drain(deadline))
        await self.pool.changed.wait(lambda: not self.pool.processes(), deadline)
        for process in self.pool.processes():
            process.condemn("did not exit in time")
            log.warning(f"{process} did not exit in time: killing it", worker=process.number, worker_pid=process.pid)
            process.kill()
        await self.pool.changed.wait(lambda: not self.pool.processes(), clock.now() + _REAPING)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    # -- one slot -----------------------------------------------------------------------------------------------

    async def _keep(self, slot: WorkerSlot) -> None:
        retries, failed = Retries(_BACKOFF), False
        while not self.pool.stopping:
            try:
                if slot.process is None:
                    await self.spawn(slot, self.blueprint, on_trial=False)
            except (TemplateDied, OSError, ConfigError) as error:
                # Also for want of processes, memory, descriptors or a secret's file: the others go on, and there may
                # be some again.
                wait = retries.failed()
                log.warning(
                    f"worker {slot.number} could not be started, trying again in {wait:.1f} s: {error}",
                    worker=slot.number,
                )
                slot.backing_off, failed = failed, True
                await asyncio.sleep(wait)
                continue
            slot.backing_off = failed = False
            retries.succeeded()
            await self.pool.changed.wait(lambda: slot.process is None or slot.fault is not None)
            if slot.fault is not None:
                raise slot.fault
            if not self.pool.stopping:
                await self._back_off(slot)

    async def spawn(self, slot: WorkerSlot, blueprint: Blueprint, *, on_trial: bool) -> WorkerProcess:
        """Fork the slot's process, or with `on_trial` its successor. Raises `TemplateDied`, `OSError`, and
        `ConfigError` where there is nothing that it could be told, as a file is missing."""
        template = await blueprint.template()
        if not on_trial:
            if slot.process is not None:
                return slot.process  # A reload has filled the slot while there was no template.
            # Likewise a reload may have brought the template, which is of its code then, and so are its settings.
            blueprint = self.blueprint
        ours, theirs = socket.socketpair()
        ledger = Ledger.create(LEDGER_SLOTS)
        self._forking += 1
        slot.forking = slot.forking or not on_trial
        try:
            with theirs:  # else we would never read the worker's EOF, nor it ours
                child = await template.fork(slot.number, theirs, ledger.fd)
        except BaseException:
            ours.close()
            ledger.close()
            raise
        finally:
            self._forking -= 1
            slot.forking = slot.forking and on_trial
            self.pool.changed.notify()
        process = WorkerProcess(slot.number, child, ledger, blueprint.revision, on_trial=on_trial)
        process.turn = slot.turn + on_trial
        # Beside one that lives it does not: it would fence it.
        process.inherits = slot.inherits and not on_trial and not slot.processes()
        if on_trial:
            slot.successor = process
        else:
            slot.process = process
        # Not before it is among the processes: an extension while it was forked would have passed it by.
        process.extend_lease(self.pool.lease_ns)
        # What its handler has started must not work on beside the successor, which gets the same record.
        watch_exit(child, lambda how: self._on_exit(slot, process, how), with_group=True)
        await process.connect(
            ours, lambda message: self._on_message(process, message), lambda why: self._on_protocol_error(process, why)
        )
        try:
            # Only now, too: of a login that was renewed meanwhile it would hear nothing.
            process.send(blueprint.configure(slot.number, process.turn, process.inherits))
        except ConfigError:
            process.never_served = True
            process.kill()
            await self.pool.changed.wait(process.is_dead, clock.now() + _REAPING)
            raise
        return process

    def _on_exit(self, slot: WorkerSlot, process: WorkerProcess, how: str) -> None:
        process.die()
        # Whom it was to take over from works on, or it is we who could not say what it is to do.
        in_vain = process.never_served or (process.on_trial and process is slot.successor)
        slot.remove(process)
        if slot.process is None:
            slot.empty_since = clock.now()
        self._metrics.worker_gone(process.pid)
        in_hand = self.listener.worker_died(process, how)
        process.release()
        if not in_vain:
            self._look_at_transactions(slot, process, how)
        orderly = process.retired is not None and how == _CLEAN
        slot.last_exit = process.retired if orderly else _ending(process, how)
        if orderly and not self.pool.stopping:
            log.info(f"{process} has left, {slot.last_exit}", worker=slot.number, worker_pid=process.pid)
        elif not self.pool.stopping:
            self._count_death(slot, process, how)
            if not in_vain:
                self._look_at_idle_deaths(slot, process, how, in_hand)
        self.pool.changed.notify()

    def _look_at_transactions(self, slot: WorkerSlot, process: WorkerProcess, how: str) -> None:
        """Have ended what a dead process may have left open, unless one that has the same id does so. Also of one that
        was fenced: the brokers may have ended the transaction of one of its producers, while another's is open."""
        taken = {slot.turn % 2, *(other.turn % 2 for other in slot.processes())}
        if process.ready_at is not None and how != _CLEAN and process.turn % 2 not in taken:
            self.end_transactions(slot, process.turn)

    def end_transactions(self, slot: WorkerSlot, turn: int) -> None:
        """Have the slot's process end what dead ones have left open under the id of that turn, which is not its own.
        Nobody else would until it is replaced, and their partitions would wait for the brokers to do it."""
        slot.inherits = True  # If it dies before it has ended them, its successor does.
        left = self.blueprint.transactional_id(slot.number, turn)
        if slot.process is not None and left:
            slot.process.send(EndTransactions(left))

    def _count_death(self, slot: WorkerSlot, process: WorkerProcess, how: str) -> None:
        slot.restarts += 1
        self._metrics.count(catalogue.WORKER_RESTARTS, reason=how)
        log.warning(
            f"{process} died: {slot.last_exit}", worker=slot.number, worker_pid=process.pid, restarts=slot.restarts
        )

    def _look_at_idle_deaths(self, slot: WorkerSlot, process: WorkerProcess, how: str, in_hand: bool) -> None:
        """End the service where workers of the slot can only die."""
        steady = process.ready_at is not None and clock.now() - process.ready_at >= _STEADY
        slot.fenced_deaths = slot.fenced_deaths + 1 if how == FENCED and not steady else 0
        if process.handled or in_hand:
            slot.idle_deaths = 0
            return
        slot.idle_deaths = 1 if steady else slot.idle_deaths + 1
        if slot.idle_deaths >= _MOST_IDLE_DEATHS:
            slot.fault = WorkersDyingError(
                f"worker {slot.number} died {slot.idle_deaths} times in a row with nothing in hand, last by {how}: "
                f"look at its output and at the memory limit; no record is to blame"
            )

    async def _back_off(self, slot: WorkerSlot) -> None:
        if (deaths := max(slot.idle_deaths, slot.fenced_deaths, slot.refusals)) < 2:
            return
        slot.backing_off = True
        await asyncio.sleep(_BACKOFF.seconds(deaths - 1))
        slot.backing_off = False

    # -- what a worker says --------------------------------------------------------------------------------------

    def _on_message(self, process: WorkerProcess, message: FromWorker) -> None:
        if process.is_dead():
            return
        match message:
            case Ready():
                self._on_ready(process)
            case Pong():
                self._metrics.lines_dropped(process.note_pong(message, clock.now()))
                self._metrics.hear(process.pid, message)
                self.listener.worker_reported(process)
            case FetcherStopped():
                self.listener.worker_stopped(process, message)
                self.pool.changed.notify()
            case Failed():
                self.listener.worker_failed(process, message)
                self.pool.changed.notify()
            case CommitWanted() | CommitOver():
                self.listener.worker_commits(process, message)
            case WorkerFailed(stage, error):
                process.refuse(error)
                self._on_refusal(process, stage, error)

    def _on_refusal(self, process: WorkerProcess, stage: str, error: str) -> None:
        """End the service where a worker that starts shows that none can serve."""
        slot = self.pool.slots[process.number]
        # Whoever is ready in the slot shows that workers can serve: one on trial is not needed, and neither is one that
        # its successor has replaced while its setup hung.
        if process is not slot.process or process.on_trial:
            return
        if stage != "handler" and self._served:
            # A certificate is there before its key, or half of the handler's module, as it is replaced: the others go
            # on, and so does this one when they fit.
            process.never_served = True
            slot.refusals += 1
            return
        slot.fault = HandlerLoadError(error) if stage in ("import", "handler") else ConfigError(error)
        self.pool.changed.notify()

    def _on_ready(self, process: WorkerProcess) -> None:
        process.become_ready(takes_partitions=not self.pool.stopping)
        self._served = True
        slot = self.pool.slots[process.number]
        slot.refusals = 0
        if process.inherits:
            slot.inherits = False
        log.info(f"{process} is ready", worker=process.number, worker_pid=process.pid)
        self.pool.changed.notify()
        if self.pool.stopping:
            process.send(Drain(clock.now()))
        elif slot.process is process:
            self.listener.worker_ready(process)

    def _on_protocol_error(self, process: WorkerProcess, why: str) -> None:
        log.error(f"{process} does not keep to the protocol of the pipe ({why}): killing it", worker=process.number)
        process.condemn("did not keep to the protocol of the pipe")
        with contextlib.suppress(OSError):
            process.kill()


def _tell_late(slot: WorkerSlot, seconds: float) -> None:
    if slot.process is None:
        log.warning(
            f"worker {slot.number} has had no process for {seconds:.0f} s: the others have its partitions until it has "
            f"one",
            worker=slot.number,
        )
        return
    log.warning(
        f"{slot.process} is not ready after {seconds:.0f} s: the others have its partitions until it is; look at what "
        f"its setup waits for",
        worker=slot.number,
        worker_pid=slot.process.pid,
    )


def _ending(process: WorkerProcess, how: str) -> str:
    if process.killed_by_us is not None:
        return f"{how}: {process.killed_by_us}"
    if process.refusal is not None:
        return f"{how}: {process.refusal}"
    return f"{how}: the brokers take its producer no more" if how == FENCED else how
