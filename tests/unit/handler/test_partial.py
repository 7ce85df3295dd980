"""Batches of which one record failed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.call import BatchProgress, OfSome, progress_of, store_done
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.outcome import BatchError, DeadLetter, Done, Skip
from kunicorn.handler.record import Record
from kunicorn.handler.rows import fitting

OFFSETS = [4, 5, 9, 10]
FOLLOWING = [offset + 1 for offset in OFFSETS]


def messages(*sizes: int) -> list[Message]:
    return [Message(topic="t", partition=0, offset=o, value=b"x" * size) for o, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("error", "progress"),
    [
        (BatchError(done=0), BatchProgress(0)),
        (BatchError(done=3), BatchProgress(3)),
        (BatchError(done=4), BatchProgress(4)),
        (BatchError(done=[4, 5]), BatchProgress(2)),
        (BatchError(done=[]), BatchProgress(0)),
        (BatchError(done={10, 4}), BatchProgress(1, frozenset({10}))),
        (BatchError(done=iter([5, 9, 10])), BatchProgress(0, frozenset({5, 9, 10}))),
        (BatchError(failed=4), BatchProgress(0)),
        (BatchError(failed=9), BatchProgress(2)),
        (BatchError(failed=Record.of(Message(topic="t", partition=0, offset=10))), BatchProgress(3)),
        (BatchError(done=[Record.of(Message(topic="t", partition=0, offset=4))]), BatchProgress(1)),
        (BatchError(done=np.int64(3)), BatchProgress(3)),
        (BatchError(done=np.array([4, 5])), BatchProgress(2)),
        (BatchError(done=np.array([], dtype=np.int64)), BatchProgress(0)),
        (BatchError(done=[np.int64(4), 5]), BatchProgress(2)),
        (BatchError(failed=np.int64(9)), BatchProgress(2)),
        (BatchError(mask=[np.True_, np.False_, np.False_, np.False_]), BatchProgress(1)),
        (BatchError(done=pa.scalar(3)), BatchProgress(3)),
        (BatchError(done=pa.array([4, 5])), BatchProgress(2)),
        (BatchError(done=pa.chunked_array([[4], [5]])), BatchProgress(2)),
        (BatchError(done=set(pa.array([4, 5]))), BatchProgress(2)),
        (BatchError(failed=pa.scalar(9)), BatchProgress(2)),
    ],
)
def test_what_is_done_is_the_prefix_and_what_lies_ahead_of_the_first_that_is_not(
    error: BatchError, progress: BatchProgress
) -> None:
    assert progress_of(error, FOLLOWING) == progress


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (BatchError(done=5), "BatchError(done=5) of a batch of 4 records"),
        (BatchError(done=-1), "BatchError(done=-1) of a batch of 4 records"),
        (BatchError(done=[4, 7]), "BatchError names offset 7, which is not in the batch 4-10"),
        (BatchError(failed=3), "BatchError names offset 3, which is not in the batch 4-10"),
    ],
)
def test_nothing_is_believed_of_an_error_that_makes_no_sense(error: BatchError, why: str) -> None:
    with pytest.raises(ValueError, match="BatchError") as refused:
        progress_of(error, FOLLOWING)
    assert str(refused.value) == why


@pytest.mark.parametrize("more", [{}, {"done": 1, "failed": 2}, {"done": 1, "mask": [True]}])
def test_what_is_done_what_failed_and_a_mask_are_three_ways_to_say_it(more: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="one of: what is done, the record that failed, a mask"):
        BatchError(**more)  # type: ignore[arg-type]


@given(st.sets(st.sampled_from(OFFSETS)))
def test_no_record_is_counted_twice_and_the_first_left_is_never_done(done: set[int]) -> None:
    progress = progress_of(BatchError(done=done), FOLLOWING)
    assert set(OFFSETS[: progress.done]) | progress.ahead == done
    assert not progress.ahead.intersection(OFFSETS[: progress.done + 1])


def settled(error: BatchError, cause: BaseException | None = None) -> int:
    """The ledger's cell after it."""
    error.__cause__ = cause
    cells = memoryview(array("q", [4]))
    try:
        store_done(error, messages(1, 1, 1, 1), [5, 6, 10, 11], cells, 0)
    except BaseException as raised:
        raised.args = (*raised.args, cells[0])
        raise
    return cells[0]


def test_what_the_handler_met_is_the_failure_of_one_record() -> None:
    met = KeyError("who")
    with pytest.raises(OfSome) as raised:
        settled(BatchError(done=[4, 5, 10]), met)
    assert (raised.value.error, raised.value.ahead, raised.value.args[-1]) == (met, {10}, 6)
    with pytest.raises(OfSome) as raised:
        settled(BatchError("odd", done=1))
    assert isinstance(raised.value.error, BatchError)


def test_outcomes_by_mask_are_grouped_in_the_records_order_and_the_first_counts() -> None:
    skip, dead, other = Skip("a test"), DeadLetter("broken"), ValueError("odd")
    pairs = [(skip, [False, True, False, True]), (dead, [False, False, True, True]), (other, [False] * 4)]
    progress = progress_of(BatchError(outcomes=pairs), FOLLOWING[:4])
    assert (progress.done, progress.ahead) == (1, frozenset())
    assert progress.decided == ((skip, 1), (dead, 1), (skip, 1))
    with_gap = progress_of(BatchError(outcomes=[(skip, [True, False, True, False])]), FOLLOWING[:4])
    assert with_gap.decided == ((skip, 2),), "what is done between them does not part them"
    assert with_gap.ahead == {OFFSETS[1], OFFSETS[3]}
    assert progress_of(BatchError(outcomes=[(Done(), [True] * 4)]), FOLLOWING[:4]) == BatchProgress(4)


@pytest.mark.parametrize("pair", [("why", [True]), (BatchError(done=1), [True]), (Skip, [True]), (Skip("x"), [3])])
def test_what_is_no_outcome_or_no_mask_is_refused(pair: Any) -> None:
    with pytest.raises(TypeError, match="outcomes"):
        BatchError(outcomes=[pair])


class Untellable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_of_a_batch_one_record_fails_also_by_an_exception_that_cannot_be_told() -> None:
    met = Untellable()
    with pytest.raises(OfSome) as raised:
        settled(BatchError(done=2), met)
    assert (raised.value.error, raised.value.args[-1]) == (met, 6), "else all the others fail with it"


def test_an_outcome_can_be_said_of_one_record() -> None:
    with pytest.raises(OfSome) as raised:
        settled(BatchError(done=2), DeadLetter("broken"))
    assert isinstance(raised.value.error, DeadLetter)


def test_the_exception_that_was_being_handled_counts_as_met() -> None:
    met = KeyError("who")
    error = BatchError(done=1)
    error.__context__ = met
    with pytest.raises(OfSome) as raised:
        store_done(error, messages(1, 1), [5, 6], memoryview(array("q", [4])), 0)
    assert raised.value.error is met


def test_at_a_drain_deadline_no_record_of_the_batch_has_failed() -> None:
    with pytest.raises(DrainDeadline) as raised:
        settled(BatchError(done=3), DrainDeadline())
    assert raised.value.args == (10,)


def test_a_time_out_is_no_failure_of_one_record_but_of_all_that_are_not_done() -> None:
    with pytest.raises(OfSome) as raised:
        settled(BatchError(done=[4, 9]), HandlerTimeout())
    assert isinstance(raised.value.error, HandlerTimeout)
    assert (raised.value.ahead, raised.value.count) == ({9}, 2)


def test_nothing_is_left_of_an_error_that_names_all_as_done() -> None:
    assert settled(BatchError(done=4)) == 11


@pytest.mark.parametrize(
    ("sizes", "most", "fit"),
    [([3, 3, 3], None, 3), ([3, 3, 3], 6, 2), ([3, 3, 3], 8, 2), ([3, 3, 3], 9, 3), ([30, 3], 9, 1), ([0, 0, 9], 9, 3)],
)
def test_a_batch_is_as_many_as_fit_and_at_least_one(sizes: Iterable[int], most: int | None, fit: int) -> None:
    assert fitting(messages(*sizes), most) == fit
