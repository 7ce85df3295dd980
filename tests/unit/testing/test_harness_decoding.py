"""Handlers of models and of batches that fail in part, through the testing kit."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn import Batch, BatchError, DeadLetter, Halt, Record
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


def test_what_is_done_behind_a_halt_is_done_and_not_left() -> None:
    calls: list[list[int]] = []

    def handle(batch: Batch) -> None:
        calls.append(batch.offsets())
        if 1 in batch.offsets():
            raise BatchError(done=[0, 2]) from ValueError("no")

    test = HandlerTest(handle, mode="batch", batch_max_records=3, max_attempts=1)
    run = test.run(*map(record, "abcd"))
    assert run.outcomes == ["done", "halted", "done", "unhandled"]
    assert run.committed == {("test", 0): 1}
    assert [each.offset for each in run.left] == [1, 3]
    assert [each.offset for each in run.handled_again] == [1]
    test.run(*run.left[1:])
    assert calls == [[0, 1, 2], [3]]


def test_rows_behind_a_halt_that_no_mask_has_are_done() -> None:
    def handle(batch: Batch) -> BatchError:
        halt, letter = (Halt("look"), [False, True, False, False]), (DeadLetter("bad"), [False, False, True, False])
        return BatchError(outcomes=[halt, letter])

    run = HandlerTest(handle, mode="batch", settings={"dead_letters": {"topic": "bad"}}).run(*map(record, "abcd"))
    assert run.outcomes == ["done", "halted", "unhandled", "done"]
    assert [each.offset for each in run.left] == [1, 2]


def test_what_was_done_behind_a_failed_record_when_the_session_is_lost_is_left() -> None:
    def handle(batch: Batch) -> None:
        raise BatchError(done=[0, 2]) from ValueError("no")

    run = HandlerTest(handle, mode="batch").run(*map(record, "abc"), lose_session_at=0)
    assert [each.offset for each in run.left] == [0, 1, 2]
