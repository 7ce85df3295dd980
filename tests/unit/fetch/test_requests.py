"""Fetch requests: what is written by hand is what kio's generated classes write, in every version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from kunicorn.fetch.requests import BY_ID, Limits, fetch_frame
from kunicorn.fetch.sessions import Ask, Request
from kunicorn.kafka import codec
from kunicorn.kafka.versions import BY_HAND, Api
from kunicorn.positions import TopicPartition

ONE, TWO = UUID(int=1 << 90 | 7), UUID(int=2 << 90 | 9)
IDS = {"one": ONE, "two" * 60: TWO}
LIMITS = Limits(max_wait_ms=500, min_bytes=1, max_bytes=52_428_800, read_committed=True, rack="rack-a")
VERSIONS = range(BY_HAND[Api.FETCH].low, BY_HAND[Api.FETCH].high + 1)


def fields(request: Request, version: int) -> dict[str, Any]:
    """The request as kio's fields."""

    def named(topic: str) -> dict[str, Any]:
        return {"topic_id": IDS[topic]} if version >= BY_ID else {"topic": topic}

    def partition(tp: TopicPartition, ask: Ask) -> dict[str, Any]:
        return {
            "partition": tp.partition,
            "current_leader_epoch": ask.leader_epoch,
            "fetch_offset": ask.offset,
            "last_fetched_epoch": ask.last_epoch,
            "log_start_offset": -1,
            "partition_max_bytes": ask.max_bytes,
        }

    topics = dict.fromkeys(tp.topic for tp in request.asks)
    gone = dict.fromkeys(tp.topic for tp, _ in request.forgotten)
    return {
        "max_wait": timedelta(milliseconds=LIMITS.max_wait_ms),
        "min_bytes": LIMITS.min_bytes,
        "max_bytes": LIMITS.max_bytes,
        "isolation_level": int(LIMITS.read_committed),
        "session_id": request.session_id,
        "session_epoch": request.epoch,
        "topics": [
            {
                **named(topic),
                "partitions": [partition(tp, ask) for tp, ask in request.asks.items() if tp.topic == topic],
            }
            for topic in topics
        ],
        "forgotten_topics_data": [
            {**named(topic), "partitions": [tp.partition for tp, _ in request.forgotten if tp.topic == topic]}
            for topic in gone
        ],
        "rack_id": LIMITS.rack,
    }


def as_kio_writes(request: Request, version: int, correlation_id: int, client_id: str) -> bytes:
    """The same frame by kio's classes."""
    schema = load_request_schema(Api.FETCH, version)
    message = codec._build(Api.FETCH, schema, fields(request, version))
    header_schema: Any = schema.__header_schema__
    header = header_schema(
        request_api_key=Api.FETCH, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    body = codec.encode(header) + codec.encode(message)
    return len(body).to_bytes(4, "big") + body


REQUESTS = {
    "empty": Request(0, 0, {}, []),
    "one": Request(0, 0, {TopicPartition("one", 3): Ask(ONE.bytes, 12, 4, 3, 1024)}, []),
    "many": Request(
        77,
        12,
        {
            **{TopicPartition("one", n): Ask(ONE.bytes, n * 2**33, n, -1, 2**20) for n in range(200)},
            TopicPartition("two" * 60, 1): Ask(TWO.bytes, 2**62, -1, -1, 1),
        },
        [(TopicPartition("two" * 60, n), TWO.bytes) for n in (5, 6)],
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.scenario("testFetchWithTopicId", "testFetchWithNoTopicId")
def test_a_request_is_what_kio_writes(name: str, version: int) -> None:
    request = REQUESTS[name]
    frame = fetch_frame(version, 99, "kunicorn-worker-1", LIMITS, request)
    assert frame == as_kio_writes(request, version, 99, "kunicorn-worker-1")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_of_another_id_is_not_forgotten_by_the_name_that_it_is_asked_for_with(version: int) -> None:
    """Brokers drop what a request names as forgotten last: nothing of the partition would ever come again."""
    one = TopicPartition("one", 3)
    request = Request(9, 4, {one: Ask(ONE.bytes, 5)}, [(one, TWO.bytes)])
    written = load_request_schema(1, version)
    frame = fetch_frame(version, 1, "client", LIMITS, request)
    _, size = entity_reader(written.__header_schema__)(frame, codec.LENGTH_BYTES)
    message: Any = entity_reader(written)(frame, codec.LENGTH_BYTES + size)[0]
    gone = [each.partitions for each in message.forgotten_topics_data]
    assert gone == ([(3,)] if version >= BY_ID else [])
    assert [[each.partition for each in topic.partitions] for topic in message.topics] == [[3]]


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_are_named_in_the_order_of_their_turns_whatever_topics_they_are_of(version: int) -> None:
    """A broker without sessions fills its answer in the request's order. Named with its topic's first partition, which
    has no records and so comes first for ever, one that always has some would never let another topic have its turn."""
    idle, waits, busy = TopicPartition("one", 0), TopicPartition("two" * 60, 1), TopicPartition("one", 3)
    asks = {tp: Ask(IDS[tp.topic].bytes, 5) for tp in (idle, waits, busy)}
    written = load_request_schema(1, version)
    frame = fetch_frame(version, 1, "client", LIMITS, Request(0, 0, asks, []))
    _, size = entity_reader(written.__header_schema__)(frame, codec.LENGTH_BYTES)
    message: Any = entity_reader(written)(frame, codec.LENGTH_BYTES + size)[0]
    assert [each.partition for topic in message.topics for each in topic.partitions] == [0, 1, 3]
