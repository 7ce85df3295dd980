"""The worker pool: processes come and go here without the group noticing (invariant 6).

A `Place` in it, 0 … count−1, outlives its processes. `PoolListener` is who deals in partitions, as the pool sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kunicorn.errors import Backoff, ConfigError, HandlerLoadError, WorkersDyingError
from kunicorn.ipc import clock
from kunicorn.ipc.channel import Channel
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitOver,
    CommitWanted,
    Configure,
    Drain,
    Failed,
    FetcherStopped,
    FromWorker,
    Pong,
    Ready,
    WorkerFailed,
)
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.workers.process import LEDGER_SLOTS, Stirring, WorkerProcess, WorkerState, press, watch_exit
from kunicorn.supervisor.workers.template import Template, TemplateDied, Templates


@dataclass(slots=True)
class Place:
    """Usually one process. While it is replaced there are two: the successor starts, then the predecessor drains."""

    number: int
    process: WorkerProcess | None = None
    """Takes the place's partitions, now or as soon as it is ready."""
    successor: WorkerProcess | None = None
    """Starts, to take over from `process`."""
    predecessor: WorkerProcess | None = None
    """Hands its partitions over to `process` and exits."""
    restarts: int = 0
    handled_before: int = 0
    barren: int = 0
    """Deaths in a row, each with nothing handled and nothing in hand."""
    backing_off: bool = False
    turn: int = 0
    """Of its two transactional ids, the one that its process has; a successor beside it takes the other."""
    last_exit: str | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    def processes(self) -> list[WorkerProcess]:
        """All that live."""
        return [p for p in (self.process, self.successor, self.predecessor) if p is not None]

    @property
    def handled(self) -> int:
        """Records finished by all its processes, as far as they told."""
        return self.handled_before + sum(p.handled for p in self.processes())

    def promote(self) -> WorkerProcess | None:
        """Let the successor take over; returns the process that held the place, if it lives."""
        self.predecessor, self.process, self.successor = self.process, self.successor, None
        self.turn += 1
        return self.predecessor

    def remove(self, process: WorkerProcess) -> None:
        """It is dead. A successor that is under way takes over from the one that held the place."""
        self.handled_before += process.handled
        if process is self.process:
            self.turn += 1 if self.successor is not None else 0
            self.process, self.successor = self.successor, None
        elif process is self.successor:
            self.successor = None
        else:
            self.predecessor = None
        self._left.set()

    async def vacant(self) -> None:
        """Until nobody holds the place."""
        while self.process is not None:
            self._left.clear()
            await self._left.wait()


class PoolListener(Protocol):
    """Told what the workers say, and that they died; on the loop."""

    def worker_ready(self, worker: WorkerProcess) -> None:
        """It takes partitions now."""

    def worker_late(self, worker: WorkerProcess) -> None:
        """It takes long to be ready: `Pool.expected` leaves it out until it is."""

    def worker_stopped(self, worker: WorkerProcess, report: FetcherStopped) -> None:
        """Grants it let go of."""

    def worker_failed(self, worker: WorkerProcess, report: Failed) -> None:
        """A grant that ended by itself."""

    def worker_commits(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """It is about to commit a transaction, or through with it."""

    def worker_retires(self, worker: WorkerProcess) -> None:
        """It is about to let go of all it has; its successor takes partitions already."""

    def worker_reported(self, worker: WorkerProcess) -> None:
        """Fresh evidence: a good moment to look into its ledger."""

    def worker_died(self, worker: WorkerProcess, how: str) -> bool:
        """It is dead and its ledger final; returns whether it had something in hand, or had
        handled something of what it held."""


log = logs.get("kunicorn.pool")

PING_INTERVAL = 0.5
_BACKOFF, _BACKOFF_MAX = 0.1, 5.0
_CLEAN = "exit 0"
_REAPING = 2.0
"""Seconds that the kernel may take to tear a killed worker down."""
_LATE = 5.0
"""Seconds that partitions wait for a worker that starts while others are ready."""
_STACKS = 1.0
"""Seconds that a worker that is aborted may take to say what its threads are at."""
_BARREN_DEATHS = 10
"""So many deaths of one worker in a row, each with nothing handled and nothing in hand, end the service: the fault
is not in a record, and a restart elsewhere may help."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What workers are made from: the code and the settings of one revision."""

    revision: int
    template: Callable[[], Awaitable[Template]]
    configure: Callable[[int, int], Configure]
    """Makes the first message for the worker of that number, and its turn (`Place.turn`)."""
    start_seconds: float
    """How long a worker may take until it is ready."""


class Pool:
    """Keeps the wanted number of workers alive."""

    def __init__(
        self,
        count: int,
        templates: Templates,
        blueprint: Blueprint,
        listener: PoolListener,
        metrics: Metrics,
        fatal: Callable[[Exception], None],
    ) -> None:
        """`fatal` takes what ends the service. A worker has `Blueprint.start_seconds` until it must be ready."""
        self.blueprint = blueprint
        """Of those that are started from now on."""
        self.places = [Place(number) for number in range(count)]
        self.forking = 0
        """Forks under way: the newborn's pid is not known yet, so nobody may reap strangers."""
        self._templates = templates
        self._listener = listener
        self._metrics = metrics
        self._fatal = fatal
        self._lease_ns = 0
        self._wanted = 0
        self._late: frozenset[int] = frozenset()
        """Pids of those that take long to be ready."""
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = False
        self.stirring = Stirring()

    # -- what others see -----------------------------------------------------------------------------------------

    def processes(self) -> list[WorkerProcess]:
        """The living processes, by number; of a place that is being handed over there are two."""
        return [process for place in self.places for process in place.processes()]

    def expected(self) -> list[int]:
        """Numbers of the workers that take partitions now or in a moment."""
        return [place.number for place in self.places[: self._wanted] if self._is_expected(place)]

    def _is_expected(self, place: Place) -> bool:
        if place.backing_off:
            return False
        process = place.process
        return process is None or (process.state is not WorkerState.DRAINING and process.pid not in self._late)

    def taking(self, number: int) -> WorkerProcess | None:
        """The process at that place, if it takes partitions now."""
        process = self.places[number].process
        return process if process is not None and process.takes_partitions else None

    def owns(self, pid: int) -> bool:
        """Whether the process is one whose pidfd is watched here (or may be, in a moment)."""
        return self.forking > 0 or self._templates.owns(pid) or any(p.pid == pid for p in self.processes())

    # -- what others order ---------------------------------------------------------------------------------------

    def want(self, workers: int) -> None:
        """Start workers until so many live; those that live already stay, idle ones cost little."""
        self._wanted = max(self._wanted, min(workers, len(self.places)))
        while not self.stopping and len(self._tasks) < self._wanted:
            place = self.places[len(self._tasks)]
            self._tasks.append(asyncio.create_task(self._keep(place), name=f"worker-{place.number}"))

    def extend_lease(self, until_ns: int) -> None:
        """Let every worker start records until then (nanoseconds of `clock.now_ns`)."""
        self._lease_ns = until_ns
        for process in self.processes():
            process.ledger.lease_ns = until_ns

    async def watch(self) -> None:
        """Ask all workers for evidence, and look how those that start get on, for ever."""
        while True:
            self._look_at_starts(clock.now())
            for process in self.processes():
                if process.state is not WorkerState.STARTING:
                    process.ping()
            await asyncio.sleep(PING_INTERVAL)

    def _look_at_starts(self, now: float) -> None:
        """A setup that hangs, as by a database that does not answer, must not keep partitions, nor its place."""
        starting = [p for place in self.places if (p := place.process) and p.state is WorkerState.STARTING]
        others_since = min((p.ready_at for p in self.processes() if p.takes_partitions and p.ready_at), default=now)
        late = [p for p in starting if now - max(p.started_at, others_since) >= _LATE]
        newly, self._late = [p for p in late if p.pid not in self._late], frozenset(p.pid for p in late)
        for process in newly:
            log.warning(
                f"{process} is not ready after {now - process.started_at:.0f} s: the others have its partitions until "
                f"it is; look at what its setup waits for",
                worker=process.number,
                worker_pid=process.pid,
            )
            self._listener.worker_late(process)
        for process in starting:
            self._end_start(process, now)

    def _end_start(self, process: WorkerProcess, now: float) -> None:
        """Abort it when its time is over, so that it says where it hangs, and kill it if that did not end it."""
        limit = self.blueprint.start_seconds
        if now - process.started_at < limit or self.stopping:
            return
        if process.killed_by_us is None:
            process.killed_by_us = f"was not ready within {limit:.0f} s (workers.start_timeout_ms)"
            log.error(f"{process} {process.killed_by_us}: aborting it, its stacks follow on stderr")
            process.abort()
        elif now - process.started_at >= limit + _STACKS:
            process.kill()

    async def press(
        self,
        process: WorkerProcess,
        reason: str,
        until: Callable[[], bool],
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        """The ladder for a worker that does not let go; see `ladder.press`."""
        await press(process, reason, until, self.stirring, interrupt)

    async def stop(self, deadline: float) -> None:
        """Let every worker exit until `deadline` (seconds of `clock.now`), then kill. Partitions are drained before."""
        self.stopping = True
        for process in self.processes():
            process.state = WorkerState.DRAINING
            process.send(Drain(deadline))
        await self.stirring.until(lambda: not self.processes(), deadline)
        for process in self.processes():
            process.killed_by_us = "did not exit in time"
            log.warning(f"{process} did not exit in time: killing it", worker=process.number, worker_pid=process.pid)
            process.kill()
        await self.stirring.until(lambda: not self.processes(), clock.now() + _REAPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- one place -----------------------------------------------------------------------------------------------

    async def _keep(self, place: Place) -> None:
        backoff, failed = Backoff(_BACKOFF, _BACKOFF_MAX, random.Random()), False
        while not self.stopping:
            try:
                await self.spawn(place, self.blueprint, on_trial=False)
            except (TemplateDied, OSError) as error:
                # Also for want of processes, memory or descriptors: the others go on, and there may be some again.
                log.warning(f"worker {place.number} could not be forked: {error}", worker=place.number)
                place.backing_off, failed = failed, True
                await asyncio.sleep(backoff.next())
                continue
            except Exception as error:
                self._fatal(error)
                return
            place.backing_off = failed = False
            backoff.reset()
            await place.vacant()
            if not self.stopping:
                await self._back_off(place)

    async def spawn(self, place: Place, blueprint: Blueprint, *, on_trial: bool) -> WorkerProcess:
        """Fork the place's process, or with `on_trial` its successor. Raises `TemplateDied`."""
        template = await blueprint.template()
        ours, theirs = socket.socketpair()
        ledger = Ledger.create(LEDGER_SLOTS)
        self.forking += 1
        try:
            with theirs:  # else we would never read the worker's EOF, nor it ours
                pid, pidfd = await template.fork(place.number, theirs, ledger.fd)
        except BaseException:
            ours.close()
            ledger.close()
            raise
        finally:
            self.forking -= 1
        process = WorkerProcess(place.number, pid, pidfd, ledger, clock.now(), blueprint.revision)
        process.on_trial = on_trial
        if on_trial:
            place.successor = process
        else:
            place.process = process
        # Not before it is among the processes: an extension while it was forked would have passed it by.
        ledger.lease_ns = self._lease_ns
        # What its handler has started must not work on beside the successor, which gets the same record.
        watch_exit(pidfd, lambda how: self._bury(place, process, how), with_group=True)
        process.channel = await Channel.open(
            ours, lambda message: self._hear(process, message), lambda why: self._nonsense(process, why)
        )
        if process.is_dead():
            process.channel.close()
        process.send(blueprint.configure(place.number, place.turn + on_trial))
        return process

    def _bury(self, place: Place, process: WorkerProcess, how: str) -> None:
        process.state = WorkerState.DEAD
        place.remove(process)
        self._metrics.worker_gone(process.pid)
        in_hand = self._listener.worker_died(process, how)
        process.release()
        process.settled.set()
        self.stirring.stir()
        orderly = process.retired is not None and how == _CLEAN
        place.last_exit = process.retired if orderly else _ending(process, how)
        if self.stopping:
            return
        if orderly:
            log.info(f"{process} has left, {place.last_exit}", worker=place.number, worker_pid=process.pid)
        else:
            self._count_death(place, process, how, in_hand)

    def _count_death(self, place: Place, process: WorkerProcess, how: str, in_hand: bool) -> None:
        place.restarts += 1
        place.barren = 0 if process.handled or in_hand else place.barren + 1
        self._metrics.worker_restarts.labels(reason=how).inc()
        log.warning(
            f"{process} died: {place.last_exit}", worker=place.number, worker_pid=process.pid, restarts=place.restarts
        )
        if place.barren >= _BARREN_DEATHS:
            self._fatal(WorkersDyingError(
                f"worker {place.number} died {place.barren} times in a row with nothing in hand, last by {how}: "
                f"look at its output and at the memory limit; no record is to blame"))  # fmt: skip

    async def _back_off(self, place: Place) -> None:
        if place.barren < 2:
            return
        place.backing_off = True
        await asyncio.sleep(min(_BACKOFF * 2.0 ** (place.barren - 2), _BACKOFF_MAX))
        place.backing_off = False

    # -- what a worker says --------------------------------------------------------------------------------------

    def _hear(self, process: WorkerProcess, message: FromWorker) -> None:
        if process.is_dead():
            return
        match message:
            case Ready():
                self._welcome(process)
            case Pong():
                self._metrics.worker_lines_dropped += process.heard(message, clock.now())
                self._metrics.hear(process.pid, message)
                self._listener.worker_reported(process)
            case FetcherStopped():
                self._listener.worker_stopped(process, message)
                self.stirring.stir()
            case Failed():
                self._listener.worker_failed(process, message)
                self.stirring.stir()
            case CommitWanted() | CommitOver():
                self._listener.worker_commits(process, message)
            case WorkerFailed(stage, error):
                process.refusal = error
                if not process.on_trial:
                    self._fatal(HandlerLoadError(error) if stage == "handler" else ConfigError(error))

    def _welcome(self, process: WorkerProcess) -> None:
        process.state = WorkerState.DRAINING if self.stopping else WorkerState.READY
        process.ready_at = clock.now()
        self._late -= {process.pid}
        log.info(f"{process} is ready", worker=process.number, worker_pid=process.pid)
        process.on_trial = False
        process.settled.set()
        self.stirring.stir()
        if self.stopping:
            process.send(Drain(clock.now()))
        elif self.places[process.number].process is process:
            self._listener.worker_ready(process)

    def _nonsense(self, process: WorkerProcess, why: str) -> None:
        log.error(f"{process} does not keep to the protocol of the pipe ({why}): killing it", worker=process.number)
        process.killed_by_us = "did not keep to the protocol of the pipe"
        with contextlib.suppress(OSError):
            process.kill()


def _ending(process: WorkerProcess, how: str) -> str:
    return f"{how}: {process.killed_by_us}" if process.killed_by_us is not None else how
