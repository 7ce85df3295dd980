"""An executor of threads that cannot start as many as it may have: no record is to suffer for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kunicorn.handler.decode.forms import Plain
from kunicorn.handler.record import Record
from kunicorn.worker.executors.threads import ThreadExecutor
from kunicorn.worker.progress import Slots
from tests.fakes.thread_limit import ThreadLimit
from tests.unit.worker.executors.played_table import Table, flights_of
from tests.waiting import wait_until

_MOST = 4


class Held:
    """A handler whose calls do not return before they may, and its executor."""

    def __init__(self, records: int) -> None:
        self.may_return = threading.Event()
        self.calling: list[str] = []
        """Which thread each call was in."""
        self.flights = flights_of(records)
        self.table = cast(Any, Table(self.flights, at_once=_MOST))
        self.executor = ThreadExecutor(self._handle, Plain(), _MOST, lambda flight, returned: None)
        self.executor.begin(self.table, Slots("none", _MOST), self.table)

    def _handle(self, record: Record) -> None:
        self.calling.append(threading.current_thread().name)
        assert self.may_return.wait(60)

    def end(self) -> list[BaseException | None]:
        """Let all return; how the records ended."""
        self.may_return.set()
        return [self.table.ended.get(timeout=60)[1] for _ in self.flights]


@pytest.fixture
def held() -> Iterator[Held]:
    handling = Held(12)
    yield handling
    handling.may_return.set()
    handling.executor.close()


def test_records_are_handled_by_the_threads_that_there_are_and_it_is_told_once(
    held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = ThreadLimit(monkeypatch, 2)
    held.executor.wake()
    wait_until(lambda: limit.refused, "a thread too many")
    for _ in range(3):
        held.executor.wake()
    assert len(held.calling) <= 2
    assert held.end() == [None] * 12
    assert set(held.calling) == {"handler-1", "handler-2"}
    (told,) = caplog.messages
    assert told.startswith("only 2 of 4 handler threads could be started: can't start new thread. ")


def test_when_there_is_room_again_the_others_are_started(
    held: Held, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = ThreadLimit(monkeypatch, 1)
    held.executor.wake()
    wait_until(lambda: limit.refused, "a thread too many")
    limit.left = 2
    held.executor.wake()
    wait_until(lambda: len(held.calling) == 3, "as many calls as there are threads")
    wait_until(lambda: len(caplog.messages) == 2, "the second shortage")
    limit.left = 1
    held.executor.wake()
    wait_until(lambda: len(held.calling) == _MOST, "all of them")
    assert sorted(held.calling) == [f"handler-{number}" for number in range(1, _MOST + 1)]
    assert held.end() == [None] * 12
    assert [told.split(":")[0] for told in caplog.messages] == [
        f"only {number} of 4 handler threads could be started" for number in (1, 3)
    ]


def test_without_any_thread_the_worker_ends_as_nothing_would_ever_be_handled(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ThreadLimit(monkeypatch, 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            held.executor.wake()
    limit.left = _MOST
    held.executor.wake()
    assert held.end() == [None] * 12
