"""A whole worker with several records in hand, in this process: its runner, executors and sender are the real ones, the
brokers are in memory."""

from __future__ import annotations

from collections import defaultdict

import pytest

from kunicorn.testing import record
from tests.unit.worker import crowded_handlers
from tests.unit.worker.crowded_handlers import LARGE
from tests.unit.worker.whole import Worker, order


@pytest.fixture(autouse=True)
def notes() -> None:
    crowded_handlers.forget()


@pytest.mark.parametrize("handler", ["copy", "copy_async"])
@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_every_record_has_its_output_once_and_outputs_of_a_key_are_in_its_order(handler: str, ordering: str) -> None:
    worker = Worker(order(handler, ordering, 10), sends=True)
    count = 60 if ordering == "partition" else 400
    worker.handle(record("v", key=f"k{number % 20}") for number in range(count))
    assert sorted(int(each.value or b"") for each in worker.sent) == list(range(count))
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for each in worker.sent:
        by_key[each.key].append(int(each.value or b""))
    if ordering != "none":
        assert all(offsets == sorted(offsets) for offsets in by_key.values())
    assert crowded_handlers.most["t"] == 1 if ordering == "partition" else 1 < crowded_handlers.most["t"] <= 10


def test_a_record_whose_output_is_refused_is_tried_again_alone_and_becomes_a_dead_letter() -> None:
    worker = Worker(order("copy", "key", 5, on_failure="dead_letter"), sends=True)
    worker.handle(record(LARGE if number == 7 else "v", key=f"k{number % 4}") for number in range(40))
    (letter,) = [each for each in worker.sent if each.is_letter]
    assert letter.error_type == "kunicorn.worker.refusals.NotDelivered"
    outputs = [int(each.value or b"") for each in worker.sent if not each.is_letter]
    assert sorted(outputs) == [number for number in range(40) if number != 7]
    tries = [offset for _, offset in crowded_handlers.begun]
    assert (tries.count(7), len(tries)) == (2, 41), "what came behind it is not handled again"
    of_its_key = [offset for offset in dict.fromkeys(tries) if offset % 4 == 3]
    assert of_its_key == sorted(of_its_key)


def test_each_of_several_handlers_has_as_many_in_hand_as_it_asks_for_and_waits_for_no_other() -> None:
    worker = Worker(
        order("wait", "none", 4, "threads"),
        order("wait_async", "key", 3, "tasks"),
        order("wait", "partition", None, "one"),
    )
    topics = ("threads", "tasks", "one")
    worker.handle(record("v", key=f"k{number}", topic=topic) for number in range(20) for topic in topics)
    assert crowded_handlers.most == {"threads": 4, "tasks": 3, "one": 1}
    assert len(crowded_handlers.begun) == 60
