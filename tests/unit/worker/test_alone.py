"""Records that may have killed workers are begun with nothing beside them, and delivered before the next: the runners
and the sender are the real ones, the brokers are in memory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kunicorn.testing import record
from tests.unit.worker import crowded_handlers
from tests.unit.worker.whole import PickyProducer, Worker, order

SENT = "sent"


class NotingProducer(PickyProducer):
    """Notes among the calls what is handed to it."""

    def produce(self, topic: str, *values: Any) -> None:
        """See `MemoryProducer`."""
        crowded_handlers.begun.append((SENT, int(values[0])))
        super().produce(topic, *values)


class NotingWorker(Worker):
    """Whose calls and deliveries are noted."""

    producer = NotingProducer


@pytest.fixture(autouse=True)
def notes() -> None:
    crowded_handlers.forget()


def test_up_to_there_each_record_is_delivered_before_the_next_one_of_any_partition_begins() -> None:
    worker = NotingWorker(order("copy", "partition", 1), sends=True)
    worker.handle((record("v", key="k", topic=topic) for _ in range(20) for topic in ("t", "u")), singly_until=10)
    begun = crowded_handlers.begun
    for offset in range(10):
        at = begun.index(("t", offset))
        assert begun[at + 1] == (SENT, offset)
        before = [(name, number) for name, number in begun[:at] if name != SENT]
        delivered = [number for name, number in begun[:at] if name == SENT]
        assert sorted(delivered) == sorted(number for _, number in before), "nothing was on its way"
    assert len(worker.sent) == 40, "once each"


def test_behind_it_records_are_delivered_many_at_a_time_again() -> None:
    worker = NotingWorker(order("copy", "partition", 1), sends=True)
    worker.handle((record("v", key="k") for _ in range(200)), singly_until=3)
    calls = [name == "t" for name, _ in crowded_handlers.begun]
    together = sum(1 for before, after in pairwise(calls) if before and after)
    assert together > 50


@pytest.mark.parametrize("handler", ["copy", "copy_async"])
@pytest.mark.parametrize("ordering", ["key", "none"])
def test_with_several_in_hand_a_suspect_is_delivered_before_anything_else_begins(handler: str, ordering: str) -> None:
    worker = NotingWorker(order(handler, ordering, 10), sends=True)
    worker.handle((record("v", key=f"k{number % 20}") for number in range(60)), suspects=[7, 30])
    begun = crowded_handlers.begun
    for suspect in (7, 30):
        at = begun.index(("t", suspect))
        assert begun[at + 1] == (SENT, suspect)
        assert sorted(n for name, n in begun[:at] if name == "t") == sorted(n for name, n in begun[:at] if name == SENT)
    assert len(worker.sent) == 60
