"""A handler that keeps its offsets says where a partition begins: what the supervisor tells of records by their place
does not move with that.
"""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import FetcherStart, FetcherStopped
from kunicorn.positions import NO_EPOCH
from kunicorn.worker.hooks import started_at
from tests.fakes.whole_worker import WholeWorker, record
from tests.unit.worker import storing_handlers
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def empty_database() -> None:
    storing_handlers.forget()


def start(offset: int, done: set[int] | None = None, **more: Any) -> FetcherStart:
    return FetcherStart(1, 1, "in", 0, offset, 3, done=bitmap.written(offset, done or set()), **more)


def done_of(start: FetcherStart) -> set[int]:
    return set(bitmap.read(start.offset, start.done))


def test_no_record_is_passed_over_where_the_store_is_beyond_a_dead_letter_on_its_way() -> None:
    order = HandlerConfig(
        f"{storing_handlers.__name__}:Keeper", "batch", {}, 10, 3, 50, 50, on_failure="dead_letter", topics=[]
    )
    storing_handlers.hopeless.add(3)
    with WholeWorker(order, map(record, range(40)), delivery=None) as worker:
        worker.brokers.hold()
        worker.hand_out()
        wait_until(lambda: worker.made.table.parked()[1].get("dead_letter"), "the letter to be on its way")
        worker.made.hooks.stop([1])
        report = wait_until(lambda: worker.ended, "its report")
        assert isinstance(report, FetcherStopped)
        (stopped,) = report.partitions
        assert (stopped.offset, sorted(bitmap.read(3, stopped.done))) == (3, [4, 5, 6, 7, 8, 9])
        worker.brokers.answer()
        worker.hand_out(stopped.offset, done=stopped.done)
        worker.until_consumed(40)
    assert sorted(storing_handlers.rows) == [offset for offset in range(40) if offset != 3]


@pytest.mark.parametrize(("stored", "left"), [(10, {12}), (1, {4, 5, 12}), (3, {4, 5, 12}), (None, {4, 5, 12})])
def test_what_is_done_is_done_wherever_the_partition_begins(stored: int | None, left: set[int]) -> None:
    begun = started_at(start(3, {4, 5, 12}), stored)
    assert begun.offset == (3 if stored is None else stored)
    assert done_of(begun) == left


def test_the_leader_epoch_belongs_to_the_offset_it_was_told_with() -> None:
    assert started_at(start(3), 4).leader_epoch == NO_EPOCH
    assert started_at(start(3), 3).leader_epoch == 3


@pytest.mark.parametrize("stored", [100, 151])
def test_a_poison_stays_the_record_it_is_wherever_the_partition_begins(stored: int) -> None:
    begun = started_at(start(150, poison="two died", poison_deaths=2, poison_offset=150, singly_until=160), stored)
    assert (begun.poison_offset, begun.singly_until) == (150, 160)
