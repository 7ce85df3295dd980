"""What a reader of columns gives out while its fetcher has nothing, and what it makes of what does not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.clients import column_reader
from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.errors import PeerError
from kunicorn.fetch.queue import Fetched
from kunicorn.fetch.table import Fault, Fetching, News, Topic
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.rows import Rows
from kunicorn.ipc.messages import FailureKind
from kunicorn.positions import Edges, OffsetRange, TopicPartition
from tests.unit.clients.played_fetcher import Placing, reader_of

WANTED = OffsetRange("orders", 0, 10, 13)


def fetched(*offsets: int, until: int, number: int = 1) -> Fetched:
    """Rows at these offsets, of that placing, and where it goes on."""
    rows = None
    if offsets:
        messages = [Message(topic="orders", partition=0, offset=each, value=b"v") for each in offsets]
        rows = Rows(rows_of(messages))
    return Fetched(News(TopicPartition("orders", 0), number, 0, len(offsets), until, 0), rows, 1)


def test_while_no_rows_come_the_caller_gets_an_empty_run_each_time() -> None:
    found = reader_of(None, fetched(10, until=11), fetched(until=12), None, fetched(12, 13, until=14)).read(WANTED)
    assert [[message.offset() for message in run] for run in found] == [[], [10], [], [], [12]]


def test_what_was_fetched_for_an_earlier_placing_does_not_count() -> None:
    found = reader_of(fetched(10, until=99, number=7), fetched(12, until=13)).read(WANTED)
    assert [[message.offset() for message in run] for run in found] == [[], [12]]


def test_a_partition_that_is_set_aside_is_fetched_again_from_where_it_was() -> None:
    placing = Placing()
    found = fetched(10, until=11), fetched(11, until=12), None, fetched(11, 12, until=13, number=2)
    aside: set[TopicPartition] = set()
    tp = TopicPartition("orders", 0)
    seen = []
    for run in reader_of(*found, placing=placing).read(WANTED, aside=aside):
        seen.append([message.offset() for message in run])
        if len(seen) == 1:
            aside.add(tp)
        if len(seen) == 2:
            aside.clear()
    assert seen == [[10], [], [], [11, 12]], "what was fetched before comes again"
    assert placing.told == [(tp, 1, 10, -1, 13), (tp, 1), (tp, 2, 11, 0, 13), (tp, 2)]


def test_a_partition_that_is_fetched_again_is_of_the_topic_that_it_was_of() -> None:
    """Else the records of one that is created anew while it is set aside would come as its own."""
    table, tp, topic = Fetching(1000, lambda: 0.0), WANTED.tp, bytes(range(16))
    table_as_fetcher: Any = SimpleNamespace(call=lambda do: do(table))
    aside: set[TopicPartition] = set()
    found = reader_of(fetched(10, until=11), None, None, placing=table_as_fetcher).read(WANTED, aside=aside)
    next(found)
    table.learn({"orders": Topic(topic, {0: (1, 0)})}, 0.0)
    table.sent(1)
    answered: Any = SimpleNamespace(
        topic="orders", partition=0, error=0, first_row=0, rows=1, next_offset=11, last_epoch=0, damage="",
        incomplete=False, preferred_replica=-1, leader_id=-1, leader_epoch=-1, diverging_epoch=-1,
    )  # fmt: skip
    table.meet(1, 7, [answered], 0.0)
    aside.add(tp)
    next(found)
    assert table.get(tp) is None
    aside.clear()
    next(found)
    again = table.get(tp)
    assert again is not None
    assert (again.number, again.offset, again.topic_id, again.of_topic) == (2, 11, topic, True)


def test_nobody_waits_for_what_is_set_aside() -> None:
    found = reader_of(*[None] * 3, patience=-1.0).read(WANTED, aside={TopicPartition("orders", 0)})
    assert [next(found) for _ in range(3)] == [[]] * 3


def test_the_time_that_the_caller_takes_over_an_empty_run_is_not_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(column_reader, "time", SimpleNamespace(monotonic=lambda: now))
    found = []
    for run in reader_of(None, fetched(10, until=11), None, fetched(12, until=13)).read(WANTED):
        found.append(len(run))
        now += 3600.0
    assert found == [0, 1, 0, 1]


def test_brokers_that_are_silent_for_too_long_end_the_range() -> None:
    with pytest.raises(RangeUnreadable, match="no record for 0 s"):
        list(reader_of(fetched(10, until=11), patience=0).read(WANTED))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("told", [Edges(0, 99), None], ids=["the log has it", "nobody tells"])
def test_an_offset_that_the_log_is_not_known_to_have_lost_is_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch, told: Edges | None, strict: bool
) -> None:
    """As a broker answers that leads the partition no more, and does not know yet."""

    def edges(tp: TopicPartition) -> Edges:
        if told is None:
            raise PeerError("no broker answers")
        return told

    fault = Fault(FailureKind.OUT_OF_RANGE, "orders-0 from offset 10 on: OFFSET_OUT_OF_RANGE (1)")
    reader = reader_of(Fetched(News(WANTED.tp, 1, 0, 0, 10, 0, fault), None, 0), passes_over_deleted=not strict)
    monkeypatch.setattr(reader, "_ask", edges)
    with pytest.raises(RangeUnreadable) as ended:
        list(reader.read(WANTED))
    assert "from offset 10 on: OFFSET_OUT_OF_RANGE (1), and its leader" in str(ended.value)
    assert "gone" not in str(ended.value)
    assert "fail_on_data_loss" not in str(ended.value)
