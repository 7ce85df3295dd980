"""What a client makes of fetches that a broker refuses or never answers: librdkafka and our own fetcher,
against librdkafka's mock broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kunicorn.clients.range_reader import RangeReader
from kunicorn.columns import reference
from kunicorn.fetch.properties import MAX_UNPACKED, fetcher_of
from kunicorn.kafka.auth import Security
from kunicorn.librdkafka.errors import RETRIABLE, parted
from kunicorn.librdkafka.properties import client_properties
from kunicorn.positions import OffsetRange, Position
from kunicorn.positions import TopicPartition as Place
from kunicorn.worker.fetching.client import Login
from kunicorn.worker.fetching.fetched import ends_grant, faults_of
from kunicorn.worker.fetching.own_fetcher import OwnFetcher
from tests.fakes.refusing_brokers import FETCH, RefusingBroker, default_of, refusing_broker

REFUSALS = [KafkaError.REQUEST_TIMED_OUT, KafkaError.UNKNOWN, KafkaError.NETWORK_EXCEPTION, KafkaError.INVALID_MSG]
MUCH_TOO_LONG = 120.0
LIBRDKAFKA_LOOKS_EVERY_MS = 1000
"""For requests whose time is over (rd_kafka_broker_thread_main); the time is that of the socket, and for a Fetch the
broker's wait for records besides (rd_kafka_broker_fetch_toppars)."""


@pytest.fixture
def broker() -> Iterator[RefusingBroker]:
    """With one record in `orders`."""
    with refusing_broker() as found:
        found.create("orders")
        producer = Producer({"bootstrap.servers": found.bootstrap})
        producer.produce("orders", b"first", partition=0)
        assert producer.flush(MUCH_TOO_LONG) == 0
        yield found


def properties_of(broker: RefusingBroker) -> dict[str, Any]:
    """Those that a worker's client gets."""
    return client_properties(
        bootstrap_servers=[broker.bootstrap],
        client_id="orders",
        group_id="orders",
        isolation_level="read_committed",
        client_rack=None,
        security={},
        extra={"log_level": 0},
        memory_per_worker_mb=128,
        brokers=1,
    )


def workers_client(broker: RefusingBroker) -> Consumer:
    return Consumer(properties_of(broker))


def read_one(consumer: Consumer) -> tuple[list[int | None], list[int]]:
    """The offset of the record that comes, and the errors before it, as a worker takes them."""
    broken: list[Place] = []
    told: list[int] = []
    deadline = time.monotonic() + MUCH_TOO_LONG
    while time.monotonic() < deadline:
        records, errors = parted(consumer.consume(10, 0.1), ends_grant)
        told += [error.code() for message in errors if (error := message.error()) is not None]
        broken += [tp for tp, _, _ in faults_of(errors)]
        assert not broken, "the partition halts"
        if records:
            return [record.offset() for record in records], told
    raise AssertionError("no record came")


@pytest.mark.parametrize("code", REFUSALS)
def test_a_fetch_that_is_refused_for_a_moment_is_made_again_and_halts_nothing(
    broker: RefusingBroker, code: int
) -> None:
    broker.refuse(FETCH, code, 2)
    consumer = workers_client(broker)
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert read_one(consumer) == ([0], [code, code])
    finally:
        consumer.close()


def test_a_job_outlasts_fetches_that_are_refused_for_a_moment(broker: RefusingBroker) -> None:
    broker.refuse(FETCH, KafkaError.REQUEST_TIMED_OUT, 2)
    consumer = workers_client(broker)
    try:
        read = RangeReader(consumer, patience=MUCH_TOO_LONG).read(OffsetRange("orders", 0, 0, 1))
        assert [message.value() for batch in read for message in batch] == [b"first"]
    finally:
        consumer.close()


def test_a_fetch_that_is_never_answered_is_made_again_within_seconds(broker: RefusingBroker) -> None:
    broker.hold(FETCH, 600)
    consumer = workers_client(broker)
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert read_one(consumer)[0] == [0]
    finally:
        consumer.close()


def read_by_our_own(broker: RefusingBroker) -> list[int | None]:
    """Offsets of the first records that our own fetcher gives out; fails where the partition ends instead."""
    decoder = reference.Decoder(read_committed=True, max_unpacked=MAX_UNPACKED)
    fetcher, queue = fetcher_of(properties_of(broker), Security(), decoder)
    own = OwnFetcher(fetcher, queue, Login(None))
    own.assign({Place("orders", 0): Position(0)})
    fetcher.start()
    try:
        deadline = time.monotonic() + MUCH_TOO_LONG
        while time.monotonic() < deadline:
            taken = own.take(10, 0.1, gathers=False, several_topics=False)
            if taken is None:
                continue
            assert not taken.faults, "the partition halts"
            if taken.runs:
                return [message.offset() for run in taken.runs for message in run.messages]
        raise AssertionError("no record came")
    finally:
        fetcher.close()


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.scenario("testFetchRequestInternalError", "testHandleFetchResponseError")
def test_our_own_fetcher_makes_a_fetch_that_is_refused_for_a_moment_again(broker: RefusingBroker, code: int) -> None:
    broker.refuse(FETCH, code, 2)
    assert read_by_our_own(broker) == [0]


@pytest.mark.scenario("testFetchDisconnected")
def test_our_own_fetcher_gives_up_a_fetch_that_is_never_answered_within_seconds(broker: RefusingBroker) -> None:
    broker.hold(FETCH, 600)
    assert read_by_our_own(broker) == [0]


def test_a_fetch_that_is_never_answered_is_given_up_within_ten_seconds_by_librdkafka(broker: RefusingBroker) -> None:
    properties = properties_of(broker)
    milliseconds = sum(
        int(properties.get(name) or default_of(name)) for name in ("socket.timeout.ms", "fetch.wait.max.ms")
    )
    assert milliseconds + LIBRDKAFKA_LOOKS_EVERY_MS <= 10_000


def test_a_fetch_that_is_never_answered_is_given_up_within_ten_seconds_by_our_own_fetcher(
    broker: RefusingBroker,
) -> None:
    decoder = reference.Decoder(read_committed=True, max_unpacked=MAX_UNPACKED)
    fetcher, _ = fetcher_of(properties_of(broker), Security(), decoder)
    assert fetcher.longest_silence <= 10


def test_whatever_kafka_calls_retriable_ends_no_grant() -> None:
    assert not [code for code in RETRIABLE if ends_grant(KafkaError(code))]
