"""Handlers of models and of batches that fail in part, through the testing kit."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn import Batch, BatchError, Record
from kunicorn.testing import HandlerTest, record


@dataclass
class Order:
    """A model."""

    total: float


def test_a_handler_of_a_model_is_run_as_in_a_worker() -> None:
    taken: list[tuple[float, int]] = []

    def handle(order: Order, record: Record) -> None:
        taken.append((order.total, record.offset))

    run = HandlerTest(handle, on_undecodable="skip").run(
        record(json={"total": 3}), record("no JSON"), record(json={"total": 4})
    )
    assert run.outcomes == ["done", "skipped", "done"]
    assert taken == [(3.0, 0), (4.0, 2)]


def test_a_batch_of_models_leaves_out_what_cannot_be_decoded() -> None:
    taken: list[list[float]] = []

    def handle(orders: list[Order]) -> None:
        taken.append([order.total for order in orders])

    given = [record(json={"total": total}, offset=total * 2) for total in range(4)]
    run = HandlerTest(handle, mode="batch", on_undecodable="dead_letter").run(*given, record(), record("x"))
    assert run.outcomes == ["done"] * 4 + ["dead_letter"] * 2
    assert taken == [[0, 1, 2, 3]]
    assert "null (a tombstone)" in run.dead_letters[0].error
    assert run.dead_letters[1].value == b"x"


def test_only_the_record_of_a_batch_that_failed_is_tried_again() -> None:
    calls: list[list[int]] = []

    def handle(batch: Batch) -> None:
        calls.append(batch.offsets())
        if len(calls) == 1:
            raise BatchError(done=[0, 3]) from ConnectionError("gone")

    run = HandlerTest(handle, mode="batch", batch_max_ms=1000).run(*(record(str(number)) for number in range(5)))
    assert run.outcomes == ["done"] * 5
    assert calls == [[0, 1, 2, 3, 4], [1], [2, 4]]
