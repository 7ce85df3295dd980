"""A reload puts in force only what a worker has started with."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from unittest import mock

import pytest

from kunicorn.backoff import Backoff
from kunicorn.errors import ConfigError
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Ping, Ready, WorkerFailed
from kunicorn.observe.metrics import Metrics
from kunicorn.settings import Settings
from kunicorn.settings.load import Reloaded
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers import pool, rolling
from kunicorn.supervisor.workers.pool import Arbiter, Blueprint, Pool, PoolListener
from kunicorn.supervisor.workers.process import Child, WorkerProcess
from kunicorn.supervisor.workers.rolling import Outcome, Reloader, ReplacementFailed, Replacer
from kunicorn.supervisor.workers.template import Template, Templates
from tests.fakes.driver import until
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import settings_with

SETTINGS = settings_with("earliest")


class Code:
    """A template: its workers do nothing, the test says for them what they say."""

    def __init__(self) -> None:
        self.forked = 0
        self.dead = asyncio.Event()
        self.how_it_ended = "SIGKILL"
        self.retired = False
        self.forks = asyncio.Event()
        self.forks.set()

    async def fork(self, worker: int, channel: socket.socket, ledger_fd: int) -> Child:
        await self.forks.wait()
        self.forked += 1
        return _asleep()

    async def retire(self) -> None:
        self.retired = True


def _asleep() -> Child:
    pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ, setpgroup=0)
    return Child(pid, os.pidfd_open(pid))


class Service:
    """One worker's slot or several, their arbiter, and what reloads."""

    def __init__(self, workers: int = 1) -> None:
        self.old, self.new = Code(), Code()
        self.imported = asyncio.Event()
        """Whether there is a template of the old code."""
        self.imported.set()
        self.tasks, self.pool = ServiceTasks(), Pool(workers)
        listener: Any = mock.Mock(spec=PoolListener)
        listener.worker_died.return_value = False
        listener.code_replaced.return_value = 0
        self.arbiter = Arbiter(self.pool, self.of(0, SETTINGS, self.current), listener, self.tasks, Metrics())
        in_force, self.templates = mock.Mock(spec=SettingsInForce), mock.Mock(spec=Templates)
        in_force.settings, in_force.read_again.return_value = SETTINGS, Reloaded(SETTINGS, (), ())
        self.in_force = in_force
        self.topics: dict[str, str] = {}
        """What was looked for, by the setting that names it."""
        self.templates.prepare.return_value, self.templates.current = self.new, self.current
        self.replacer = Replacer(self.arbiter, Metrics(), 60.0)
        self.reloader = Reloader(in_force, self.templates, self, self.replacer, Metrics())
        self.slot = self.pool.slots[0]

    async def current(self) -> Any:
        await self.imported.wait()
        return self.old

    async def prepared(self) -> Any:
        return self.new

    def of(self, revision: int, settings: Settings, template: Callable[[], Awaitable[Template]]) -> Blueprint:
        return Blueprint(revision, template, lambda number, turn, inherits: Ping(1), 60.0)  # type: ignore[arg-type, return-value]

    async def look_for(self, topics: Mapping[str, str]) -> None:
        self.topics |= topics
        if "g.dead-letters" in topics:
            raise ConfigError("'g.dead-letters' does not exist")

    def reload(self) -> asyncio.Task[Outcome]:
        return asyncio.create_task(self.reloader.outcome())

    async def reload_on_trial(self) -> asyncio.Task[Outcome]:
        """A reload of which a worker is on trial."""
        reloading = self.reload()
        await until(lambda: self.slot.successor is not None)
        return reloading

    async def reloaded(self) -> None:
        """It was ready, and all is in force."""
        reloading = await self.reload_on_trial()
        self.says(self.slot.successor, Ready())
        assert (await reloading).completed

    def says(self, worker: WorkerProcess | None, message: Ready | WorkerFailed) -> None:
        assert worker is not None
        self.arbiter._on_message(worker, message)
        if isinstance(message, WorkerFailed):
            worker.kill()

    @property
    def revision(self) -> int:
        """Of the code that is in force."""
        return self.arbiter.blueprint.revision

    async def begin(self) -> None:
        """Have all workers at work."""
        self.pool.want(len(self.pool.slots))
        self.tasks.start(self.arbiter.fill())
        await until(lambda: all(slot.process is not None for slot in self.pool.slots))
        for slot in self.pool.slots:
            self.says(slot.process, Ready())

    async def replaced(self, number: int) -> None:
        """Have the worker's successor get ready, and the worker go when it has handed over."""
        slot = self.pool.slots[number]
        await until(lambda: slot.successor is not None)
        self.says(slot.successor, Ready())
        await until(lambda: slot.predecessor is not None)
        assert slot.predecessor is not None
        slot.predecessor.kill()
        await until(lambda: slot.predecessor is None)

    async def replaced_while_its_template_dies(self, number: int) -> None:
        """Likewise, and the import of the next template hangs."""
        await until(lambda: self.pool.slots[number].successor is not None)
        self.imported.clear()
        self.new.dead.set()
        await self.replaced(number)


@pytest.fixture
def workers() -> int:
    return 1


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch, workers: int) -> AsyncIterator[Service]:
    await asyncio.sleep(0)
    monkeypatch.setattr(pool, "_BACKOFF", Backoff(0.001, 0.001))
    service = Service(workers)
    service.tasks.start(service.reloader.watch())
    yield service
    service.pool.replace_no_more()
    for process in service.pool.processes():
        process.kill()
    await service.pool.changed.wait(lambda: not service.pool.processes(), clock.now() + 60.0)
    service.tasks.end()
    await service.tasks.cancel(5)


async def test_code_that_cannot_serve_is_not_put_in_force_where_no_worker_lives_at_the_moment(
    service: Service,
) -> None:
    reloading = await service.reload_on_trial()
    service.says(service.slot.successor, WorkerFailed("handler", "no database"))
    assert not (await reloading).completed
    assert (await reloading).message == "no database"
    assert (service.revision, service.tasks.error, service.new.retired) == (0, None, True)


async def test_code_that_can_is_and_its_worker_takes_the_empty_slot(service: Service) -> None:
    reloading = await service.reload_on_trial()
    successor = service.slot.successor
    service.says(successor, Ready())
    assert (await reloading).completed
    assert service.revision == 1
    assert (service.slot.process, service.slot.successor) == (successor, None)


async def test_a_worker_that_comes_back_while_its_successor_starts_hands_over_to_it(service: Service) -> None:
    service.old.forks.clear()
    service.pool.want(1)
    service.tasks.start(service.arbiter.fill())
    await until(lambda: service.slot.forking)
    reloading = await service.reload_on_trial()
    successor = service.slot.successor
    service.says(successor, Ready())
    await asyncio.sleep(0)
    assert service.slot.process is None, "two would have the slot"
    service.old.forks.set()
    await until(lambda: service.slot.predecessor is not None)
    assert service.slot.predecessor is not None
    assert service.slot.predecessor.retired == "reloaded: revision 1"
    service.slot.predecessor.kill()
    assert (await reloading).completed
    assert service.slot.process is successor


async def test_a_worker_is_not_replaced_while_the_one_that_it_has_replaced_outlives_sigkill(service: Service) -> None:
    """As one does that waits for a disk: the slot would lose sight of it, and its death would end another's life."""
    await service.begin()
    service.slot.successor = PlayedWorker(0)
    stuck = service.slot.promote()
    assert stuck is not None
    with pytest.raises(ReplacementFailed, match=f"{stuck.pid}.* was killed and has not ended yet"):
        await service.replacer.replace(service.slot, "recycled", "age")
    assert service.old.forked == 1
    outcome = await service.reload()
    assert (outcome.completed, service.revision) == (False, 0)
    service.slot.remove(PlayedWorker(0))
    assert service.slot.predecessor is stuck, "another one's death"
    stuck.kill()
    await until(lambda: service.slot.predecessor is None)
    service.slot.process = None


async def test_a_worker_that_is_due_while_a_reload_replaces_it_is_not_replaced_once_more(service: Service) -> None:
    await service.begin()
    reloading = await service.reload_on_trial()
    old = service.slot.process
    recycling = asyncio.create_task(service.replacer.replace(service.slot, "recycled", "age", only=old))
    await service.replaced(0)
    assert (await reloading).completed
    await until(lambda: recycling.done() or service.slot.successor is not None)
    assert (service.slot.successor, service.new.forked) == (None, 1)
    assert not await recycling, "the worker that was due is gone"


async def test_a_worker_that_is_recycled_while_a_reload_comes_to_it_gets_the_new_code_once(service: Service) -> None:
    """The one that it was recycled to has it already."""
    await service.begin()
    blueprint = service.of(1, SETTINGS, service.prepared)
    service.arbiter.adopt(blueprint)
    recycling = asyncio.create_task(service.replacer.replace(service.slot, "recycled", "age"))
    await until(lambda: service.slot.successor is not None)
    reloading = asyncio.create_task(service.replacer.replace(service.slot, "reloaded", "reload", blueprint))
    await service.replaced(0)
    assert await recycling
    await until(lambda: reloading.done() or service.slot.successor is not None)
    assert (service.slot.successor, service.new.forked) == (None, 1)
    assert not await reloading


async def test_a_slot_that_a_reload_has_filled_gets_no_second_process(service: Service) -> None:
    there_is_one = asyncio.Event()

    async def at_last() -> Any:
        await there_is_one.wait()
        return service.old

    service.arbiter.adopt(service.of(0, SETTINGS, at_last))
    service.pool.want(1)
    service.tasks.start(service.arbiter.fill())
    await service.reloaded()
    there_is_one.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert service.old.forked == 0
    assert len(service.pool.processes()) == 1


@pytest.mark.parametrize("workers", [2])
async def test_a_worker_that_waits_for_a_template_until_a_reload_brings_one_has_the_settings_that_it_brings(
    service: Service,
) -> None:
    async def adopt(template: Any, _: object) -> None:
        service.old = template
        service.imported.set()

    service.templates.adopt.side_effect = adopt
    service.imported.clear()
    service.pool.want(2)
    service.tasks.start(service.arbiter.fill())
    await until(lambda: len(service.arbiter._keepers) == 2)
    await service.reloaded()
    last = service.pool.slots[1]
    await until(lambda: last.process is not None)
    assert last.process is not None
    assert (service.revision, last.process.revision) == (1, 1)


async def test_where_the_template_of_the_new_code_has_died_the_reload_fails_and_no_old_code_counts_as_new(
    service: Service,
) -> None:
    service.new.dead.set()
    outcome = await service.reload()
    assert not outcome.completed
    assert "the template that has imported the new code died: SIGKILL" in outcome.message
    assert (service.old.forked, service.revision) == (0, 0)


async def test_a_reload_that_names_a_topic_which_is_not_there_is_refused_before_the_code_is_imported(
    service: Service,
) -> None:
    handler = SETTINGS.handler.model_copy(update={"on_failure": "dead_letter"})
    own = SETTINGS.model_copy(update={"handler": handler})
    service.in_force.read_again.return_value = Reloaded(own, ("handler.on_failure",), ())
    outcome = await service.reload()
    assert (outcome.completed, outcome.message) == (False, "'g.dead-letters' does not exist")
    assert service.topics == {"g.dead-letters": "dead_letters.topic"}
    assert (service.templates.prepare.called, service.revision) == (False, 0)


async def test_topics_that_are_in_force_already_are_not_looked_for_once_more(service: Service) -> None:
    handler = SETTINGS.handler.model_copy(update={"dead_letter_topic": "g.dead-letters"})
    service.in_force.settings = SETTINGS.model_copy(update={"handler": handler})
    service.in_force.read_again.return_value = Reloaded(service.in_force.settings, (), ())
    await service.reloaded()
    assert service.topics == {}


async def test_a_reload_that_the_stop_of_the_service_overtakes_puts_nothing_in_force(service: Service) -> None:
    service.pool.replace_no_more()
    outcome = await service.reload()
    assert (outcome.completed, outcome.message, service.revision) == (False, "the service stops", 0)


@pytest.mark.parametrize("dies_late", [False, True])
async def test_a_worker_that_waits_for_a_template_to_be_recycled_does_not_hold_up_the_reload_that_mends_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, dies_late: bool
) -> None:
    monkeypatch.setattr(rolling, "_WITHOUT_TEMPLATE", 0.01)
    service.pool.want(1)
    service.tasks.start(service.arbiter.fill())
    await until(lambda: service.slot.process is not None)
    worker = service.slot.process
    assert worker is not None
    service.says(worker, Ready())
    await service.replacer._one_at_a_time.acquire()
    if not dies_late:
        service.imported.clear()
    recycling = asyncio.ensure_future(service.replacer.replace(service.slot, "recycled", "age"))
    await asyncio.sleep(0)
    service.imported.clear()
    service.replacer._one_at_a_time.release()
    reloading = await service.reload_on_trial()
    service.says(service.slot.successor, Ready())
    await until(lambda: service.slot.process is not worker)
    worker.kill()
    await until(lambda: service.revision == 1)
    if dies_late:
        with pytest.raises(ReplacementFailed, match="there is no template"):
            await recycling
    recycling.cancel()
    reloading.cancel()


@pytest.mark.parametrize("workers", [2])
async def test_a_reload_whose_template_dies_and_whose_import_then_hangs_does_not_hold_up_the_one_that_mends_it(
    service: Service,
) -> None:
    await service.begin()
    reloading = service.reload()
    await service.replaced_while_its_template_dies(0)
    await until(lambda: service.revision == 1)
    mending = service.reload()
    outcome = await asyncio.wait_for(reloading, 60)
    assert outcome.result == "incomplete"
    assert "workers 1 run the one before: " in outcome.message
    assert "another reload is asked for" in outcome.message
    await until(lambda: service.templates.prepare.call_count == 2)
    mending.cancel()


@pytest.mark.parametrize("workers", [2])
async def test_a_reload_whose_import_hangs_later_ends_when_the_time_to_start_is_over(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "_ROUNDS", 1)
    workers = SETTINGS.workers.model_copy(update={"start_timeout_ms": 100})
    own = SETTINGS.model_copy(update={"workers": workers})
    service.in_force.read_again.return_value = Reloaded(own, (), ())
    await service.begin()
    reloading = service.reload()
    await service.replaced_while_its_template_dies(0)
    outcome = await asyncio.wait_for(reloading, 60)
    assert (outcome.result, "waited 0.1 s for it" in outcome.message) == ("incomplete", True)


@pytest.mark.parametrize("workers", [2])
async def test_a_reload_that_cannot_replace_a_worker_tries_no_more_once_another_is_asked_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "_BETWEEN_ROUNDS", 600.0)
    await service.begin()
    reloading = service.reload()
    await service.replaced(0)
    await until(lambda: service.pool.slots[1].successor is not None)
    mending = service.reload()
    service.says(service.pool.slots[1].successor, WorkerFailed("handler", "no database"))
    outcome = await asyncio.wait_for(reloading, 60)
    assert (outcome.result, "no database" in outcome.message) == ("incomplete", True)
    mending.cancel()


@pytest.mark.parametrize("workers", [2])
async def test_a_reload_that_another_one_follows_goes_on_until_all_are_replaced(service: Service) -> None:
    await service.begin()
    reloading = service.reload()
    await service.replaced(0)
    await until(lambda: service.pool.slots[1].successor is not None)
    following = service.reload()
    await service.replaced(1)
    assert (await reloading).completed
    following.cancel()


@pytest.mark.parametrize("workers", [3])
async def test_a_worker_that_dies_and_comes_back_with_the_new_code_is_not_replaced_once_more(service: Service) -> None:
    await service.begin()
    last = service.pool.slots[2]
    reloading = service.reload()
    await service.replaced(0)
    await until(lambda: service.pool.slots[1].successor is not None)
    assert last.process is not None
    last.process.kill()
    await until(lambda: last.process is not None and last.process.revision == 1)
    service.says(last.process, Ready())
    await service.replaced(1)
    assert (await asyncio.wait_for(reloading, 60)).completed
    assert service.new.forked == 2


async def test_a_reload_to_workers_that_are_too_many_for_the_memory_of_now_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rolling, "memory_limit", lambda: 1 << 20)
    await service.reloaded()
    assert "this container's memory limit is 1 MB" in capfd.readouterr().err
