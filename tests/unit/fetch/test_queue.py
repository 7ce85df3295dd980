"""What is between the fetcher's thread and the worker's loop: bounded in bytes, and nobody waits for a lock."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.table import Fault, News
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.rows import Rows
from kunicorn.ipc.messages import FailureKind
from kunicorn.positions import TopicPartition

TP = TopicPartition("t", 0)


def fetched(rows: int, nbytes: int) -> Fetched:
    """So many rows, said to be of so many bytes."""
    batch = rows_of([Message(topic="t", partition=0, offset=at) for at in range(rows)])
    return Fetched(News(TP, 1, 0, rows, rows, 0), Rows(batch), nbytes)


@pytest.mark.scenario("0127 fetch_queue_backoff", "0082 fetch_max_bytes")
def test_the_fetcher_waits_while_it_is_full_and_is_woken_once_there_is_room() -> None:
    queue, woken = FetchQueue(100), []
    queue.on_room(lambda: woken.append(1))
    queue.put(fetched(1, 60))
    assert not queue.waits_for_room()
    queue.put(fetched(1, 60))
    assert queue.waits_for_room()
    queue.get(0)
    assert woken == [1]
    assert not queue.waits_for_room()
    queue.get(0)
    assert woken == [1]


def test_what_is_kept_of_what_was_taken_leaves_less_room_but_an_empty_queue_always_has_some() -> None:
    kept = 0
    queue, woken = FetchQueue(100, lambda: queue.bytes + kept), []
    queue.on_room(lambda: woken.append(1))
    queue.put(fetched(1, 30))
    assert not queue.waits_for_room()
    kept = 80
    assert queue.waits_for_room()
    queue.put(fetched(1, 20))
    queue.get(0)
    assert woken == []
    queue.get(0)
    assert woken == [1]
    assert not queue.waits_for_room()


def test_what_is_cut_goes_on_with_the_rest() -> None:
    queue, fault = FetchQueue(100), Fault(FailureKind.PARTITION, "damaged")
    whole = fetched(10, 50)
    queue.put(whole._replace(news=whole.news._replace(fault=fault)))
    queue.put(fetched(3, 5))
    head = queue.head(0)
    assert head is not None
    begun, rest = head.cut(4)
    queue.pop(rest)
    assert begun.rows is not None
    assert (list(begun.rows.offsets()), begun.news.next_offset, begun.news.fault) == ([0, 1, 2, 3], 4, None)
    assert queue.bytes == 35
    left = queue.get(0)
    assert left is not None
    assert left.rows is not None
    assert (list(left.rows.offsets()), left.news.next_offset, left.news.fault) == (list(range(4, 10)), 10, fault)
    assert queue.bytes == 5
    last = queue.head(0)
    assert last is not None
    assert last.cut(3) == (last, None)


def test_the_rest_of_what_is_cut_counts_as_queued() -> None:
    queue, woken = FetchQueue(100), []
    queue.on_room(lambda: woken.append(1))
    queue.put(fetched(10, 200))
    assert queue.waits_for_room()
    head = queue.head(0)
    assert head is not None
    queue.pop(head.cut(4)[1])
    assert not woken
    queue.get(0)
    assert woken == [1]


def test_nothing_within_the_time_is_nothing() -> None:
    assert FetchQueue(100).get(0.01) is None
