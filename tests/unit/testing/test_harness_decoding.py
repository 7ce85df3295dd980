"""Handlers of models and of batches that fail in part, through the testing kit."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from kunicorn import Batch, BatchError, DeadLetter, Halt, Record, Skip
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


def skips(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        raise Skip("a test")


def returns_a_skip(batch: Batch) -> Skip | None:
    return Skip("a test") if batch.offsets()[0] == 0 else None


def fails(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        raise ValueError("no")


def names_an_offset_of_another_batch(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        raise BatchError(failed=5)


def hangs(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        time.sleep(60)


def exits(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        raise SystemExit("no")


async def awaits_for_ever(batch: Batch) -> None:
    if batch.offsets()[0] == 0:
        await asyncio.sleep(60)


async def returns_a_failure(batch: Batch) -> BatchError | None:
    return BatchError(done=0) if batch.offsets()[0] == 0 else None


async def skips_async(batch: Batch) -> None:
    skips(batch)


@pytest.mark.parametrize(
    "handle",
    [
        skips,
        returns_a_skip,
        fails,
        names_an_offset_of_another_batch,
        hangs,
        exits,
        awaits_for_ever,
        skips_async,
    ],
    ids=lambda handle: handle.__name__,
)
def test_a_batch_that_fails_as_a_whole_says_nothing_of_rows_behind_one_that_cannot_be_decoded(handle: Any) -> None:
    given = [record(b"nonsense" if number == 3 else b"%d" % number) for number in range(6)]
    run = HandlerTest(
        handle,
        mode="batch",
        value="json",
        on_undecodable="dead_letter",
        on_failure="skip",
        max_attempts=1,
        handler_timeout_ms=2000,
        settings={"dead_letters": {"topic": "dead"}},
    ).run(*given)
    # The handler has never seen the last two, when it speaks of the first three.
    assert run.outcomes == ["skipped"] * 3 + ["dead_letter"] + ["done"] * 2
    assert run.committed == {("test", 0): 6}


class PanicException(BaseException):
    """As a decoder in Rust ends by."""


def _end_badly(how: str) -> None:
    if how == "exits":
        raise SystemExit("no")
    if how == "panics":
        raise PanicException("called unwrap on None")
    if how == "has no memory":
        raise MemoryError
    if how == "hangs":
        time.sleep(60)


def decoded(value: bytes) -> bytes:
    _end_badly(value.decode())
    return value


def is_kept(given: Record) -> bool:
    _end_badly((given.value or b"").decode())
    return given.value != b"dropped"


BAD_ENDS = ["exits", "panics", "has no memory", "hangs"]


@pytest.mark.parametrize("mode", ["batch", "batch_async"])
@pytest.mark.parametrize("how", BAD_ENDS)
@pytest.mark.parametrize("by", ["decoder", "filter"])
def test_whatever_a_decoder_or_a_filter_ends_by_is_of_its_record_alone(by: str, how: str, mode: str) -> None:
    seen: list[int] = []

    def handle(batch: Batch) -> None:
        seen.extend(batch.offsets())

    async def handle_async(batch: Batch) -> None:
        seen.extend(batch.offsets())

    told = {"value": f"{__name__}:decoded"} if by == "decoder" else {"filters": [{"function": f"{__name__}:is_kept"}]}
    run = HandlerTest(
        handle if mode == "batch" else handle_async,
        mode="batch",
        on_failure="skip",
        max_attempts=1,
        handler_timeout_ms=2000,
        **told,
    ).run(*map(record, ["a", "b", "c", how, "d", "e"]))
    assert run.outcomes == ["done"] * 3 + ["skipped"] + ["done"] * 2
    assert seen == [0, 1, 2, 4, 5]
    assert [type(each).__name__ for each in run.errors] != []


def test_a_handler_that_fails_before_a_record_that_hangs_its_decoder_has_failed_by_its_own_error() -> None:
    def handle(batch: Batch) -> None:
        if 0 in batch.offsets():
            raise ValueError("no")

    run = HandlerTest(
        handle, mode="batch", value=f"{__name__}:decoded", on_failure="skip", max_attempts=1, handler_timeout_ms=2000
    ).run(*map(record, ["a", "b", "hangs", "c"]))
    assert [[type(error).__name__ for error in each.errors] for each in run.records] == [
        ["ValueError"], ["ValueError"], ["TimeoutError"], [],
    ]  # fmt: skip


def test_an_error_of_a_batch_that_lacks_what_its_own_class_sets_says_nothing_of_what_a_filter_dropped() -> None:
    class Odd(BatchError):
        def __init__(self) -> None:
            pass

    def handle(batch: Batch) -> None:
        raise Odd

    run = HandlerTest(
        handle,
        mode="batch",
        on_failure="skip",
        max_attempts=1,
        filters=[{"function": f"{__name__}:is_kept"}],
    ).run(*map(record, ["a", "dropped", "b", "dropped"]))
    assert run.outcomes == ["skipped", "filtered", "skipped", "filtered"]


def test_the_record_that_a_batch_failed_by_is_alone_before_one_that_cannot_be_decoded() -> None:
    given = [record(b"nonsense" if number == 3 else b"%d" % number) for number in range(6)]
    run = HandlerTest(
        returns_a_failure, mode="batch", value="json", on_undecodable="skip", on_failure="skip", max_attempts=1
    ).run(*given)
    assert [type(each.errors[0]).__name__ for each in run.records if each.errors] == ["BatchError", "Undecodable"]
    assert run.outcomes == ["skipped", "done", "done", "skipped", "done", "done"]


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
