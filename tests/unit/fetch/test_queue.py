"""What is between the fetcher's thread and the worker's loop: bounded in bytes, and nobody waits for a lock."""

from __future__ import annotations

from confluent_kafka import Message

from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.table import News
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.rows import Rows
from kunicorn.positions import TopicPartition

TP = TopicPartition("t", 0)


def fetched(rows: int, nbytes: int) -> Fetched:
    """So many rows, said to be of so many bytes."""
    batch = rows_of([Message(topic="t", partition=0, offset=at) for at in range(rows)])
    return Fetched(News(TP, 1, 0, rows, rows, 0), Rows(batch), nbytes)


def test_the_fetcher_waits_while_it_is_full_and_is_woken_once_there_is_room() -> None:
    queue, woken = FetchQueue(100), []
    queue.on_room(lambda: woken.append(1))
    queue.put(fetched(1, 60))
    assert not queue.waits_for_room()
    queue.put(fetched(1, 60))
    assert queue.waits_for_room()
    queue.take(1, 0)
    assert woken == [1]
    assert not queue.waits_for_room()
    queue.take(1, 0)
    assert woken == [1]


def test_as_much_is_taken_as_is_asked_for_and_the_rest_stays() -> None:
    queue = FetchQueue(100)
    for _ in range(4):
        queue.put(fetched(10, 5))
    assert [len(each.rows or ()) for each in queue.take(15, 0)] == [10, 10]
    assert queue.bytes == 10
    assert len(queue.take(1000, 0)) == 2
    assert queue.take(1, 0) == []


def test_nothing_within_the_time_is_nothing() -> None:
    assert FetchQueue(100).take(1, 0.01) == []
