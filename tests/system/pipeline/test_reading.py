"""Ranges end where they should, whatever compaction, transactions and retention have left of their offsets: one suite
over both readers, librdkafka's and our own fetcher's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import Protocol, get_args

import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.clients import access as clients_access
from kunicorn.clients.access import Access
from kunicorn.clients.range_reader import FetchPositions, RangeReader, RangeUnreadable
from kunicorn.positions import OffsetRange, TopicPartition
from tests.kafka import KafkaCluster
from tests.kafka.damage import damage
from tests.system.pipeline.ranges import IsolationLevel, access, end_of
from tests.system.pipeline.recreating import recreate
from tests.system.producing import COMPACTED_END, begun, compacted_log, produce, transaction
from tests.waiting import wait_until


class Read(Protocol):
    """Both readers' way."""

    def __call__(self, *wanted: OffsetRange, aside: Collection[TopicPartition] = ()) -> Iterator[Sequence[Message]]: ...


class Reading:
    """One client, as a task has it, which reads one range after the other."""

    def __init__(self, kind: str, access: Access, patience: float, *, passes_over_deleted: bool = False) -> None:
        if kind == "columns":
            columns = access.columns(patience=patience, passes_over_deleted=passes_over_deleted)
            self.close: Callable[[], None] = columns.close
            self.read: Read = columns.read
        else:
            consumer = access.consumer()
            self.close = consumer.close
            self.read = RangeReader(consumer, patience, passes_over_deleted=passes_over_deleted).read

    def offsets(self, topic: str, start: int, stop: int) -> list[int | None]:
        """Of partition 0."""
        return [message.offset() for batch in self.read(OffsetRange(topic, 0, start, stop)) for message in batch]


Readers = Callable[..., Reading]


@pytest.fixture(params=["messages", "columns"])
def reading(request: pytest.FixtureRequest, kafka: KafkaCluster, topic: str) -> Iterator[Readers]:
    """`reading(patience)`: each of the two readers in turn."""
    with ExitStack() as stack:

        def make(patience: float = 60.0, isolation: IsolationLevel = "read_committed", **how: bool) -> Reading:
            made = Reading(request.param, access(kafka, topic, isolation), patience, **how)
            stack.callback(made.close)
            return made

        yield make


def test_a_range_gives_its_records_and_no_other(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 3_000)
    offsets = reading().offsets
    assert offsets(topic, 0, 3_000) == [*range(3_000)]
    assert offsets(topic, 10, 2_345) == [*range(10, 2_345)]
    assert offsets(topic, 2_999, 3_000) == [2_999]
    assert offsets(topic, 5, 5 + 1) == [5], "one client reads one range after the other"


def test_what_is_set_aside_goes_on_where_it_was_and_no_record_is_missed_or_comes_twice(
    kafka: KafkaCluster, topic: str, reading: Readers
) -> None:
    kafka.create_topic(topic, partitions=2)
    ranges = [OffsetRange(topic, number, 5, 2_900) for number in (0, 1)]
    for number in (0, 1):
        produce(kafka.bootstrap, topic, 3_000, partition=number)
    chance, aside = Random(1), set[TopicPartition]()
    seen: dict[int | None, list[int | None]] = {0: [], 1: []}
    for turn, run in enumerate(reading().read(*ranges, aside=aside)):
        for message in run:
            assert TopicPartition(topic, message.partition() or 0) not in aside
            seen[message.partition()].append(message.offset())
        aside.clear()
        if turn < 30:
            aside.update(each.tp for each in ranges if chance.random() < 0.4)
    assert list(seen.values()) == [[*range(5, 2_900)]] * 2


def test_a_range_ends_behind_transaction_markers_and_aborted_records(
    kafka: KafkaCluster, topic: str, reading: Readers
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    assert end_of(access(kafka, topic)) == 82
    offsets = reading().offsets
    assert offsets(topic, 0, 82) == [*range(50)]
    assert offsets(topic, 0, 51) == [*range(50)]
    assert offsets(topic, 51, 82) == []


def test_a_client_tells_that_it_comes_further_through_aborted_records(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    monkeypatch.setattr(clients_access, "_STATISTICS_MS", 50)
    fetched = FetchPositions()
    consumer = access(kafka, topic).consumer(fetched)
    consumer.assign([Coordinates(topic, 0, 0)])

    def through() -> bool:
        message = consumer.poll(0.1)
        assert message is None or message.error() is not None, "nothing of it is given out"
        return fetched.of([TopicPartition(topic, 0)]) == [31]

    wait_until(through, "the fetches to be behind the aborted records")
    consumer.close()


def test_an_open_transaction_is_not_planned(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 5)
    sender = begun(kafka.bootstrap, topic)
    sender.produce(topic, b"open", partition=0)
    sender.flush(60)
    ends = {isolation: end_of(access(kafka, topic, isolation)) for isolation in get_args(IsolationLevel)}
    sender.abort_transaction(60)
    assert ends == {"read_committed": 5, "read_uncommitted": 6}


def test_what_is_gone_is_an_error_that_names_it(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 20)
    kafka.delete_records(topic, {0: 8})
    offsets = reading().offsets
    with pytest.raises(RangeUnreadable, match=f"{topic}-0: offsets 3 to 8 are gone, the log has 8 to 20 now"):
        offsets(topic, 3, 20)
    assert offsets(topic, 8, 20) == [*range(8, 20)], "the client goes on"


def test_what_is_gone_is_passed_over_where_that_is_accepted(
    kafka: KafkaCluster, topic: str, reading: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 20)
    kafka.delete_records(topic, {0: 8})
    offsets = reading(passes_over_deleted=True).offsets
    assert offsets(topic, 3, 20) == [*range(8, 20)]
    assert f"{topic}-0: offsets 3 to 8 were deleted before they were read" in caplog.text
    assert offsets(topic, 2, 6) == []
    assert offsets(topic, 10, 12) == [10, 11]


def test_a_log_that_ends_before_the_range_is_an_error(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 5)
    with pytest.raises(RangeUnreadable, match="the log ends at 5 and the range at 9"):
        reading(patience=1.0).offsets(topic, 0, 9)


def test_a_range_does_not_end_behind_what_is_damaged(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    for _ in range(3):
        produce(kafka.bootstrap, topic, 30)
    damage(kafka.broker(1), f"{topic}-0", begins=30)
    offsets = reading().offsets
    assert offsets(topic, 0, 30) == [*range(30)]
    with pytest.raises(RangeUnreadable, match=r"offset 30.*another replica"):
        offsets(topic, 0, 90)


def test_read_uncommitted_has_what_was_aborted(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 5, commit=False)
    transaction(kafka.bootstrap, topic, 5, commit=True)
    assert reading().offsets(topic, 0, 12) == [*range(6, 11)]
    assert reading(isolation="read_uncommitted").offsets(topic, 0, 12) == [*range(5), *range(6, 11)]


@pytest.fixture(scope="module")
def compacted(kafka: KafkaCluster) -> tuple[str, list[int]]:
    """A topic whose log is compacted, and the offsets that are left of it."""
    topic = f"compacted-{uuid.uuid4().hex}"
    return topic, compacted_log(kafka, topic)


@pytest.mark.parametrize("kind", ["messages", "columns"])
def test_gaps_of_a_compacted_log_are_passed_over(
    kafka: KafkaCluster, compacted: tuple[str, list[int]], kind: str
) -> None:
    topic, left = compacted
    reading = Reading(kind, access(kafka, topic), 60.0)
    offsets = reading.offsets
    assert offsets(topic, 0, COMPACTED_END) == left
    inside = next(at for at in range(COMPACTED_END) if at not in left)
    assert offsets(topic, inside, 15_000) == [at for at in left if inside <= at < 15_000], "begins in a gap"
    assert offsets(topic, 0, inside + 1) == [at for at in left if at <= inside], "ends in a gap"
    assert offsets(topic, inside, inside + 1) == [], "is a gap"
    reading.close()


def test_several_ranges_are_read_at_once(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic, 3)
    for number in range(3):
        produce(kafka.bootstrap, topic, 200, partition=number)
    wanted = [OffsetRange(topic, number, 10 * number, 100 + number) for number in range(3)]
    found: dict[int | None, list[int | None]] = {0: [], 1: [], 2: []}
    for batch in reading().read(*wanted):
        for message in batch:
            found[message.partition()].append(message.offset())
    assert found == {each.partition: [*range(each.start, each.stop)] for each in wanted}


def test_a_range_that_is_left_early_takes_nothing_along(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 5_000)
    reader = reading()
    for at in (0, 100, 50):
        some = reader.read(OffsetRange(topic, 0, at, 5_000))
        assert next(filter(len, some))[0].offset() == at
        some.close()  # type: ignore[attr-defined]
    assert reader.offsets(topic, 7, 20) == [*range(7, 20)]


def test_a_topic_that_is_gone_is_an_error_that_names_it(kafka: KafkaCluster, topic: str, reading: Readers) -> None:
    with pytest.raises(RangeUnreadable, match=topic):
        reading(patience=2.0).offsets(topic, 0, 5)


def test_a_topic_created_anew_is_read_from_where_the_range_says(
    kafka: KafkaCluster, topic: str, reading: Readers
) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 100)
    reader = reading(patience=15.0)
    assert reader.offsets(topic, 0, 100) == [*range(100)]
    recreate(kafka, topic, 60)
    # One that waits less for offsets that will not come.
    with pytest.raises(RangeUnreadable, match=f"{topic}"):
        reading(patience=3.0).offsets(topic, 50, 100)
    assert reader.offsets(topic, 40, 60) == [*range(40, 60)]


def test_columns_never_go_on_in_a_topic_that_was_created_anew_underway(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 500, value=b"old" * 20_000)
    reader = Reading("columns", access(kafka, topic), 60.0)
    some = reader.read(OffsetRange(topic, 0, 0, 1_000))
    taken = [message.value() for message in next(filter(len, some))]
    recreate(kafka, topic, 1_000)
    with pytest.raises(RangeUnreadable, match="was created anew"):
        taken += [message.value() for batch in some for message in batch]
    reader.close()
    assert len(taken) <= 500
    assert set(taken) == {b"old" * 20_000}
