"""A range's records through the handler, by the live service's rules."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.clients.range_reader import RangeReader
from kunicorn.handler.call import calls_of
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.filter import Filter, Filters, untold
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import BatchError, DeadLetter, Done, Halt, Retry, Skip, Wait
from kunicorn.handler.record import Batch, Record
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.pipeline.tasks.outcomes import Row, table
from kunicorn.pipeline.tasks.ranges import RangeHandler, Rules
from kunicorn.positions import OffsetRange
from tests.unit.pipeline.fetched import messages

SKIPPED = RetryPolicy(1, 1, 1, None, End.SKIP)
POLICIES = Policies(RetryPolicy(2, 100, 100, None, End.DEAD_LETTER), [((KeyError,), SKIPPED)])


def handled(
    handle: Callable[[Any], Any],
    fetched: Sequence[list[Message]],
    stop: int = 10,
    *,
    batch: int | None = None,
    timeout_ms: int | None = None,
    waits: list[float] | None = None,
    filters: Filters | None = None,
) -> list[tuple[int, int, int, str]]:
    """Offset, end, records and status of each row."""
    handler = Handler("x:y", handle, asyncio.iscoroutinefunction(handle), filters=filters)
    calls = calls_of(handler, "record" if batch is None else "batch")
    wait = (waits if waits is not None else []).append
    handler_of_ranges = RangeHandler(calls, Rules(POLICIES, batch, timeout_ms=timeout_ms), wait)
    rows: list[Row] = list(handler_of_ranges.handle(OffsetRange("orders", 3, 0, stop), iter(fetched)))
    assert table(rows).num_rows == len(rows)
    return [(row["offset"], row["until"], row["records"], row["status"]) for row in rows]


def failing(how: dict[int, Callable[[], BaseException]]) -> Callable[[Record], None]:
    def handle(record: Record) -> None:
        if record.offset in how:
            raise how[record.offset]()

    return handle


def test_a_range_without_failures_is_one_row_gaps_and_all() -> None:
    assert handled(lambda record: None, [messages(2, 3), messages(7)]) == [(0, 10, 3, "done")]
    assert handled(lambda record: None, []) == [(0, 10, 0, "done")]


def test_a_record_that_fails_has_a_row_of_its_own_and_the_others_go_on() -> None:
    how: dict[int, Callable[[], BaseException]] = {1: ValueError, 4: KeyError, 5: Done}
    assert handled(failing(how), [messages(0, 1, 2), messages(4, 5, 9)]) == [
        (0, 1, 1, "done"), (1, 2, 1, "dead_letter"), (2, 4, 1, "done"), (4, 5, 1, "skip"), (5, 10, 2, "done"),
    ]  # fmt: skip


@pytest.mark.parametrize(("outcome", "status"), [(Skip("x"), "skip"), (DeadLetter("x"), "dead_letter")])
def test_what_the_handler_returns_goes_before_every_rule(outcome: Exception, status: str) -> None:
    waits: list[float] = []
    rows = handled(lambda record: outcome if record.offset == 0 else None, [messages(0, 1)], 2, waits=waits)
    assert rows == [(0, 1, 1, status), (1, 2, 1, "done")]
    assert waits == []


def test_a_task_waits_as_the_handler_says_and_counts_no_try() -> None:
    waits: list[float] = []
    said: list[object] = [None, Wait(5), ValueError(), Wait(7), Wait(9), None]
    rows = handled(lambda record: said.pop(0), [messages(0, 1)], 2, waits=waits)
    assert rows == [(0, 2, 2, "done")]
    assert (waits[0], waits[2:]) == (5, [7, 9])
    assert len(waits) == 4, "one of them before the second and last try"


def test_while_a_registry_is_away_a_task_waits_and_counts_no_try() -> None:
    waits: list[float] = []
    away = NotDecodableYet("later")
    said: list[Exception | None] = [away, away, away, ValueError(), away, None, None]

    def handle(record: Record) -> None:
        if (found := said.pop(0)) is not None:
            raise found

    assert handled(handle, [messages(0, 1)], 2, waits=waits) == [(0, 2, 2, "done")]
    assert len(waits) == 5


class Timeless(Wait):
    """Says no time."""

    def __init__(self) -> None:
        pass


def test_a_wait_that_says_no_time_is_a_failed_try() -> None:
    rows = handled(lambda record: Timeless() if record.offset == 0 else None, [messages(0, 1)], 2)
    assert rows == [(0, 1, 1, "dead_letter"), (1, 2, 1, "done")]


class Fetched(list[Message]):
    """A batch that can be asked whether anybody holds it."""


class Scripted:
    """Of a client: batches of records, and whether the one before was still held when the next was asked for."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = list(batches)
        self._last: weakref.ref[Fetched] | None = None
        self.held: list[bool] = []

    def consume(self, count: int, timeout: float) -> list[Message]:
        if self._last is not None:
            self.held.append(self._last() is not None)
        batch = Fetched(self._batches.pop(0))
        self._last = weakref.ref(batch)
        return batch

    def list_topics(self, topic: str, timeout: float) -> None: ...
    def assign(self, partitions: list[Any]) -> None: ...
    def unassign(self) -> None: ...


def test_a_batch_is_let_go_of_before_the_next_is_fetched() -> None:
    client: Any = Scripted(messages(0, 1), messages(2, 3), messages(4, 5))
    whole = OffsetRange("orders", 3, 0, 6)
    calls = calls_of(Handler("x:y", lambda record: None, False), "record")
    (row,) = RangeHandler(calls, Rules(POLICIES)).handle(whole, RangeReader(client).read(whole))
    assert (row["until"], row["records"]) == (6, 6)
    assert client.held == [False, False], "two batches at a time do not fit into the processor's cache"


def test_a_halt_ends_the_range_before_its_record() -> None:
    assert handled(lambda record: Halt("x") if record.offset == 2 else None, [messages(0, 2, 3)]) == [
        (0, 2, 1, "done"),
        (2, 2, 0, "halt"),
    ]


def test_a_record_is_tried_again_after_its_wait_and_counts_once() -> None:
    tried: list[int] = []
    waits: list[float] = []

    def handle(record: Record) -> Any:
        tried.append(record.offset)
        return Retry() if tried.count(1) == 1 and record.offset == 1 else None

    assert handled(handle, [messages(0, 1, 2)], 3, waits=waits) == [(0, 3, 3, "done")]
    assert tried == [0, 1, 1, 2]
    assert waits == [pytest.approx(0.1, rel=0.21)]


def test_a_batch_fails_as_a_whole() -> None:
    def handle(records: Sequence[Record]) -> None:
        if any(record.offset == 3 for record in records):
            raise ValueError

    assert handled(handle, [messages(0, 1, 2, 3, 4)], 5, batch=2) == [
        (0, 2, 2, "done"), (2, 3, 1, "dead_letter"), (3, 4, 1, "dead_letter"), (4, 5, 1, "done"),
    ]  # fmt: skip


def test_an_async_handler_is_awaited() -> None:
    async def handle(record: Record) -> Any:
        await asyncio.sleep(0)
        return Skip("x") if record.offset == 1 else None

    assert handled(handle, [messages(0, 1)], 2) == [(0, 1, 1, "done"), (1, 2, 1, "skip")]


def test_a_call_that_takes_too_long_is_interrupted_and_fails() -> None:
    def handle(record: Record) -> None:
        if record.offset == 1:
            time.sleep(120)

    began = time.monotonic()
    assert handled(handle, [messages(0, 1, 2)], 3, timeout_ms=200) == [
        (0, 1, 1, "done"), (1, 2, 1, "dead_letter"), (2, 3, 1, "done"),
    ]  # fmt: skip
    assert time.monotonic() - began < 60


def test_of_a_batch_that_takes_too_long_what_is_filtered_is_done() -> None:
    even = Filters([Filter("even", lambda message: (message.offset() or 0) % 2 == 0)], untold)

    def handle(records: Sequence[Record]) -> None:
        time.sleep(120)

    rows = handled(handle, [messages(0, 1, 2, 3)], 4, batch=4, timeout_ms=300, filters=even)
    assert [status for *_, status in rows] == ["dead_letter", "done", "dead_letter", "done"]
    assert sum(records for _, _, records, _ in rows) == 4


@pytest.mark.parametrize("failure", [Skip("a test"), KeyError("no")], ids=["outcome", "failure"])
def test_a_batch_that_fails_as_a_whole_says_nothing_of_records_that_it_did_not_have(failure: Exception) -> None:
    def is_kept(message: Message) -> bool:
        return message.offset() != 3 or bool(1 / 0)

    def handle(batch: Batch) -> None:
        if 0 in batch.offsets():
            raise failure

    broken = Filters([Filter("broken", is_kept)], untold)
    rows = handled(handle, [messages(*range(6))], 6, batch=6, filters=broken)
    assert [row[3] for row in rows] == ["skip", "skip", "skip", "dead_letter", "done"]
    assert rows[-1] == (4, 6, 2, "done")


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(1, 9))
def test_rows_tile_the_range_whatever_fails(offsets: set[int], bad: set[int], at_once: int) -> None:
    there = sorted(offsets)
    fetched = [messages(*there[at : at + at_once]) for at in range(0, len(there), at_once)]
    rows = handled(failing(dict.fromkeys(bad, KeyError)), fetched, 31)
    assert [row[0] for row in rows] == [0, *(row[1] for row in rows[:-1])]
    assert rows[-1][1] == 31
    assert sum(row[2] for row in rows) == len(offsets)
    assert {row[0] for row in rows if row[3] == "skip"} == offsets & bad


def test_of_a_batch_only_the_record_that_failed_is_tried_again_and_nothing_done_comes_twice() -> None:
    calls: list[list[int]] = []

    def handle(batch: Batch) -> None:
        calls.append(batch.offsets())
        if 2 in batch.offsets():
            raise BatchError(done=[0, 1, 4] if len(batch) > 1 else []) from ConnectionError("gone")

    rows = handled(handle, [messages(*range(6))], stop=6, batch=6)
    assert calls == [[0, 1, 2, 3, 4, 5], [2], [3, 5]]
    assert rows == [(0, 2, 2, "done"), (2, 3, 1, "dead_letter"), (3, 6, 3, "done")]


@given(st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11)))
def test_every_record_counts_once_and_in_the_row_of_its_offset_whichever_a_mask_names_as_done(
    offsets: set[int], bad: set[int]
) -> None:
    def handle(batch: Batch) -> None:
        mask = [offset not in bad for offset in batch.offsets()]
        if not all(mask):
            raise BatchError(mask=mask) from KeyError()

    rows = handled(handle, [messages(*sorted(offsets))], stop=12, batch=12)
    assert {row[0] for row in rows if row[3] == "skip"} == offsets & bad
    for begin, until, records, _ in rows:
        assert records == len(offsets & {*range(begin, until)})


@given(st.lists(st.sampled_from(["done", "skip", "dead_letter"]), min_size=1, max_size=12))
def test_a_batch_whose_outcomes_the_handler_names_is_handed_to_it_once(named: list[str]) -> None:
    outcomes: dict[str, Exception] = {"skip": Skip("x"), "dead_letter": DeadLetter("x")}
    calls: list[list[int]] = []

    def handle(batch: Batch) -> BatchError | None:
        calls.append(batch.offsets())
        wanted = [named[offset] for offset in batch.offsets()]
        masks = [(outcome, [each == name for each in wanted]) for name, outcome in outcomes.items()]
        return BatchError(outcomes=masks) if {*wanted} - {"done"} else None

    rows = handled(handle, [messages(*range(len(named)))], stop=len(named), batch=12)
    # One outcome tells of no others: those that are apart from its first ones come once more.
    assert len(calls) <= (1 if {"skip", "dead_letter"} <= {*named} else 2)
    assert [status for begin, until, _, status in rows for _ in range(begin, until)] == named


def test_records_that_the_handler_wants_to_try_again_hold_up_those_that_it_has_decided_on() -> None:
    calls: list[list[int]] = []

    def handle(batch: Batch) -> BatchError | None:
        calls.append(batch.offsets())
        if len(calls) == 1:
            return BatchError(
                outcomes=[(Retry(), [True, True, False, False, False]), (Skip("x"), [False] * 3 + [True, False])]
            )
        if len(calls) == 2:
            return BatchError(outcomes=[(Skip("y"), [True, False])])
        return None

    waits: list[float] = []
    rows = handled(handle, [messages(*range(7))], stop=7, batch=5, waits=waits)
    assert calls[:2] == [[0, 1, 2, 3, 4], [0, 1]]
    assert len(waits) == 1
    assert rows == [(0, 1, 1, "skip"), (1, 3, 2, "done"), (3, 4, 1, "skip"), (4, 7, 3, "done")]
