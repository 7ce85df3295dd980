"""Ranges end where they should, whatever compaction, transactions and retention have left of their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.clients import access as clients_access
from kunicorn.clients.access import Access
from kunicorn.clients.range_reader import FetchPositions, RangeReader, RangeUnreadable
from kunicorn.clients.session import cluster_session
from kunicorn.positions import OffsetRange, TopicPartition
from kunicorn.settings import GroupSettings, HandlerSettings, KafkaSettings, Settings
from tests.kafka import KafkaCluster
from tests.kafka.damage import damage
from tests.system.producing import begun, produce, transaction
from tests.waiting import wait_until

IsolationLevel = Literal["read_committed", "read_uncommitted"]


def access(kafka: KafkaCluster, topic: str, isolation: IsolationLevel = "read_committed") -> Access:
    return Access(
        Settings(
            kafka=KafkaSettings(bootstrap_servers=(kafka.bootstrap,), isolation_level=isolation),
            group=GroupSettings(id=topic, topics=(topic,)),
            handler=HandlerSettings(entrypoint="x:y"),
        )
    )


def end_of(access: Access) -> int:
    """End of the first partition, as plans have it."""
    with cluster_session(access.settings) as session:
        (edges,) = session.edges([TopicPartition(access.settings.group.id, 0)]).values()
    return edges.end


@pytest.fixture
def consumer(kafka: KafkaCluster, topic: str) -> Iterator[Consumer]:
    made = access(kafka, topic).consumer()
    yield made
    made.close()


def offsets(consumer: Consumer, topic: str, start: int, stop: int, patience: float = 20.0) -> list[int | None]:
    batches = RangeReader(consumer, patience).read(OffsetRange(topic, 0, start, stop))
    return [message.offset() for batch in batches for message in batch]


def test_a_range_gives_its_records_and_no_other(kafka: KafkaCluster, topic: str, consumer: Consumer) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 3_000)
    assert offsets(consumer, topic, 0, 3_000) == [*range(3_000)]
    assert offsets(consumer, topic, 10, 2_345) == [*range(10, 2_345)]
    assert offsets(consumer, topic, 2_999, 3_000) == [2_999]
    assert offsets(consumer, topic, 5, 5 + 1) == [5], "one client reads one range after the other"


def test_a_range_ends_behind_transaction_markers_and_aborted_records(
    kafka: KafkaCluster, topic: str, consumer: Consumer
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    assert end_of(access(kafka, topic)) == 82
    assert offsets(consumer, topic, 0, 82) == [*range(50)]
    assert offsets(consumer, topic, 0, 51) == [*range(50)]
    assert offsets(consumer, topic, 51, 82) == []


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

    wait_until(through, "the fetches to be behind the aborted records", 60)
    consumer.close()


def test_an_open_transaction_is_not_planned(kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 5)
    sender = begun(kafka.bootstrap, topic)
    sender.produce(topic, b"open", partition=0)
    sender.flush(20)
    ends = {isolation: end_of(access(kafka, topic, isolation)) for isolation in get_args(IsolationLevel)}
    sender.abort_transaction(20)
    assert ends == {"read_committed": 5, "read_uncommitted": 6}


def test_what_is_gone_is_an_error_that_names_it(kafka: KafkaCluster, topic: str, consumer: Consumer) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 20)
    for future in kafka.admin().delete_records([Coordinates(topic, 0, 8)]).values():
        future.result(10)
    with pytest.raises(RangeUnreadable, match=f"{topic}-0: offsets 3 to 8 are gone, the log has 8 to 20 now"):
        offsets(consumer, topic, 3, 20)
    assert offsets(consumer, topic, 8, 20) == [*range(8, 20)], "the client goes on"


def test_what_is_gone_is_passed_over_where_that_is_accepted(
    kafka: KafkaCluster, topic: str, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 20)
    for future in kafka.admin().delete_records([Coordinates(topic, 0, 8)]).values():
        future.result(10)
    reader = RangeReader(consumer, passes_over_deleted=True)

    def read(start: int, stop: int) -> list[int | None]:
        return [message.offset() for batch in reader.read(OffsetRange(topic, 0, start, stop)) for message in batch]

    assert read(3, 20) == [*range(8, 20)]
    assert f"{topic}-0: offsets 3 to 8 were deleted before they were read" in caplog.text
    assert read(2, 6) == []
    assert read(10, 12) == [10, 11]


def test_a_log_that_ends_before_the_range_is_an_error(kafka: KafkaCluster, topic: str, consumer: Consumer) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 5)
    with pytest.raises(RangeUnreadable, match="the log ends at 5 and the range at 9"):
        offsets(consumer, topic, 0, 9, patience=1.0)


def test_a_range_does_not_end_behind_what_is_damaged(kafka: KafkaCluster, topic: str, consumer: Consumer) -> None:
    kafka.create_topic(topic)
    for _ in range(3):
        produce(kafka.bootstrap, topic, 30)
    damage(kafka.broker(1), f"{topic}-0", batch=1)
    assert offsets(consumer, topic, 0, 30) == [*range(30)]
    with pytest.raises(RangeUnreadable, match=r"offset 30.*another replica"):
        offsets(consumer, topic, 0, 90)
