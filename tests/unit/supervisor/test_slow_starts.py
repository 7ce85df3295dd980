"""Workers that take long to be ready, as their setup waits for something, or long to be there, as none can be forked:
others have their partitions meanwhile."""

from __future__ import annotations

import asyncio
import signal
from unittest import mock

import pytest

from kunicorn.ipc import clock
from kunicorn.ipc.messages import Ready
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.pool import Arbiter, Blueprint, Pool, PoolListener
from kunicorn.supervisor.workers.process import WorkerState
from tests.fakes.played_workers import PlayedWorker

START_SECONDS = 300.0


class Crew:
    """A pool of played workers, all of which have just been forked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
        self.now = 1000.0  # whole: sums and differences of the real time are a bit less than what was added
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.listener = mock.Mock(spec=PoolListener)
        blueprint = Blueprint(1, mock.AsyncMock(), mock.Mock(), START_SECONDS)
        self.pool = Pool(workers)
        self.pool.want(workers)
        self.arbiter = Arbiter(self.pool, blueprint, self.listener, ServiceTasks(), Metrics())
        self.workers = [PlayedWorker(number) for number in range(workers)]
        self.signals: list[tuple[int, str]] = []
        for slot, worker in zip(self.pool.slots, self.workers, strict=True):
            self.start(slot.number, worker)

    def start(self, number: int, worker: PlayedWorker) -> None:
        worker.pid, worker.started_at, worker.state = 1000 + number, self.now, WorkerState.STARTING
        self.workers[number] = self.pool.slots[number].process = worker
        mine = f"worker {number}"
        worker.abort = lambda: self.signals.append((signal.SIGABRT, mine))  # type: ignore[method-assign]
        worker.kill = lambda: self.signals.append((signal.SIGKILL, mine))  # type: ignore[method-assign]

    def ready(self, number: int) -> None:
        self.arbiter._on_message(self.workers[number], Ready())

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.arbiter._look_at_starts(self.now)
        self.arbiter._look_at_expected()

    def die(self, number: int) -> None:
        self.workers[number].state = WorkerState.DEAD
        self.arbiter._on_exit(self.pool.slots[number], self.workers[number], "SIGKILL")


@pytest.fixture
async def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    await asyncio.sleep(0)
    return Crew(monkeypatch, 2)


async def test_a_worker_whose_setup_hangs_gives_its_share_to_those_that_are_ready(crew: Crew) -> None:
    crew.ready(0)
    crew.later(4.0)
    assert crew.pool.expected() == [0, 1]
    crew.later(2.0)
    assert crew.pool.expected() == [0]
    crew.listener.fewer_expected.assert_called_once_with()
    crew.later(2.0)
    crew.listener.fewer_expected.assert_called_once()


async def test_one_that_cannot_be_forked_gives_its_share_to_those_that_are_ready(crew: Crew) -> None:
    crew.ready(0)
    crew.ready(1)
    crew.later(60.0)
    crew.die(1)
    crew.later(4.0)
    assert crew.pool.expected() == [0, 1], "there may be one in a moment"
    crew.listener.fewer_expected.assert_not_called()
    crew.later(1.0)
    assert crew.pool.expected() == [0]
    crew.listener.fewer_expected.assert_called_once_with()
    crew.start(1, PlayedWorker(1))
    crew.ready(1)
    assert crew.pool.expected() == [0, 1]


async def test_one_that_cannot_be_forked_is_told_even_where_no_other_is_ready(crew: Crew) -> None:
    slot = crew.pool.slots[1]
    crew.pool.slots[0].process = None
    crew.die(1)
    assert not crew.pool.cannot_start(slot, crew.now + 4.0)
    assert crew.pool.cannot_start(slot, crew.now + 5.0)
    crew.start(1, PlayedWorker(1))
    assert not crew.pool.cannot_start(slot, crew.now + 5.0)


async def test_one_whose_slot_backs_off_gives_its_share_at_once(crew: Crew) -> None:
    crew.ready(0)
    crew.ready(1)
    crew.later(1.0)
    crew.die(1)
    crew.pool.slots[1].backing_off = True
    crew.later(0.5)
    crew.listener.fewer_expected.assert_called_once_with()


async def test_one_that_is_wanted_from_now_on_has_time_to_be_there(crew: Crew) -> None:
    crew.ready(0)
    crew.pool.slots[1].process = None
    crew.pool.wanted = 1
    crew.later(60.0)
    crew.pool.want(2)
    crew.later(4.0)
    assert crew.pool.expected() == [0, 1]
    crew.later(1.0)
    assert crew.pool.expected() == [0]


async def test_it_gets_its_share_when_it_is_ready_after_all(crew: Crew) -> None:
    crew.ready(0)
    crew.later(60.0)
    crew.ready(1)
    assert crew.pool.expected() == [0, 1]
    crew.listener.worker_ready.assert_called_with(crew.workers[1])


async def test_where_every_setup_takes_long_the_first_that_is_ready_waits_for_the_others_a_while(crew: Crew) -> None:
    crew.later(60.0)
    assert crew.pool.expected() == [0, 1]
    crew.ready(0)
    crew.later(4.0)
    assert crew.pool.expected() == [0, 1]
    crew.ready(1)
    crew.later(60.0)
    crew.listener.fewer_expected.assert_not_called()


async def test_one_that_is_not_ready_within_its_time_is_aborted_and_then_killed(crew: Crew) -> None:
    crew.ready(0)
    crew.later(START_SECONDS - 1)
    assert crew.signals == []
    crew.later(1)
    assert crew.signals == [(signal.SIGABRT, "worker 1")]
    assert "workers.start_timeout_ms" in str(crew.workers[1].killed_by_us)
    crew.later(0.5)
    assert len(crew.signals) == 1
    crew.later(0.5)
    assert crew.signals[1:] == [(signal.SIGKILL, "worker 1")]


async def test_its_successor_has_as_much_time(crew: Crew) -> None:
    crew.ready(0)
    crew.later(START_SECONDS)
    crew.start(1, PlayedWorker(1))
    crew.workers[1].pid = 2001
    crew.later(4.0)
    assert crew.pool.expected() == [0, 1]
    crew.later(START_SECONDS - 5)
    assert len(crew.signals) == 1, "of the first"
