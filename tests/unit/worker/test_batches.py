"""Cutting a batch into runs, pacing, faults, and the numbers they are counted with."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.rows import following_offsets
from kunicorn.ipc.messages import FailureKind
from kunicorn.observe.catalogue import CONSUMED, FAILURES, PROCESS_SECONDS, RETRIES, SKIPPED, WAITS
from kunicorn.positions import NO_EPOCH, TopicPartition
from kunicorn.worker.fetching.fetched import MAX_CHUNK, ChunkPace, gathered_runs, kind_of, runs
from kunicorn.worker.stats import Counters
from tests.fakes.counts import counts_of


def message(offset: int, partition: int = 0, topic: str = "t", epoch: int | None = 3) -> Message:
    """One record."""
    if epoch is None:
        return Message(topic=topic, partition=partition, offset=offset, value=b"v")
    return Message(topic=topic, partition=partition, offset=offset, value=b"v", leader_epoch=epoch)


def test_a_batch_is_cut_where_the_partition_changes() -> None:
    batch = [message(0), message(1), message(7, 1), message(2)]
    cut = [(run.tp.partition, [m.offset() for m in run.messages]) for run in runs(batch, False)]
    assert cut == [(0, [0, 1]), (1, [7]), (0, [2])]


def test_a_gathered_batch_has_one_run_a_partition_in_its_own_order() -> None:
    batch = [message(5, 1), message(0), message(6, 1), message(1), message(0, topic="s")]
    cut = [(run.tp, [m.offset() for m in run.messages]) for run in gathered_runs(batch, True)]
    assert cut == [
        (TopicPartition("t", 1), [5, 6]),
        (TopicPartition("t", 0), [0, 1]),
        (TopicPartition("s", 0), [0]),
    ]


def test_neighbours_of_two_topics_with_one_number_are_cut_apart() -> None:
    batch = [message(0, topic="a"), message(0, topic="b")]
    assert [run.tp for run in runs(batch, True)] == [TopicPartition("a", 0), TopicPartition("b", 0)]


def test_a_run_has_one_leader_epoch() -> None:
    batch = [message(0, epoch=3), message(1, epoch=3), message(2, epoch=4)]
    assert [(run.leader_epoch, len(run.messages)) for run in runs(batch, False)] == [(3, 2), (4, 1)]


def test_a_broker_that_tells_no_epoch_leaves_it_unknown() -> None:
    assert [run.leader_epoch for run in runs([message(0, epoch=None)], False)] == [NO_EPOCH]


@given(st.sets(st.integers(0, 1 << 40), min_size=1).map(sorted))
def test_the_following_offset_is_one_more_whatever_the_gaps(offsets: list[int]) -> None:
    assert list(following_offsets([message(offset) for offset in offsets])) == [offset + 1 for offset in offsets]


def test_chunks_grow_with_a_fast_handler_and_fall_to_one_with_a_slow_one() -> None:
    pace = ChunkPace()
    sizes = []
    for _ in range(12):
        pace.took(pace.size, 10_000)
        sizes.append(pace.size)
    assert sizes[:4] == [2, 4, 8, 16]
    assert sizes[-1] == MAX_CHUNK
    pace.took(MAX_CHUNK, MAX_CHUNK * 5_000_000)
    assert pace.size == 1, "5 ms a record"


def test_a_fast_handler_that_waited_for_a_processor_is_not_taken_for_a_slow_one() -> None:
    pace = ChunkPace()
    pace.size = MAX_CHUNK
    pace.took(MAX_CHUNK, 5_000_000)
    assert pace.size == MAX_CHUNK // 5


def test_a_chunk_cut_short_by_the_batchs_end_says_nothing_about_larger_ones() -> None:
    pace = ChunkPace()
    pace.size = 64
    pace.took(3, 10_000)
    assert pace.size == 64


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range", FailureKind.OUT_OF_RANGE),
        (KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected at offset 5000", FailureKind.TRUNCATED),
        (KafkaError._LOG_TRUNCATION, "", FailureKind.TRUNCATED),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "", FailureKind.DENIED),
        (12345, "a code of the future", FailureKind.PARTITION),
        (KafkaError._ALL_BROKERS_DOWN, "", None),
    ],
)
def test_every_error_of_the_client_has_one_meaning(code: int, text: str, kind: FailureKind | None) -> None:
    assert kind_of(code, text) is kind


def test_a_chunks_time_is_shared_out_among_its_records() -> None:
    counters = Counters()
    counters.finished("t", 10, 10 * 2_000_000, 10)
    _, (calls,) = counters.take()
    assert (calls.name, calls.labels) == (PROCESS_SECONDS.name, ["t", ""])
    assert calls.seconds == pytest.approx(0.02)
    assert calls.buckets[PROCESS_SECONDS.buckets.index(0.002_5)] == 10
    assert counters.take() == ([], [])
    assert counters.handled == 10


def test_failures_are_counted_apart_from_records() -> None:
    counters = Counters()
    counters.finished("t", 0, 5, 1)
    counters.failed("t", retried=True)
    counters.failed("t", retried=False)
    (counted,) = counts_of(*counters.take())
    assert (counted.records, counted.failures, counted.retries) == (0, 2, 1)


def test_what_has_not_happened_to_a_topics_records_is_told_as_nothing() -> None:
    counters = Counters()
    counters.finished("t", 1, 5, 1)
    told, _ = counters.take()
    assert {(each.name, each.amount) for each in told} == {
        (CONSUMED.name, 1), (FAILURES.name, 0), (RETRIES.name, 0), (SKIPPED.name, 0), (WAITS.name, 0),
    }  # fmt: skip
