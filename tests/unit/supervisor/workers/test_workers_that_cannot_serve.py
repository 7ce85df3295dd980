"""Workers that cannot serve, and what of it ends the service."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from kunicorn.backoff import Backoff
from kunicorn.errors import ConfigError, HandlerLoadError, ServiceError, WorkersDyingError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Ping, Ready, WorkerFailed
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers import pool
from kunicorn.supervisor.workers.pool import Arbiter, Blueprint, Pool, PoolListener, WorkerSlot
from kunicorn.supervisor.workers.process import FENCED, Child, WorkerProcess, WorkerState
from kunicorn.supervisor.workers.rolling import ReplacementFailed, Replacer
from tests.fakes.driver import until
from tests.fakes.played_workers import PlayedWorker


class Played(Arbiter):
    """Starts workers whose part the test plays."""

    async def spawn(self, slot: WorkerSlot, blueprint: Blueprint, *, on_trial: bool) -> WorkerProcess:
        worker = slot.process = PlayedWorker(slot.number)
        return worker


class Crew:
    """A service with one worker, and nothing but its pool."""

    def __init__(self) -> None:
        self.tasks, self.pool, listener = ServiceTasks(), Pool(1), mock.Mock(spec=PoolListener)
        listener.worker_died.return_value = False
        blueprint = Blueprint(1, mock.AsyncMock(), mock.Mock(), 60.0)
        self.arbiter = Played(self.pool, blueprint, listener, self.tasks, Metrics())
        self.pool.want(1)

    async def started(self) -> PlayedWorker:
        await self.pool.changed.wait(lambda: self.pool.slots[0].process is not None)
        worker = self.pool.slots[0].process
        assert isinstance(worker, PlayedWorker)
        return worker

    async def error(self) -> Exception | None:
        """What ends the service within a moment; None if nothing does."""
        for _ in range(10):
            await asyncio.sleep(0)
        error = self.tasks.error
        self.tasks.end()
        await self.tasks.cancel(5)
        return error


@pytest.fixture
async def crew() -> Crew:
    crew = Crew()
    crew.tasks.start(crew.arbiter.fill())
    for _ in range(3):
        await asyncio.sleep(0)
    return crew


@pytest.mark.parametrize(
    ("stage", "kind"), [("import", HandlerLoadError), ("handler", HandlerLoadError), ("settings", ConfigError)]
)
async def test_a_worker_that_cannot_serve_ends_the_service_with_what_it_says(
    crew: Crew, stage: str, kind: type[ServiceError]
) -> None:
    crew.arbiter._on_message(await crew.started(), WorkerFailed(stage, "no database"))
    error = await crew.error()
    assert isinstance(error, kind)
    assert str(error) == "no database"


NOT_AT_THE_START = {"client": ConfigError, "import": HandlerLoadError, "settings": ConfigError}
"""What may fail while files are replaced, such as a key or the handler's module, and how it ends a service's start."""


@pytest.mark.parametrize("stage", NOT_AT_THE_START)
@pytest.mark.parametrize("served", [False, True])
async def test_one_whose_client_or_handler_cannot_be_had_ends_it_only_where_none_was_ready_before(
    crew: Crew, served: bool, stage: str
) -> None:
    worker, slot = await crew.started(), crew.pool.slots[0]
    if served:
        crew.arbiter._on_message(worker, Ready())
    for _ in range(20):
        crew.arbiter._on_exit(slot, worker, "exit 2")
        slot.process = worker = PlayedWorker(0)
        crew.arbiter._on_message(worker, WorkerFailed(stage, "half of a file"))
    assert slot.refusals == (20 if served else 0)
    assert isinstance(await crew.error(), type(None) if served else NOT_AT_THE_START[stage])


async def test_a_fork_that_fails_is_tried_again_with_a_line_each_time_and_ends_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "_BACKOFF", Backoff(0.0, 0.0))
    await crew.started()
    slot, refusals, spawn = WorkerSlot(0), [OSError(errno.EAGAIN, "the fork failed")] * 2, crew.arbiter.spawn

    async def out_of_processes(*args: Any, **more: Any) -> WorkerProcess:
        if refusals:
            raise refusals.pop()
        return await spawn(*args, **more)

    monkeypatch.setattr(crew.arbiter, "spawn", out_of_processes)
    again = asyncio.ensure_future(crew.arbiter._keep(slot))
    await until(lambda: slot.process is not None)
    again.cancel()
    assert capfd.readouterr().err.count("worker 0 could not be started, trying again in 0.0 s: [Errno 11]") == 2
    assert slot.fault is None
    assert await crew.error() is None


async def test_one_whose_setup_fails_ends_it_also_where_others_were_ready_before(crew: Crew) -> None:
    worker, slot = await crew.started(), crew.pool.slots[0]
    crew.arbiter._on_message(worker, Ready())
    crew.arbiter._on_exit(slot, worker, "SIGKILL")
    slot.process = worker = PlayedWorker(0)
    crew.arbiter._on_message(worker, WorkerFailed("handler", "no database"))
    assert isinstance(await crew.error(), HandlerLoadError)


async def test_a_slot_whose_clients_cannot_be_made_backs_off_until_one_can(crew: Crew) -> None:
    slot = crew.pool.slots[0]
    crew.arbiter._on_message(await crew.started(), Ready())
    for _ in range(2):
        worker = await crew.started()
        crew.arbiter._on_message(worker, WorkerFailed("client", "the key does not fit the certificate"))
        crew.arbiter._on_exit(slot, worker, "exit 2")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (slot.backing_off, slot.idle_deaths) == (True, 0)
    slot.process = PlayedWorker(0)
    crew.arbiter._on_message(slot.process, Ready())
    assert slot.refusals == 0


async def test_a_replacement_that_cannot_serve_does_not(crew: Crew) -> None:
    worker = await crew.started()
    worker.on_trial = True
    crew.arbiter._on_message(worker, WorkerFailed("handler", "no database"))
    assert await crew.error() is None
    assert worker.refusal == "no database"


async def test_a_worker_whose_setup_fails_after_its_successor_has_taken_over_does_not_either(crew: Crew) -> None:
    hung, slot = await crew.started(), crew.pool.slots[0]
    slot.successor = successor = PlayedWorker(0)
    slot.promote()
    hung.begin_draining("reloaded: revision 1")
    crew.arbiter._on_message(hung, WorkerFailed("handler", "connecting to the database took too long"))
    crew.arbiter._on_exit(slot, hung, "exit 3")
    assert await crew.error() is None
    assert (slot.process, slot.predecessor) == (successor, None)
    assert slot.last_exit == "exit 3: connecting to the database took too long"


async def test_one_whose_setup_goes_through_after_that_leaves_and_takes_no_partitions(crew: Crew) -> None:
    hung, slot = await crew.started(), crew.pool.slots[0]
    slot.successor = PlayedWorker(0)
    slot.promote()
    hung.begin_draining("reloaded: revision 1")
    crew.arbiter._on_message(hung, Ready())
    assert hung.state is WorkerState.DRAINING


async def test_a_worker_that_dies_again_and_again_with_nothing_in_hand_ends_the_service(crew: Crew) -> None:
    await dies(crew, times=10)
    assert isinstance(await crew.error(), WorkersDyingError)


async def test_replacements_that_die_before_they_are_ready_leave_the_worker_at_work(crew: Crew) -> None:
    worker, slot = await crew.started(), crew.pool.slots[0]
    for _ in range(20):
        slot.successor = successor = PlayedWorker(0)
        successor.on_trial = True
        crew.arbiter._on_exit(slot, successor, "exit 3")
    assert await crew.error() is None
    assert (slot.process, slot.idle_deaths) == (worker, 0)


async def test_one_that_has_taken_the_slot_over_before_it_was_ready_counts_like_any(crew: Crew) -> None:
    worker, slot = await crew.started(), crew.pool.slots[0]
    slot.successor = successor = PlayedWorker(0)
    successor.on_trial = True
    crew.arbiter._on_exit(slot, worker, "SIGKILL")
    crew.arbiter._on_exit(slot, successor, "SIGKILL")
    assert slot.idle_deaths == 2


async def test_deaths_of_idle_workers_that_had_lived_for_a_minute_do_not_add_up(crew: Crew) -> None:
    await dies(crew, times=20, ready_for=61.0)
    assert await crew.error() is None
    assert crew.pool.slots[0].idle_deaths == 1


async def test_a_slot_whose_workers_are_fenced_one_after_the_other_backs_off_and_ends_no_service(crew: Crew) -> None:
    slot, listener = crew.pool.slots[0], crew.arbiter.listener
    listener.worker_died.return_value = True  # type: ignore[attr-defined]
    await dies(crew, times=20, how=FENCED)
    assert (slot.idle_deaths, slot.fenced_deaths) == (0, 20)
    crew.pool.changed.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slot.backing_off
    assert slot.last_exit == "exit 76: the brokers take its producer no more"
    assert await crew.error() is None


class Sleepers:
    """A template whose workers do nothing, and what these are told: nothing for as long as a file is missing."""

    def __init__(self) -> None:
        self.missing = True
        self.forked = 0
        self.inherited: list[bool] = []
        """Of each that was told what to do: whether it ends what was left open before it."""

    async def fork(self, worker: int, channel: socket.socket, ledger_fd: int) -> Child:
        self.forked += 1
        return _asleep()

    async def current(self) -> Any:
        return self

    def configure(self, worker: int, turn: int, inherits: bool) -> Any:
        if self.missing:
            raise ConfigError("schema_registry.password_file = '/run/secret' is empty")
        self.inherited.append(inherits)
        return Ping(1)


def _asleep() -> Child:
    pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ, setpgroup=0)
    return Child(pid, os.pidfd_open(pid))


@pytest.fixture
async def sleepers(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sleepers]:
    """What workers are forked from now on; the crew's own arbiter forks none."""
    sleepers = Sleepers()
    monkeypatch.setattr(pool, "_BACKOFF", Backoff(0.001, 0.001))
    yield sleepers
    for process in crew.pool.processes():
        process.kill()
    await crew.pool.changed.wait(lambda: not crew.pool.processes(), clock.now() + 60.0)


def forking(crew: Crew, sleepers: Sleepers) -> Arbiter:
    blueprint = Blueprint(1, sleepers.current, sleepers.configure, 60.0)
    crew.pool = Pool(1)
    crew.pool.want(1)
    return Arbiter(crew.pool, blueprint, crew.arbiter.listener, crew.tasks, Metrics())


async def test_a_worker_that_could_not_be_told_what_to_do_is_started_once_it_can(
    crew: Crew, sleepers: Sleepers
) -> None:
    crew.tasks.start(forking(crew, sleepers).fill())
    slot = crew.pool.slots[0]
    await until(lambda: sleepers.forked > 12)
    assert (crew.tasks.error, slot.idle_deaths) == (None, 0)
    sleepers.missing = False
    await until(lambda: slot.process is not None and not slot.process.never_served and not slot.backing_off)
    forked = sleepers.forked
    await crew.error()
    assert sleepers.forked == forked


async def test_a_replacement_that_could_not_be_told_what_to_do_leaves_the_worker_at_work(
    crew: Crew, sleepers: Sleepers
) -> None:
    arbiter = forking(crew, sleepers)
    slot = crew.pool.slots[0]
    slot.process = worker = PlayedWorker(0)
    with pytest.raises(ReplacementFailed, match="password_file"):
        await Replacer(arbiter, Metrics(), 1.0).replace(slot, "recycled", "age")
    assert (slot.process, slot.successor) == (worker, None)
    assert slot.restarts == 1
    worker.state = WorkerState.DEAD
    slot.remove(worker)


async def test_until_one_of_a_slot_is_ready_each_ends_what_an_earlier_service_left_open_and_then_none(
    crew: Crew, sleepers: Sleepers
) -> None:
    arbiter = forking(crew, sleepers)
    slot, sleepers.missing = crew.pool.slots[0], False
    for ready in (False, True, True):
        process = await arbiter.spawn(slot, arbiter.blueprint, on_trial=False)
        await arbiter.spawn(slot, arbiter.blueprint, on_trial=True)
        if ready:
            arbiter._on_message(process, Ready())
        for each in (slot.successor, slot.process):
            assert each is not None
            each.kill()
            await until(each.is_dead)
    assert sleepers.inherited == [True, False, True, False, False, False], "a successor's first is its predecessor"


async def test_one_that_is_started_beside_another_ends_nothing_under_the_id_of_that(
    crew: Crew, sleepers: Sleepers
) -> None:
    arbiter = forking(crew, sleepers)
    slot, sleepers.missing = crew.pool.slots[0], False
    await arbiter.spawn(slot, arbiter.blueprint, on_trial=True)
    await arbiter.spawn(slot, arbiter.blueprint, on_trial=False)
    assert (slot.inherits, sleepers.inherited) == (True, [False, False])


async def dies(crew: Crew, *, times: int, ready_for: float = 1.0, how: str = "SIGSEGV") -> None:
    """Have the slot's worker die so often, each time that it had been ready for so many seconds."""
    slot = crew.pool.slots[0]
    for _ in range(times):
        assert crew.tasks.error is None
        slot.process = worker = PlayedWorker(0)
        worker.ready_at = clock.now() - ready_for
        crew.arbiter._on_exit(slot, worker, how)
