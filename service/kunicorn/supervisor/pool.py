"""The worker pool: processes come and go here without the group noticing (invariant 6)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kunicorn.errors import ConfigError, HandlerLoadError, WorkersDyingError
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.pipes.channel import Channel
from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import Configure, Drain, Failed, FetcherStopped, FromWorker, Pong, Ready, WorkerFailed
from kunicorn.supervisor.processes import watch_exit
from kunicorn.supervisor.template import TemplateDied
from kunicorn.supervisor.templates import Templates
from kunicorn.supervisor.worker import LEDGER_SLOTS, WorkerProcess, WorkerState

log = logs.get("kunicorn.pool")

PING_INTERVAL = 0.5
_BACKOFF, _BACKOFF_MAX = 0.1, 5.0
_REAPING = 2.0
"""Seconds that the kernel may take to tear a killed worker down."""
_BARREN_DEATHS = 10
"""So many deaths of one worker in a row, each with nothing handled and nothing in hand, end the service: the fault
is not in a record, and a restart elsewhere may help."""


class PoolListener(Protocol):
    """Who deals in partitions."""

    def worker_ready(self, worker: WorkerProcess) -> None:
        """It takes partitions now."""

    def worker_stopped(self, worker: WorkerProcess, report: FetcherStopped) -> None:
        """Grants it let go of."""

    def worker_failed(self, worker: WorkerProcess, report: Failed) -> None:
        """A grant that ended by itself."""

    def worker_reported(self, worker: WorkerProcess) -> None:
        """Fresh evidence: a good moment to look into its ledger."""

    def worker_died(self, worker: WorkerProcess, how: str) -> bool:
        """It is dead and its ledger final; returns whether it had something in hand."""


@dataclass(slots=True)
class Place:
    """A worker's place, 0 … count−1, which outlives its processes."""

    number: int
    process: WorkerProcess | None = None
    restarts: int = 0
    handled_before: int = 0
    barren: int = 0
    backing_off: bool = False
    last_exit: str | None = None

    @property
    def handled(self) -> int:
        """Records finished by all its processes, as far as they told."""
        now = self.process.pong.handled if self.process is not None and self.process.pong is not None else 0
        return self.handled_before + now


class Pool:
    """Keeps the wanted number of workers alive."""

    def __init__(
        self,
        count: int,
        templates: Templates,
        configure: Callable[[int], Configure],
        listener: PoolListener,
        metrics: Metrics,
        fatal: Callable[[Exception], None],
    ) -> None:
        """`configure` makes the first message for a worker; `fatal` takes what ends the service."""
        self.places = [Place(number) for number in range(count)]
        self.forking = 0
        """Forks under way: the newborn's pid is not known yet, so nobody may reap strangers."""
        self._templates = templates
        self._configure = configure
        self._listener = listener
        self._metrics = metrics
        self._fatal = fatal
        self._lease_ns = 0
        self._wanted = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._moved = asyncio.Event()

    # -- what others see -----------------------------------------------------------------------------------------

    def processes(self) -> list[WorkerProcess]:
        """The living processes, by number."""
        return [place.process for place in self.places if place.process is not None]

    def expected(self) -> list[int]:
        """Numbers of the workers that take partitions now or in a moment."""
        return [
            place.number
            for place in self.places[: self._wanted]
            if not place.backing_off and (place.process is None or place.process.state is not WorkerState.DRAINING)
        ]

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
        while not self._stopping and len(self._tasks) < self._wanted:
            place = self.places[len(self._tasks)]
            self._tasks.append(asyncio.create_task(self._keep(place), name=f"worker-{place.number}"))

    def extend_lease(self, until_ns: int) -> None:
        """Let every worker start records until then (nanoseconds of `clock.now_ns`)."""
        self._lease_ns = until_ns
        for process in self.processes():
            process.ledger.lease_ns = until_ns

    async def watch(self) -> None:
        """Ask all workers for evidence, for ever."""
        while True:
            for process in self.processes():
                if process.state is not WorkerState.STARTING:
                    process.ping()
            await asyncio.sleep(PING_INTERVAL)

    async def press(self, process: WorkerProcess, reason: str, until: Callable[[], bool]) -> None:
        """The ladder for a worker that does not let go: interrupt its handler, abort it, kill it. Returns once
        `until` holds or the kill was sent; SIGKILL sent is not death, that is told by the pidfd."""
        rungs = (
            ("interrupting its handler", process.interrupt_handler, 1.0),
            ("aborting it, its stacks follow on stderr", process.abort, 1.0),
            ("killing it and what it started", process.kill, 0.0),
        )
        for what, climb, patience in rungs:
            if until() or process.is_dead():
                return
            log.warning(f"{process} {reason}: {what}", worker=process.number, worker_pid=process.pid)
            process.killed_by_us = reason
            climb()
            await self._wait(lambda: until() or process.is_dead(), clock.now() + patience)
        if until() and not process.is_dead():
            process.killed_by_us = None

    async def stop(self, deadline: float) -> None:
        """Let every worker exit until `deadline` (seconds of `clock.now`), then kill. Partitions are drained before."""
        self._stopping = True
        for process in self.processes():
            process.state = WorkerState.DRAINING
            process.send(Drain(deadline))
        await self._wait(lambda: not self.processes(), deadline)
        for process in self.processes():
            process.killed_by_us = "did not exit in time"
            log.warning(f"{process} did not exit in time: killing it", worker=process.number, worker_pid=process.pid)
            process.kill()
        await self._wait(lambda: not self.processes(), clock.now() + _REAPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        """Until the condition holds or `deadline`; looked at whenever a worker lets go of something, or dies."""
        while not condition() and (left := deadline - clock.now()) > 0:
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), left)

    # -- one place -----------------------------------------------------------------------------------------------

    async def _keep(self, place: Place) -> None:
        while not self._stopping:
            try:
                process, death = await self._spawn(place)
            except TemplateDied as error:
                log.warning(f"worker {place.number} could not be forked: {error}", worker=place.number)
                await asyncio.sleep(_BACKOFF)
                continue
            except Exception as error:
                self._fatal(error)
                return
            how = await death
            self._bury(place, process, how)
            if not self._stopping:
                await self._back_off(place)

    async def _spawn(self, place: Place) -> tuple[WorkerProcess, asyncio.Future[str]]:
        template = await self._templates.current()
        ours, theirs = socket.socketpair()
        ledger = Ledger.create(LEDGER_SLOTS)
        ledger.lease_ns = self._lease_ns
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
        process = WorkerProcess(place.number, pid, pidfd, ledger, clock.now())
        place.process = process
        death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watch_exit(pidfd, death.set_result)
        process.channel = await Channel.open(
            ours, lambda message: self._hear(process, message), lambda why: self._nonsense(process, why)
        )
        process.send(self._configure(place.number))
        return process, death

    def _bury(self, place: Place, process: WorkerProcess, how: str) -> None:
        process.state = WorkerState.DEAD
        place.process = None
        place.last_exit = (process.killed_by_us and f"{how}: {process.killed_by_us}") or how
        handled = process.pong.handled if process.pong is not None else 0
        in_hand = self._listener.worker_died(process, how)
        place.handled_before += handled
        process.release()
        self._moved.set()
        if self._stopping:
            return
        place.restarts += 1
        place.barren = 0 if handled or in_hand else place.barren + 1
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
                process.state = WorkerState.DRAINING if self._stopping else WorkerState.READY
                log.info(f"{process} is ready", worker=process.number, worker_pid=process.pid)
                self._listener.worker_ready(process)
            case Pong():
                self._metrics.worker_lines_dropped += process.heard(message, clock.now())
                for deltas in message.deltas:
                    self._metrics.add(deltas)
                self._listener.worker_reported(process)
            case FetcherStopped():
                self._listener.worker_stopped(process, message)
                self._moved.set()
            case Failed():
                self._listener.worker_failed(process, message)
                self._moved.set()
            case WorkerFailed(stage, error):
                self._fatal(HandlerLoadError(error) if stage == "handler" else ConfigError(error))

    def _nonsense(self, process: WorkerProcess, why: str) -> None:
        log.error(f"{process} does not keep to the protocol of the pipe ({why}): killing it", worker=process.number)
        process.killed_by_us = "did not keep to the protocol of the pipe"
        with contextlib.suppress(OSError):
            process.kill()
