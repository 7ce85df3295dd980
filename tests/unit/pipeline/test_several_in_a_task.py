"""Ranges of a task with several records in hand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.clients.range_reader import RangeReader, Window
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.load import handler_of
from kunicorn.handler.outcome import Halt, Skip, Wait
from kunicorn.handler.record import Record
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.concurrent import ConcurrentRanges, Part, SeveralCalls, executor_for, slots_of
from kunicorn.pipeline.tasks.in_hand_file import IDLE, IN_HAND, NEXT, ONE, STATE, STOP, Suspects
from kunicorn.pipeline.tasks.in_hand_notes import Hand, InHandNotes
from kunicorn.pipeline.tasks.limits import TaskLimits
from kunicorn.pipeline.tasks.outcomes import Row, table
from kunicorn.pipeline.tasks.ranges import Done, HandleRanges
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.worker.progress import InFlight
from tests.compiled import compiled
from tests.fakes.fetched import batch, partition
from tests.fakes.fetched import body as response
from tests.fakes.fetched import record as sent

POLICIES = Policies(RetryPolicy(2, 1, 1, None, End.DEAD_LETTER))
SECONDS = 60.0


def record(offset: int, key: bytes | None = b"k", partition: int = 0) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"v", key=key)


class Task:
    """One task with a handler, and what its ranges have come to."""

    def __init__(
        self,
        handle: Callable[[Record], Any],
        *ranges: OffsetRange,
        ordering: str = "partition",
        concurrency: int = 4,
        timeout_ms: int | None = None,
        hands: Sequence[Hand] = (),
    ) -> None:
        handler = handler_of("x:y", handle)
        config = HandlerConfig("x:y", "record", {}, 1, 2, 1, 1, ordering=ordering, concurrency=concurrency)
        self.calls = SeveralCalls(executor_for(handler, config), slots_of(handler, config))
        self.task = ConcurrentRanges(self.calls, POLICIES, timeout_ms)
        self.rows: dict[int, list[Row]] = {each.partition: [] for each in ranges}
        self.parts = [
            Part(each, self.rows[each.partition].append, memoryview(bytearray(64)).cast("q"), Suspects(hands))
            for each in ranges
        ]

    def handle(self, fetched: Iterator[Any]) -> None:
        try:
            self.task.handle(self.parts, fetched)
        finally:
            self.calls.close()

    def run(self, *fetched: list[Message]) -> dict[int, list[tuple[int, int, int, str]]]:
        """Offset, end, records and status of each row, by partition."""
        self.handle(iter(fetched))
        assert all(part.cells[STATE] == IDLE for part in self.parts)
        for rows in self.rows.values():
            assert table(rows).num_rows == len(rows)
        return {
            number: [(row["offset"], row["until"], row["records"], row["status"]) for row in rows]
            for number, rows in self.rows.items()
        }


def whole(partition: int = 0, stop: int = 10) -> OffsetRange:
    return OffsetRange("orders", partition, 0, stop)


def meeting(parties: int) -> Callable[[Record], None]:
    """A handler of which so many calls have to be underway at once."""
    barrier = threading.Barrier(parties)

    def handle(record: Record) -> None:
        barrier.wait(SECONDS)

    return handle


def test_several_records_without_an_order_are_in_hand_at_once() -> None:
    fetched = [record(offset) for offset in range(8)]
    assert Task(meeting(4), whole(), ordering="none").run(fetched) == {0: [(0, 10, 8, "done")]}


def test_several_partitions_of_a_task_are_handled_side_by_side_each_in_its_order() -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    meet = meeting(2)

    def handle(record: Record) -> None:
        meet(record)
        seen[record.partition].append(record.offset)

    fetched = [record(offset, partition=number) for offset in range(5) for number in (0, 1)]
    rows = Task(handle, whole(0), whole(1), concurrency=2).run(fetched)
    assert rows == {0: [(0, 10, 5, "done")], 1: [(0, 10, 5, "done")]}
    assert seen == {0: [*range(5)], 1: [*range(5)]}


def test_records_of_a_key_keep_their_order_and_those_of_others_do_not_wait_for_them() -> None:
    others = threading.Event()
    seen: list[int] = []

    def handle(record: Record) -> None:
        if record.key == b"slow":
            assert others.wait(SECONDS)
        seen.append(record.offset)
        if len(seen) == 3:
            others.set()

    keys = [b"slow", b"a", b"slow", b"b", b"c"]
    fetched = [record(offset, key) for offset, key in enumerate(keys)]
    assert Task(handle, whole(), ordering="key").run(fetched) == {0: [(0, 10, 5, "done")]}
    assert seen.index(0) < seen.index(2)


def test_coroutines_run_in_one_loop() -> None:
    underway, most = 0, 0
    all_there = asyncio.Event()

    async def handle(record: Record) -> Any:
        nonlocal underway, most
        underway, most = underway + 1, max(most, underway + 1)
        if underway == 3:
            all_there.set()
        async with asyncio.timeout(SECONDS):
            await all_there.wait()
        await asyncio.sleep(0.001)
        underway -= 1
        return Skip("x") if record.offset == 3 else None

    fetched = [record(offset) for offset in range(6)]
    rows = Task(handle, whole(), ordering="none", concurrency=3).run(fetched)
    assert rows == {0: [(0, 3, 3, "done"), (3, 4, 1, "skip"), (4, 10, 2, "done")]}
    assert most == 3


def test_a_record_that_waits_for_another_try_holds_up_its_lane_alone() -> None:
    tried: list[int] = []
    behind = threading.Event()

    def handle(record: Record) -> None:
        tried.append(record.offset)
        if record.offset == 0 and tried.count(0) == 1:
            raise ConnectionError
        if record.offset == 0:
            assert behind.wait(SECONDS)
        if record.offset == 5:
            behind.set()

    fetched = [record(offset) for offset in range(6)]
    assert Task(handle, whole(), ordering="none", concurrency=2).run(fetched) == {0: [(0, 10, 6, "done")]}
    assert tried.count(0) == 2


def saying(*said: Exception | None) -> Callable[[Record], Any]:
    """A handler that says one after the other."""
    left = list(said)

    def handle(record: Record) -> Any:
        found = left.pop(0)
        if found is not None and not isinstance(found, Wait):
            raise found
        return found

    return handle


def test_what_the_handler_has_wait_counts_no_try() -> None:
    handle = saying(Wait(0.001), ValueError(), Wait(0.001), None)
    assert Task(handle, whole()).run([record(0)]) == {0: [(0, 10, 1, "done")]}


def test_while_a_registry_is_away_no_try_of_a_record_is_counted() -> None:
    away = NotDecodableYet("later")
    handle = saying(away, away, away, ValueError(), away, None)
    assert Task(handle, whole()).run([record(0)]) == {0: [(0, 10, 1, "done")]}


class Timeless(Wait):
    """Says no time."""

    def __init__(self) -> None:
        pass


def test_a_wait_that_says_no_time_is_a_failed_try_that_says_so() -> None:
    task = Task(saying(Timeless(), Timeless()), whole())
    assert task.run([record(0)]) == {0: [(0, 1, 1, "dead_letter"), (1, 10, 0, "done")]}
    assert task.rows[0][0]["error_message"].startswith("Timeless says no time")


def test_a_halt_ends_its_range_before_its_record_and_no_other() -> None:
    def handle(record: Record) -> Any:
        return Halt("x") if (record.partition, record.offset) == (0, 2) else None

    fetched = [record(offset, partition=number) for offset in range(6) for number in (0, 1)]
    rows = Task(handle, whole(0), whole(1)).run(fetched)
    assert rows == {0: [(0, 2, 2, "done"), (2, 2, 0, "halt")], 1: [(0, 10, 6, "done")]}


def test_what_is_fetched_of_a_range_behind_its_halt_is_not_kept() -> None:
    def handle(record: Record) -> Any:
        return Halt("x") if record.partition == 0 else None

    task = Task(handle, whole(0, 200), whole(1, 200))
    halting = task.parts[0]

    def kept() -> int:
        return sum(len(lane.queue) for lane in halting.tracker.lanes.values())

    def fetched() -> Iterator[list[Message]]:
        yield [record(0, partition=0)]
        deadline = time.monotonic() + SECONDS
        while halting.halted_at is None:
            assert time.monotonic() < deadline
            yield []
        before = kept()
        for offset in range(1, 200):
            yield [record(offset, partition=number) for number in (0, 1)]
        assert kept() == before

    task.handle(fetched())
    assert [row["status"] for row in task.rows[0]] == ["halt"]
    assert [row["records"] for row in task.rows[1]] == [199]


def test_a_halt_beyond_a_record_that_waits_has_that_one_handled_again(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def handle(record: Record) -> Any:
        if record.offset == 1:
            failed.set()
            return Wait(3600)
        if record.offset == 2:
            assert failed.wait(SECONDS)
            return Halt("no")
        return None

    task = Task(handle, whole(), ordering="none", concurrency=2)
    assert task.run([record(offset) for offset in range(4)])[0] == [(0, 1, 1, "done"), (1, 1, 0, "halt")]
    assert task.rows[0][-1]["error_message"] == "offset 2 halts, and this one has not ended: no"


def test_one_executor_serves_task_after_task() -> None:
    seen: list[int] = []
    task = Task(lambda record: seen.append(record.offset), whole(stop=5), ordering="none")
    task.task.handle(task.parts, iter([[record(offset) for offset in range(5)]]))
    following = Task(lambda record: None, whole(stop=9), ordering="none")
    following.calls.close()
    again = ConcurrentRanges(task.calls, POLICIES)
    again.handle(following.parts, iter([[record(offset) for offset in range(5, 9)]]))
    task.calls.close()
    assert sorted(seen) == [*range(9)]


def test_a_call_that_takes_too_long_is_interrupted_and_tried_again() -> None:
    calls: list[int] = []

    async def handle(record: Record) -> None:
        calls.append(record.offset)
        if record.offset == 1:
            await asyncio.sleep(3600)

    fetched = [record(offset) for offset in range(3)]
    rows = Task(handle, whole(), ordering="none", timeout_ms=200).run(fetched)
    assert rows == {0: [(0, 1, 1, "done"), (1, 2, 1, "dead_letter"), (2, 10, 1, "done")]}
    assert calls.count(1) == 2


class Slow:
    """Of a client: one record, and the partition's end once that has happened; nothing in between."""

    def __init__(self, happened: threading.Event) -> None:
        self._happened = happened
        self._given = False

    def consume(self, count: int, timeout: float) -> list[Message]:
        if not self._given:
            self._given = True
            return [record(0)]
        error = KafkaError(KafkaError._PARTITION_EOF)
        return [Message(topic="orders", partition=0, offset=10, error=error)] if self._happened.is_set() else []

    def poll(self, timeout: float) -> None:
        self._happened.wait(timeout)

    def list_topics(self, topic: str, timeout: float) -> None: ...
    def assign(self, partitions: list[Any]) -> None: ...
    def unassign(self) -> None: ...
    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 10


@pytest.mark.parametrize("limits", [TaskLimits(), TaskLimits(records_per_second=1e6)])
@pytest.mark.parametrize("done", [{}, {TopicPartition("orders", 0): {7}}])
@pytest.mark.parametrize("window", [None, Window(None, 1)])
def test_time_outs_and_retries_come_in_time_while_the_reader_waits_for_the_brokers(
    limits: TaskLimits, done: Done, window: Window | None
) -> None:
    again = threading.Event()
    tries: list[int] = []

    async def handle(record: Record) -> None:
        tries.append(record.offset)
        if len(tries) == 1:
            await asyncio.sleep(3600)
        again.set()

    task = Task(handle, whole(), timeout_ms=200)
    client: Any = Slow(again)
    file: Any = SimpleNamespace(records=lambda _: RangeReader(client, SECONDS))
    try:
        handling = HandleRanges(file, Directory("nowhere"), window, done, limits=limits)
        task.task.handle(task.parts, handling._records([whole()]))
    finally:
        task.calls.close()
    assert tries == [0, 0]
    assert [(row["until"], row["status"]) for row in task.rows[0]] == [(10, "done")]


def test_what_is_in_hand_is_noted_from_the_lowest_to_the_highest() -> None:
    noted: list[tuple[int, int, int]] = []
    meet = meeting(2)

    def handle(record: Record) -> None:
        meet(record)
        cells = task.parts[0].cells
        noted.append((cells[NEXT], cells[STOP], cells[STATE]))
        meet(record)

    task = Task(handle, whole(), ordering="none", concurrency=2)
    task.run([record(0), record(1)])
    assert (0, 2, IN_HAND) in noted


def test_suspects_are_handled_with_nothing_beside_them_and_the_deadly_one_not_at_all() -> None:
    beside, underway = list[int](), set[int]()
    lock = threading.Lock()
    noted: list[int] = []

    def handle(record: Record) -> None:
        with lock:
            underway.add(record.offset)
            beside.append(len(underway))
            noted.append(task.parts[0].cells[STOP])
        with lock:
            underway.discard(record.offset)

    hands = [Hand(0, 3), Hand(0, 3), Hand(1, 2)]
    task = Task(handle, whole(stop=3), ordering="none", hands=hands)
    assert task.run([record(offset) for offset in range(3)]) == {
        0: [(0, 1, 1, "done"), (1, 2, 1, "dead_letter"), (2, 3, 1, "done")]
    }
    assert (beside, noted) == ([1, 1], [ONE, ONE])


class Noted(InHandNotes):
    """Notes that are kept here."""

    def __init__(self) -> None:
        super().__init__(Directory("nowhere"), "a.json", 1, whole())
        self.begun: list[int] = []

    def before(self, start: int, stop: int) -> int:
        self.begun.append(start)
        return stop


def test_of_a_task_that_fails_nothing_more_is_begun_or_noted() -> None:
    called, over, ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        called.release()
        assert over.wait(SECONDS)

    def failing() -> Iterator[list[Message]]:
        yield [record(offset) for offset in range(6)]
        for _ in range(2):
            assert called.acquire(timeout=SECONDS)
        raise ConnectionError

    task = Task(handle, whole(), ordering="none", concurrency=2)
    task.parts[0].notes = notes = Noted()
    finish = task.task._table.finish

    def finished(flight: InFlight) -> InFlight | None:
        following = finish(flight)
        ended.release()
        return following

    task.task._table.finish = finished  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        task.task.handle(task.parts, failing())
    noted = len(notes.begun)
    over.set()
    for _ in range(2):
        assert ended.acquire(timeout=SECONDS)
    task.calls.close()
    assert (sorted(seen), len(notes.begun)) == ([0, 1], noted)


class Stream:
    """Records as a client gives them, of which it is known how many were asked for."""

    def __init__(self, batches: int) -> None:
        self.asked = 0
        self._batches = batches

    def __iter__(self) -> Iterator[list[Message]]:
        for number in range(self._batches):
            self.asked = number + 1
            yield [record(number * 10 + at) for at in range(10)]


def test_no_more_is_fetched_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", 5_000)
    stream = Stream(20)
    asked: list[int] = []

    def handle(record: Record) -> None:
        asked.append(stream.asked * 10 - record.offset)

    task = Task(handle, whole(stop=200), concurrency=2)
    task.handle(iter(stream))
    assert max(asked) <= 30
    assert task.rows[0][0]["records"] == 200


def test_records_that_wait_for_another_try_are_kept_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", 5_000)
    stream, tried, unfinished = Stream(20), Counter[int](), list[int]()

    def handle(record: Record) -> Any:
        tried[record.offset] += 1
        unfinished.append(stream.asked * 10 - sum(1 for times in [*tried.values()] if times > 1))
        return Wait(0.05) if tried[record.offset] == 1 else None

    task = Task(handle, whole(stop=200), ordering="none", concurrency=4)
    task.handle(iter(stream))
    assert max(unfinished) <= 40
    assert task.rows[0][0]["records"] == 200


def test_failed_records_behind_one_that_waits_are_kept_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", 5_000)
    stream, deadline, asked = Stream(20), time.monotonic() + SECONDS, list[int]()
    failed: set[int] = set()

    def handle(record: Record) -> Any:
        if record.offset > 0:
            failed.add(record.offset)
            return Skip("bad")
        if len(asked) < 5 and time.monotonic() < deadline:
            # Time and again, with all behind it handled that had been fetched.
            if len(failed) == stream.asked * 10 - 1:
                asked.append(stream.asked)
            return Wait(0.05)
        return None

    task = Task(handle, whole(stop=200), ordering="none", concurrency=4)
    task.handle(iter(stream))
    assert asked
    assert max(asked) <= 3
    assert sum(row["records"] for row in task.rows[0]) == 200


def test_headers_count_among_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", 50_000)
    asked, given = [0], list[int]()

    def handle(record: Record) -> None:
        given.append(asked[0] - record.offset)

    def fetched() -> Iterator[list[Message]]:
        for offset in range(200):
            asked[0] = offset + 1
            headers: Any = [("trace", bytes(5_000))]
            yield [Message(topic="orders", partition=0, offset=offset, value=b"v", key=b"k", headers=headers)]

    task = Task(handle, whole(stop=200), concurrency=2)
    task.handle(fetched())
    assert max(given) <= 20


def answers(decoder: Any, number: int, records: int, key_of: Callable[[int], bytes], nbytes: int) -> Iterator[Any]:
    """Rows as the compiled decoder makes them, of one answer after the other; nothing else holds these."""
    topic_id = bytes(range(16))
    decoder.place(topic_id, 0, "orders", 0)
    for at in range(number):
        some = [sent(delta, bytes(nbytes), key_of(delta)) for delta in range(records)]
        body = response(13, {topic_id: [partition(13, 0, [batch(some, base_offset=at * records)])]})
        yield decoder.decode(body, 13).rows


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_records_that_wait_keep_none_in_memory_that_were_fetched_with_them(
    monkeypatch: pytest.MonkeyPatch, ordering: str
) -> None:
    """Also those that are queued behind one of their key that waits."""
    most = 300_000
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", most)
    columns = compiled()
    decoder = columns.Decoder(read_committed=True, max_unpacked=1 << 24)
    before, over, alive = decoder.held(), threading.Event(), list[int]()
    deadline = time.monotonic() + SECONDS

    def handle(record: Record) -> Any:
        if record.key == b"held up" and not over.is_set() and time.monotonic() < deadline:
            return Wait(0.05)
        return None

    def fetched() -> Iterator[Any]:
        for rows in answers(decoder, 40, 20, lambda at: b"held up" if at == 0 else b"key-%d" % at, 5_000):
            yield rows
            del rows
            alive.append(decoder.held() - before)
        over.set()

    task = Task(handle, whole(stop=800), ordering=ordering, concurrency=4)
    task.handle(fetched())
    assert time.monotonic() < deadline
    assert max(alive) <= 4 * most
    assert sum(row["records"] for row in task.rows[0]) == 800


def test_a_record_that_waits_for_another_try_does_not_hold_up_the_tasks_other_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kunicorn.pipeline.tasks.concurrent._AHEAD_BYTES", 5_000)
    others, through = threading.Event(), list[bool]()
    deadline = time.monotonic() + SECONDS

    def handle(record: Record) -> Any:
        if record.partition == 0 and record.offset == 0:
            if not others.is_set() and time.monotonic() < deadline:
                return Wait(0.05)
            through.append(others.is_set())
        if record.partition == 1 and record.offset == 9:
            others.set()
        return None

    task = Task(handle, whole(0, 100), whole(1, 10), concurrency=2)
    left = [[record(offset) for offset in range(100)], [record(offset, partition=1) for offset in range(10)]]
    kept: list[int] = []

    def fetched() -> Iterator[list[Message]]:
        while left[0] or left[1]:
            assert time.monotonic() < 2 * SECONDS + deadline
            kept.append(task.parts[0].tracker.bytes)
            number = 0 if left[0] and whole(0).tp not in task.task.aside else 1
            yield left[number][:5]
            del left[number][:5]

    task.handle(fetched())
    assert through == [True], "the others were through before"
    assert max(kept) <= 10_000
    assert [sum(row["records"] for row in rows) for rows in task.rows.values()] == [100, 10]


@settings(max_examples=30, deadline=None)
@given(
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.sampled_from(["partition", "key", "none"]),
    st.integers(1, 9),
)
def test_rows_tile_the_range_whatever_fails(offsets: set[int], bad: set[int], ordering: str, at_once: int) -> None:
    def handle(record: Record) -> Any:
        return Skip("x") if record.offset in bad else None

    there = [record(offset, b"%d" % (offset % 3)) for offset in sorted(offsets)]
    fetched = [there[at : at + at_once] for at in range(0, len(there), at_once)]
    rows = Task(handle, whole(stop=31), ordering=ordering, concurrency=3).run(*fetched)[0]
    assert [row[0] for row in rows] == [0, *(row[1] for row in rows[:-1])]
    assert rows[-1][1] == 31
    assert sum(row[2] for row in rows) == len(offsets)
    assert {row[0] for row in rows if row[3] == "skip"} == offsets & bad
