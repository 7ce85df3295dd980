"""A line that a handler logs belongs to the record that it has in hand, in every form of calling."""

from __future__ import annotations

import pytest

from kunicorn.testing import record
from tests.unit.worker import logging_handlers
from tests.unit.worker.whole import Worker, order_of

RECORDS = 6
CROWDED = {"ordering": "key", "concurrency": 3}


@pytest.mark.parametrize(
    ("handler", "settings"),
    [
        ("handle", {}),
        ("handle", CROWDED),
        ("handle_async", {}),
        ("handle_async", CROWDED),
        ("handle_batch", {"mode": "batch", "batch_max_records": 2}),
    ],
    ids=["one record", "threads", "async", "tasks", "batch"],
)
def test_a_line_belongs_to_the_record_in_whose_call_it_is_logged_and_to_no_other(
    monkeypatch: pytest.MonkeyPatch, handler: str, settings: dict[str, object]
) -> None:
    worker = Worker(order_of(f"{logging_handlers.__name__}:{handler}", **settings))
    monkeypatch.setattr(logging_handlers, "seen", [])
    monkeypatch.setattr(logging_handlers, "beside", [])
    monkeypatch.setattr(logging_handlers, "place", lambda: worker.made.runner.place())  # noqa: PLW0108 (made later)
    worker.handle([record(b"x", key=bytes([number % 4])) for number in range(RECORDS)])
    offsets = sorted(offset for offset, _ in logging_handlers.seen)
    assert offsets == list(range(0, RECORDS, 2 if handler == "handle_batch" else 1))
    assert all(place == {"topic": "t", "partition": 0, "offset": offset} for offset, place in logging_handlers.seen)
    assert logging_handlers.beside == [{}] * len(offsets)
    assert worker.made.runner.place() == {}
